// The layers that have weights: linear, layer norm, mlp. Each owns its parameters and applies them to a Variable of the
// current tape; `composed` selects the twin made of elementary operations.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "core/random.h"

namespace sextant {

// A zero parameter with its gradient, both in `weights`.
Parameter make_parameter(Arena& weights, const std::string& name, const Shape& shape, DType dtype, bool decay = false);

// y = x W^T + bias: x [.., inputs], W [outputs, inputs]. Named name.weight, name.bias.
class Linear {
 public:
  Linear(Arena& weights, const std::string& name, int64_t inputs, int64_t outputs, DType dtype);
  void initialise(uint64_t seed, double standard_deviation);
  Variable operator()(Variable x, bool composed);
  Variable with_gelu(Variable x, bool composed);  // gelu(x W^T + bias)
  std::vector<Parameter*> parameters() { return {&weight_, &bias_}; }

 private:
  Parameter weight_, bias_;
};

// Layer norm over the last dimension, starting as gain 1, bias 0.
class LayerNorm {
 public:
  LayerNorm(Arena& weights, const std::string& name, int64_t width, double epsilon, DType dtype);
  Variable operator()(Variable x, bool composed);
  // {x + branch, norm(x + branch)}: where a residual branch joins and the next one starts.
  std::array<Variable, 2> after_sum(Variable x, Variable branch, bool composed);
  std::vector<Parameter*> parameters() { return {&gain_, &bias_}; }

 private:
  Parameter gain_, bias_;
  double epsilon_;
};

// down(gelu(up(x))), four times as wide inside.
class Mlp {
 public:
  Mlp(Arena& weights, const std::string& name, int64_t width, DType dtype);
  void initialise(uint64_t seed, double up_deviation, double down_deviation);
  Variable operator()(Variable x, bool composed) { return down_(up_.with_gelu(x, composed), composed); }
  std::vector<Parameter*> parameters();

 private:
  Linear up_, down_;
};

}  // namespace sextant
