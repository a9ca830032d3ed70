#include "nn/config.h"

#include "core/error.h"
#include "core/json_value.h"
#include "positional/spec.h"

namespace sextant {

void ModelConfig::check() const {
  const auto within = [](const char* name, int64_t value, int64_t low, int64_t high) {
    require(value >= low && value <= high, "{} is {}, must be between {} and {}", name, value, low, high);
  };
  within("vocab", vocab, 1, int64_t{1} << 24);
  within("layers", layers, 1, 1024);
  within("width", width, 1, 65536);
  within("heads", heads, 1, width);
  within("context", context, 1, int64_t{1} << 24);
  require(width % heads == 0, "width is {} and heads {}, the width must be divisible by the heads (nearest: {})", width,
          heads, std::max<int64_t>(1, (width + heads / 2) / heads) * heads);
  require(norm_epsilon > 0 && norm_epsilon < 1, "norm_epsilon is {}, must be between 0 and 1", norm_epsilon);
  parse_spec(position);
}

std::string ModelConfig::json() const {
  return nlohmann::ordered_json{{"vocab", vocab},
                                {"layers", layers},
                                {"width", width},
                                {"heads", heads},
                                {"context", context},
                                {"position", position},
                                {"tied", tied},
                                {"dtype", name_of(dtype)},
                                {"data", data},
                                {"seed", seed},
                                {"norm_epsilon", norm_epsilon},
                                {"activation", "gelu_tanh"}}
      .dump();
}

ModelConfig ModelConfig::from_json(const std::string& text, const std::string& where) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  require(json.is_object(), "{}: the configuration is no JSON object", where);
  ModelConfig config;
  const auto read = [&](const char* key, auto& value, bool required) {
    if (!json.contains(key)) {
      require(!required, "{}: the configuration lacks '{}'", where, key);
      return;
    }
    require(read_value(json.at(key), value), "{}: the configuration's '{}' is {}, which has the wrong type", where, key,
            json.at(key).dump());
  };
  read("vocab", config.vocab, true);
  read("layers", config.layers, true);
  read("width", config.width, true);
  read("heads", config.heads, true);
  read("context", config.context, true);
  read("position", config.position, true);
  read("tied", config.tied, false);
  read("data", config.data, false);
  read("seed", config.seed, false);
  read("norm_epsilon", config.norm_epsilon, false);
  std::string dtype = "f32", activation = "gelu_tanh";
  read("dtype", dtype, false);
  read("activation", activation, false);
  require(dtype == "f32" || dtype == "f64", "{}: the configuration's dtype is '{}', must be f32 or f64", where, dtype);
  require(activation == "gelu_tanh", "{}: the configuration's activation is '{}', only gelu_tanh is known", where,
          activation);
  config.dtype = dtype == "f32" ? DType::f32 : DType::f64;
  try {
    config.check();
  } catch (const Error& error) {
    fail("{}: {}", where, error.what());
  }
  return config;
}

}  // namespace sextant
