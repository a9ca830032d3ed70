#include "autograd/normalization.h"

#include "autograd/elementwise.h"
#include "autograd/formula.h"
#include "autograd/gradient_check.h"
#include "autograd/reductions.h"
#include "core/error.h"
#include "core/shape_format.h"

namespace sextant {

FORMULA("layer_norm", "y = n gain + bias,  n = (x - mean) rstd,  rstd = 1 / sqrt(variance + epsilon)",
        "with g = dy gain:  dx = rstd (g - mean(g) - n mean(g n)),  dgain = sum dy n,  dbias = sum dy");
FORMULA("add_layer_norm", "s = x + residual,  y = layer_norm(s)",
        "ds as in layer_norm, plus what reached s itself;  dx = dresidual = ds");
std::array<Variable, 2> add_layer_norm(Variable x, Variable residual, Variable gain, Variable bias, double epsilon) {
  Tape& tape = x.tape();
  const int64_t width = x.shape().rank() ? x.size(-1) : 0;
  require(x.value().rank() >= 1 && gain.shape() == Shape{width} && bias.shape() == Shape{width},
          "layer norm of x {} with gain {} and bias {}, must be [.., C], [C] and [C]", x.shape(), gain.shape(),
          bias.shape());
  if (residual.defined()) require_shape(residual.value(), x.shape(), "the residual of layer norm");
  const int64_t rows = x.shape().rows();
  const Shape flat{rows, width};
  const Tensor input = contiguous(tape.arena(), x.value()).reshape(flat);
  const Tensor other = residual.defined() ? contiguous(tape.arena(), residual.value()).reshape(flat) : Tensor{};
  const Tensor sum = residual.defined() ? tape.empty(x.shape(), x.dtype()) : input.reshape(x.shape());
  const Tensor y = tape.empty(x.shape(), x.dtype());
  const Tensor mean = tape.empty({rows}, x.dtype()), rstd = tape.empty({rows}, x.dtype());
  kernels::layer_norm(input, other, gain.value(), bias.value(), epsilon, sum.reshape(flat), y.reshape(flat), mean,
                      rstd);
  const auto backward = [x, residual, gain, bias, sum, mean, rstd, flat](const Tensor& dsum_direct, const Tensor& dy) {
    Tape& own = x.tape();
    const int64_t leaves = own.leaves_for(flat[0]);
    const Tensor scratch = own.empty({leaves, 2, flat[1]}, DType::f64);
    const Tensor dsum = own.empty(flat, sum.dtype());
    const Sink dgain = gain.needs_gradient() ? gain.sink() : Sink{},
               dbias = bias.needs_gradient() ? bias.sink() : Sink{};
    kernels::layer_norm_backward(sum.reshape(flat), gain.value(), mean, rstd, contiguous(own.arena(), dy).reshape(flat),
                                 dsum_direct.defined() ? contiguous(own.arena(), dsum_direct).reshape(flat) : Tensor{},
                                 leaves, {dsum, false}, dgain, dbias, scratch);
    x.accumulate(dsum.reshape(x.shape()));
    if (residual.defined()) residual.accumulate(dsum.reshape(x.shape()));
  };
  if (!residual.defined()) {
    const Variable out = tape.record("layer_norm", {x, gain, bias}, y,
                                     [backward](const Tensor& dy) { backward(Tensor{}, dy); }, {mean, rstd});
    return {x, out};
  }
  return tape.record_many<2>("add_layer_norm", {x, residual, gain, bias}, {sum, y},
                             [backward](std::span<const Tensor> d) { backward(d[0], d[1]); }, {mean, rstd});
}

Variable layer_norm(Variable x, Variable gain, Variable bias, double epsilon) {
  return add_layer_norm(x, {}, gain, bias, epsilon)[1];
}

Variable layer_norm_composed(Variable x, Variable gain, Variable bias, double epsilon) {
  const Variable centred = subtract(x, mean(x, -1, true));
  const Variable deviation = sqrt(shift(mean(square(centred), -1, true), epsilon));
  return add(multiply(divide(centred, deviation), gain), bias);
}

namespace {
using Inputs = std::span<const Variable>;
}

AUDIT(layer_norm, "normalization") {
  const auto f = [](Tape&, Inputs x) { return layer_norm(x[0], x[1], x[2]); };
  const auto composed = [](Tape&, Inputs x) { return layer_norm_composed(x[0], x[1], x[2]); };
  const auto inputs = [&](const Shape& shape, double size) {
    const int64_t width = shape[-1];
    return std::vector<Tensor>{sample(arena, shape, size), sample(arena, {width}, 1, 8), sample(arena, {width}, 1, 9)};
  };
  std::vector<AuditCase> cases{{"ordinary", inputs({2, 3, 5}, 1), f, composed},
                               {"one column", inputs({3, 1}, 1), f, composed},
                               {"no rows", inputs({0, 4}, 1), f, composed},
                               {"tiny", inputs({2, 4}, 1e-2), f, composed},
                               {"large", inputs({2, 4}, 1e5), f, composed},
                               {"odd width", inputs({3, 67}, 1), f, composed},
                               {"many", inputs({97, 130}, 1), f, composed, true, true}};
  cases.push_back({"equal",
                   {full(arena, {2, 4}, 0.5, DType::f64), sample(arena, {4}, 1, 8), sample(arena, {4}, 1, 9)},
                   f,
                   composed});
  return cases;
}
AUDIT(add_layer_norm, "normalization") {
  const auto f = [](Tape&, Inputs x) {
    const auto [s, y] = add_layer_norm(x[0], x[1], x[2], x[3]);
    return add(multiply(s, s), y);
  };
  const auto composed = [](Tape&, Inputs x) {
    const Variable s = add(x[0], x[1]);
    return add(multiply(s, s), layer_norm_composed(s, x[2], x[3]));
  };
  const auto only_norm = [](Tape&, Inputs x) { return add_layer_norm(x[0], x[1], x[2], x[3])[1]; };
  const std::vector<Tensor> inputs{sample(arena, {2, 3, 5}), sample(arena, {2, 3, 5}, 1, 6), sample(arena, {5}, 1, 8),
                                   sample(arena, {5}, 1, 9)};
  const std::vector<Tensor> many{sample(arena, {97, 130}), sample(arena, {97, 130}, 1, 6), sample(arena, {130}, 1, 8),
                                 sample(arena, {130}, 1, 9)};
  return {{"ordinary", inputs, f, composed},
          {"sum unused", inputs, only_norm, {}},
          {"many", many, f, composed, true, true}};
}

}  // namespace sextant
