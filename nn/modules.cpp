#include "nn/modules.h"

#include "autograd/elementwise.h"
#include "autograd/normalization.h"
#include "autograd/products.h"

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

}  // namespace sextant
