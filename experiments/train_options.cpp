#include "experiments/train_options.h"

#include <cctype>
#include <filesystem>
#include <limits>

#include "core/error.h"
#include "core/json_value.h"

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
    require(read_value(object.at(key), value), "{}: the training option '{}' cannot be {}", where, key,
            object.at(key).dump());
  };
  const auto read_between = [&](const char* key, auto& value, auto low, auto high) {
    read(key, value);
    require(value >= low && value <= high, "{}: the training option '{}' is {}, must be between {} and {}", where, key,
            value, low, high);
  };
  constexpr double huge = std::numeric_limits<double>::max();
  TrainOptions options;
  std::string dtype;
  read("data", options.data);
  read("position", options.position);
  read_between("layers", options.layers, 1, TrainOptions::most_size);
  read_between("width", options.width, 1, TrainOptions::most_size);
  read_between("heads", options.heads, 1, TrainOptions::most_size);
  read_between("context", options.context, 1, TrainOptions::most_size);
  read_between("batch", options.batch, 1, TrainOptions::most_size);
  read_between("steps", options.steps, 0, TrainOptions::most_steps);
  read_between("lr", options.lr, 0, huge);
  read_between("warmup", options.warmup, 0, TrainOptions::most_steps);
  read_between("weight-decay", options.weight_decay, 0, huge);
  read_between("clip", options.clip, 0, huge);
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
