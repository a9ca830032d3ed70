#include "experiments/train_options.h"

#include <cctype>
#include <filesystem>

#include "core/error.h"

namespace sextant {

using nlohmann::json;

ModelConfig TrainOptions::model(int64_t vocabulary) const {
  return {.vocab = vocabulary,
          .layers = layers,
          .width = width,
          .heads = heads,
          .context = context,
          .position = position,
          .tied = !untied,
          .dtype = dtype,
          .data = data,
          .seed = seed};
}

void TrainOptions::check() const {
  require(accumulate >= 1 && accumulate <= batch, "--accumulate {}: must be 1 to {}, the sequences of the batch",
          accumulate, batch);
  require(warmup <= steps, "--warmup {}: more than the {} steps of the run", warmup, steps);
  require(!out.empty(), "--out: the run folder has no name");
}

json to_json(const TrainOptions& options) {
  return {{"data", options.data},
          {"position", options.position},
          {"layers", options.layers},
          {"width", options.width},
          {"heads", options.heads},
          {"context", options.context},
          {"batch", options.batch},
          {"steps", options.steps},
          {"lr", options.lr},
          {"warmup", options.warmup},
          {"weight-decay", options.weight_decay},
          {"clip", options.clip},
          {"seed", options.seed},
          {"dtype", name_of(options.dtype)},
          {"untied", options.untied},
          {"composed", options.composed}};
}

TrainOptions train_options_from_json(const json& object, const std::string& where) {
  const auto read = [&](const char* key, auto& value) {
    require(object.is_object() && object.contains(key), "{}: the training options lack the key '{}'", where, key);
    try {
      object.at(key).get_to(value);
    } catch (const json::exception&) {
      fail("{}: the training option '{}' cannot be {}", where, key, object.at(key).dump());
    }
  };
  TrainOptions options;
  std::string dtype;
  read("data", options.data);
  read("position", options.position);
  read("layers", options.layers);
  read("width", options.width);
  read("heads", options.heads);
  read("context", options.context);
  read("batch", options.batch);
  read("steps", options.steps);
  read("lr", options.lr);
  read("warmup", options.warmup);
  read("weight-decay", options.weight_decay);
  read("clip", options.clip);
  read("seed", options.seed);
  read("dtype", dtype);
  read("untied", options.untied);
  read("composed", options.composed);
  require(dtype == "f32" || dtype == "f64", "{}: the training option 'dtype' is '{}', not f32 or f64", where, dtype);
  options.dtype = dtype == "f64" ? DType::f64 : DType::f32;
  return options;
}

std::string data_name(const std::string& given) {
  std::error_code ignored;
  if (!std::filesystem::exists(given, ignored)) return given;
  return std::filesystem::canonical(given).string();
}

std::string default_run_folder(const TrainOptions& options) {
  const std::string data = std::filesystem::path(options.data).stem().string();
  std::string name;
  for (const char c : fmt::format("{}-{}-seed{}", data, options.position, options.seed)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '+' || c == '.' || c == '=';
    if (plain)
      name += c;
    else if (name.empty() || name.back() != '_')
      name += '_';
  }
  return "runs/" + name.substr(0, 120);
}

}  // namespace sextant
