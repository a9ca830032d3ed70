#include "nn/modules.h"

#include "autograd/elementwise.h"
#include "autograd/normalization.h"
#include "autograd/products.h"
#include "nn/layer_audit.h"

namespace sextant {

Parameter make_parameter(Arena& weights, const std::string& name, const Shape& shape, DType dtype, bool decay) {
  return {name, zeros(weights, shape, dtype), zeros(weights, shape, dtype), false, decay};
}

Linear::Linear(Arena& weights, const std::string& name, int64_t inputs, int64_t outputs, DType dtype)
    : weight_(make_parameter(weights, name + ".weight", {outputs, inputs}, dtype, true)),
      bias_(make_parameter(weights, name + ".bias", {outputs}, dtype)) {}

void Linear::initialise(uint64_t seed, double standard_deviation) {
  fill_normal(weight_.value, Random(seed, "init/" + weight_.name), 0.0, standard_deviation);
  bias_.value.zero();
}

Variable Linear::operator()(Variable x, bool composed) {
  Tape& tape = x.tape();
  const Variable weight = tape.parameter(weight_), bias = tape.parameter(bias_);
  return composed ? linear_composed(x, weight, bias) : linear(x, weight, bias);
}

Variable Linear::with_gelu(Variable x, bool composed) {
  Tape& tape = x.tape();
  const Variable weight = tape.parameter(weight_), bias = tape.parameter(bias_);
  return composed ? linear_gelu_composed(x, weight, bias) : linear_gelu(x, weight, bias);
}

LayerNorm::LayerNorm(Arena& weights, const std::string& name, int64_t width, double epsilon, DType dtype)
    : gain_(make_parameter(weights, name + ".weight", {width}, dtype)),
      bias_(make_parameter(weights, name + ".bias", {width}, dtype)),
      epsilon_(epsilon) {
  gain_.value.fill(1.0);
}

Variable LayerNorm::operator()(Variable x, bool composed) {
  const Variable gain = x.tape().parameter(gain_), bias = x.tape().parameter(bias_);
  return composed ? layer_norm_composed(x, gain, bias, epsilon_) : layer_norm(x, gain, bias, epsilon_);
}

std::array<Variable, 2> LayerNorm::after_sum(Variable x, Variable branch, bool composed) {
  if (composed) {
    const Variable sum = add(x, branch);
    return {sum, (*this)(sum, true)};
  }
  return add_layer_norm(x, branch, x.tape().parameter(gain_), x.tape().parameter(bias_), epsilon_);
}

Mlp::Mlp(Arena& weights, const std::string& name, int64_t width, DType dtype)
    : up_(weights, name + ".up", width, 4 * width, dtype), down_(weights, name + ".down", 4 * width, width, dtype) {}

void Mlp::initialise(uint64_t seed, double up_deviation, double down_deviation) {
  up_.initialise(seed, up_deviation);
  down_.initialise(seed, down_deviation);
}

std::vector<Parameter*> Mlp::parameters() {
  std::vector<Parameter*> all = up_.parameters();
  for (Parameter* parameter : down_.parameters()) all.push_back(parameter);
  return all;
}

namespace {
using Inputs = std::span<const Variable>;
}

AUDIT(Linear, "layer") {
  const auto make = [](Arena& weights, PositionTables&, DType dtype) {
    return std::make_unique<Linear>(weights, "linear", 5, 4, dtype);
  };
  const auto plain = [](Linear& layer, Tape&, Inputs x, bool composed) { return layer(x[0], composed); };
  const auto activated = [](Linear& layer, Tape&, Inputs x, bool composed) { return layer.with_gelu(x[0], composed); };
  return {layer_case<Linear>(arena, "ordinary", {sample(arena, {2, 3, 5})}, make, plain),
          layer_case<Linear>(arena, "with gelu", {sample(arena, {2, 3, 5})}, make, activated)};
}

AUDIT(LayerNorm, "layer") {
  const auto make = [](Arena& weights, PositionTables&, DType dtype) {
    return std::make_unique<LayerNorm>(weights, "norm", 6, 1e-5, dtype);
  };
  const auto plain = [](LayerNorm& layer, Tape&, Inputs x, bool composed) { return layer(x[0], composed); };
  const auto after_sum = [](LayerNorm& layer, Tape&, Inputs x, bool composed) {
    const auto [sum, normalised] = layer.after_sum(x[0], x[1], composed);
    return add(square(sum), normalised);
  };
  return {layer_case<LayerNorm>(arena, "ordinary", {sample(arena, {2, 3, 6})}, make, plain),
          layer_case<LayerNorm>(arena, "after a sum", {sample(arena, {4, 6}), sample(arena, {4, 6}, 1, 8)}, make,
                                after_sum)};
}

AUDIT(Mlp, "layer") {
  const auto make = [](Arena& weights, PositionTables&, DType dtype) {
    return std::make_unique<Mlp>(weights, "mlp", 6, dtype);
  };
  const auto call = [](Mlp& layer, Tape&, Inputs x, bool composed) { return layer(x[0], composed); };
  return {layer_case<Mlp>(arena, "ordinary", {sample(arena, {2, 3, 6})}, make, call)};
}

}  // namespace sextant
