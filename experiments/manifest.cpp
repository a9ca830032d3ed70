#include "experiments/manifest.h"

#include "core/blas.h"
#include "core/cpu.h"
#include "core/error.h"
#include "core/file.h"
#include "core/host.h"
#include "core/json_value.h"
#include "core/parallel.h"

namespace sextant {

using nlohmann::json;

namespace {

std::string manifest_path(const std::string& folder) {
  return folder + "/manifest.json";
}

}  // namespace

json environment_json() {
  const blas::BlasChoice& blas = blas::choice();
  return {{"program", "sextant"},
          {"version", SEXTANT_VERSION},
          {"build_type", SEXTANT_BUILD_TYPE},
          {"compiler", compiler()},
          {"operating_system", operating_system()},
          {"cpu", cpu_model()},
          {"isa", name_of(isa())},
          {"threads", threads()},
          {"memory_bytes", total_memory()},
          {"products", blas::products() == blas::Products::own ? "own" : "blas"},
          {"blas",
           {{"available", blas.available},
            {"library", blas.library},
            {"version", blas.config},
            {"kernel", blas.core_used},
            {"kernel_left_alone", blas.core_itself},
            {"reason", blas.reason}}}};
}

json corpus_json(const Corpus& corpus) {
  json splits = json::object();
  for (const Split split : all_splits) splits[name_of(split)] = corpus.size(split);
  return {{"name", corpus.name()},
          {"sha256", corpus.sha256()},
          {"vocabulary", corpus.vocabulary()},
          {"split_rule", corpus.split_rule()},
          {"tokens", splits},
          {"warnings", corpus.warnings()}};
}

void write_manifest(const std::string& folder, const TrainOptions& options, Transformer& model, const Corpus& corpus,
                    const std::string& command_line, const json& environment) {
  const json manifest = {{"command", "sextant " + command_line},
                         {"started", now_iso_8601()},
                         {"options", to_json(options)},
                         {"housekeeping",
                          {{"accumulate", options.accumulate},
                           {"eval-every", options.eval_every},
                           {"save-every", options.save_every},
                           {"keep", options.keep},
                           {"mpi-timeout", options.mpi_timeout}}},
                         {"seed", options.seed},
                         {"model", json::parse(model.config().json())},
                         {"parameters", model.parameter_count()},
                         {"data", corpus_json(corpus)},
                         {"environment", environment},
                         {"resumed", json::array()}};
  write_atomically(manifest_path(folder), manifest.dump(2) + "\n");
}

void note_resumption(const std::string& folder, int64_t step, const std::string& command_line,
                     const json& environment) {
  json manifest = read_json(manifest_path(folder));
  require(manifest.is_object(), "{}: not a JSON object", manifest_path(folder));
  manifest["resumed"].push_back(
      {{"step", step}, {"time", now_iso_8601()}, {"command", "sextant " + command_line}, {"environment", environment}});
  write_atomically(manifest_path(folder), manifest.dump(2) + "\n");
}

void read_housekeeping(const std::string& folder, TrainOptions& options) {
  const json manifest = read_json(manifest_path(folder));
  const json kept = manifest.is_object() ? manifest.value("housekeeping", json::object()) : json::object();
  const auto read = [&](const char* key, int64_t& value) {
    if (!kept.contains(key)) return;
    require(read_value(kept[key], value) && value >= 0 && value <= TrainOptions::most_steps,
            "{}: '{}' of the housekeeping cannot be {}", manifest_path(folder), key, kept[key].dump());
  };
  read("accumulate", options.accumulate);
  read("eval-every", options.eval_every);
  read("save-every", options.save_every);
  read("keep", options.keep);
  read("mpi-timeout", options.mpi_timeout);
}

json read_json(const std::string& path) {
  const std::string text = read_text(path);
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    fail("{}: not JSON from byte {} on", path, error.byte);
  }
}

}  // namespace sextant
