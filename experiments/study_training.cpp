#include "experiments/study_training.h"

#include <cctype>
#include <filesystem>

#include "core/error.h"
#include "experiments/evaluate.h"
#include "experiments/trainer.h"
#include "positional/diagnostics.h"

namespace sextant::study {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::unique_ptr<Trainer> start_or_resume(const TrainOptions& options, const std::string& command) {
  std::error_code ignored;
  if (!fs::exists(options.out + "/checkpoint.safetensors", ignored)) return Trainer::start(options, command);
  TrainOptions stored = Trainer::stored_options(options.out);
  require(to_json(stored) == to_json(options),
          "{}: holds a run with other options ({}) than are asked for ({}); choose another --out", options.out,
          to_json(stored).dump(), to_json(options).dump());
  return Trainer::resume(options, command);
}

json layers_json(Transformer& model) {
  const ModelConfig& config = model.config();
  json layers = json::array();
  for (int layer = 0; layer < static_cast<int>(config.layers); ++layer) {
    json rows = json::array();
    for (const SectorDiagnostics& row : sector_diagnostics(model.position(layer), config.heads, config.context))
      rows.push_back({{"sector", row.sector},
                      {"order", row.order},
                      {"mass", row.mass},
                      {"mass_share", row.mass_share},
                      {"energy", row.energy},
                      {"energy_share", row.energy_share},
                      {"cancellation", row.cancellation}});
    layers.push_back(rows);
  }
  return layers;
}

}  // namespace

json settings_of(const TrainingTask& task, const Corpus& corpus) {
  return {{"train", to_json(task.options)},
          {"sha256", corpus.sha256()},
          {"lengths", task.lengths},
          {"windows", task.windows}};
}

json train_and_evaluate(const TrainingTask& task, const Workplace& place) {
  TrainOptions options = task.options;
  options.out = place.folder;
  try {
    const std::unique_ptr<Trainer> trainer = start_or_resume(options, place.command);
    const TrainResult result = trainer->run(*place.progress);
    if (!result.finished) throw Interrupted(result.signal);
    const Evaluation evaluation = evaluate(
        trainer->model(), trainer->corpus(),
        {.lengths = task.lengths, .windows = task.windows, .split = held_out_split(trainer->corpus())}, *place.progress);
    return {{"evaluation", to_json(evaluation)},
            {"layers", layers_json(trainer->model())},
            {"loss", result.loss},
            {"seconds", result.seconds}};
  } catch (const Error& error) {
    if (error.status() != Status::check_failed) throw;
    return {{"failed", error.what()}};
  }
}

std::string corpus_name(const std::string& given) {
  std::error_code ignored;
  return fs::exists(given, ignored) ? fs::canonical(given).string() : given;
}

std::string short_name(const std::string& corpus) {
  std::string name = fs::path(corpus).filename().string();
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.' && c != '_') c = '-';
  return name;
}

}  // namespace sextant::study
