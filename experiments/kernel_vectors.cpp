#include "experiments/kernel_vectors.h"

#include "core/random.h"
#include "positional/logits.h"
#include "positional/response.h"
#include "positional/strategy_audit.h"

namespace sextant {

namespace {

constexpr int64_t batch = 2, length = 9;

Tensor normal(Arena& arena, const Shape& shape, uint64_t seed, const std::string& stream) {
  const Tensor x = empty(arena, shape, DType::f64);
  fill_normal(x, Random(seed, "vectors/" + stream), 0.0, 1.0);
  return x;
}

nlohmann::json to_json(const Tensor& x) {
  nlohmann::json shape = nlohmann::json::array(), data = nlohmann::json::array();
  for (int dim = 0; dim < x.rank(); ++dim) shape.push_back(x.size(dim));
  for (int64_t i = 0; i < x.elements(); ++i) data.push_back(x.flat(i));
  return {{"shape", shape}, {"data", data}};
}

// Zeros where the output does not depend on x.
nlohmann::json gradient_json(const Variable& x) {
  return to_json(x.gradient().defined() ? x.gradient() : x.tape().zeros(x.shape(), x.dtype()));
}

// logit(i, j) [B, H, T, T], null for j > i.
nlohmann::json logits_json(const AttentionArguments& arguments, const PositionSettings& settings) {
  const AttentionInputs inputs = values_of(arguments);
  nlohmann::json data = nlohmann::json::array();
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < settings.heads; ++h)
      for (int64_t i = 0; i < length; ++i) {
        for (const double logit : logits_of_query(inputs, b, h, i)) data.push_back(logit);
        for (int64_t j = i + 1; j < length; ++j) data.push_back(nullptr);
      }
  return {{"shape", {batch, settings.heads, length, length}}, {"data", data}};
}

nlohmann::json one_vector(const std::string& spec, const PositionSettings& settings) {
  PositionStand stand(spec, settings);
  Position& position = stand.position();
  const uint64_t seed = settings.seed;
  // Away from where they start, which is zero for some.
  for (Parameter* parameter : position.parameters()) {
    const Random random(seed, "vectors/" + parameter->name);
    for (int64_t i = 0; i < parameter->value.elements(); ++i)
      parameter->value.set_flat(i, parameter->value.flat(i) + 0.3 * random.normal(static_cast<uint64_t>(i)));
  }
  std::vector<int32_t> tokens;
  const Random random(seed, "vectors/tokens");
  for (uint64_t i = 0; i < static_cast<uint64_t>(batch * length); ++i)
    tokens.push_back(static_cast<int32_t>(random.below(i, static_cast<uint64_t>(settings.vocabulary))));

  Tape tape;
  const Shape features{batch, length, settings.heads, settings.head_dim};
  const auto variable = [&](const Shape& shape, const char* name) {
    return tape.variable(normal(tape.arena(), shape, seed, name), name);
  };
  const Variable x = variable({batch, length, settings.width}, "x"), q = variable(features, "q"),
                 k = variable(features, "k"), v = variable(features, "v");
  const PositionCall call{&tape, x, tokens, batch, length, 0, length, false, nullptr};
  const AttentionArguments arguments = attention_arguments(position, call, {q, k, v});
  const Variable output = position.restore(call, attention(arguments), nullptr);
  const Tensor weights = normal(tape.arena(), features, seed, "output_weights");
  const nlohmann::json logits = logits_json(arguments, settings);
  tape.backward(output, weights);

  nlohmann::json terms = nlohmann::json::array(), parameters = nlohmann::json::object(),
                 constants = nlohmann::json::object(), gradients = nlohmann::json::object();
  for (const TermSpec& term : position.specs()) terms.push_back(term.text());
  for (Parameter* parameter : position.parameters()) {
    const std::string name = parameter->name.substr(std::string("position.").size());
    parameters[name] = to_json(parameter->value);
    gradients[name] = gradient_json(tape.parameter(*parameter));
  }
  for (const PositionConstant& constant : position.constants())
    constants[constant.name.substr(std::string("position.").size())] = to_json(constant.value);
  gradients["x"] = gradient_json(x), gradients["q"] = gradient_json(q);
  gradients["k"] = gradient_json(k), gradients["v"] = gradient_json(v);
  return {
      {"position", spec},
      {"terms", terms},
      {"context", settings.context},
      {"vocabulary", settings.vocabulary},
      {"tokens", {{"shape", {batch, length}}, {"data", tokens}}},
      {"inputs",
       {{"x", to_json(x.value())}, {"q", to_json(q.value())}, {"k", to_json(k.value())}, {"v", to_json(v.value())}}},
      {"parameters", parameters},
      {"constants", constants},
      {"logits", logits},
      {"output", to_json(output.value())},
      {"output_weights", to_json(weights)},
      {"gradients", gradients}};
}

}  // namespace

std::vector<std::string> registered_examples() {
  std::vector<std::string> specs;
  for (const StrategyInfo& info : strategies()) specs.insert(specs.end(), info.examples.begin(), info.examples.end());
  return specs;
}

nlohmann::json kernel_vectors(const std::vector<std::string>& specs, const PositionSettings& settings) {
  nlohmann::json vectors = nlohmann::json::array();
  for (const std::string& spec : specs) vectors.push_back(one_vector(spec, settings));
  return {{"format", "sextant kernel vectors"}, {"version", 1}, {"vectors", vectors}};
}

}  // namespace sextant
