#include "autograd/products.h"

#include "autograd/elementwise.h"
#include "autograd/formula.h"
#include "autograd/gradient_check.h"
#include "autograd/shaping.h"
#include "core/error.h"
#include "core/shape_format.h"

namespace sextant {

FORMULA("matmul", "c = a b", "da = dc b^T,  db = a^T dc");
Variable matmul(Variable a, Variable b) {
  const int rank = a.value().rank();
  require(rank >= 2 && b.value().rank() == rank && a.size(-1) == b.size(-2) && a.dtype() == b.dtype(),
          "matmul of shapes {} and {}, must be [.., M, K] and [.., K, N] of one dtype", a.shape(), b.shape());
  Shape shape = a.shape();
  shape.set(-1, b.size(-1));
  for (int dim = 0; dim < rank - 2; ++dim)
    require(a.size(dim) == b.size(dim), "matmul of shapes {} and {}: dimension {} differs", a.shape(), b.shape(), dim);
  const Tensor c = a.tape().empty(shape, a.dtype());
  kernels::matmul(a.value(), b.value(), {c, false});
  const Variable result = a.tape().record("matmul", {a, b}, c, [a, b](const Tensor& dc) {
    if (a.needs_gradient()) kernels::matmul(dc, b.value().transpose(-1, -2), a.sink());
    if (b.needs_gradient()) kernels::matmul(a.value().transpose(-1, -2), dc, b.sink());
  });
  const double flops = 2.0 * static_cast<double>(c.elements() * a.size(-1));
  a.tape().add_flops(flops, 2 * flops);
  return result;
}

namespace {

// The last dimension of x is what the weight contracts; everything before it is rows.
struct LinearShape {
  int64_t rows, inputs, outputs;
  Shape output;
};
LinearShape linear_shape(Variable x, Variable weight, Variable bias) {
  require(weight.value().rank() == 2 && x.value().rank() >= 1 && x.size(-1) == weight.size(1) &&
              x.dtype() == weight.dtype(),
          "linear of x {} ({}) with weight {} ({}), must be [.., K] and [M, K] of one dtype", x.shape(),
          name_of(x.dtype()), weight.shape(), name_of(weight.dtype()));
  LinearShape shape{x.shape().rows(), weight.size(1), weight.size(0), x.shape()};
  shape.output.set(-1, shape.outputs);
  if (bias.defined()) require_shape(bias.value(), {shape.outputs}, "the bias of linear");
  return shape;
}

// What linear and linear_gelu share: dy [N, M] is the gradient of x W^T + bias.
void linear_backward(Variable x, Variable weight, Variable bias, const Tensor& input, const Tensor& dy) {
  Tape& tape = x.tape();
  const int64_t rows = dy.size(0);
  const int64_t leaves = tape.leaves_for(rows);
  if (x.needs_gradient()) {
    const Sink dx = x.sink();
    if (dx.tensor.contiguous()) {
      kernels::linear_backward_input(dy, weight.value(), {dx.tensor.reshape({rows, weight.size(1)}), dx.accumulate});
    } else {
      const Tensor own = tape.empty({rows, weight.size(1)}, dy.dtype());
      if (dx.accumulate) own.reshape(x.shape()).copy_from(dx.tensor);
      kernels::linear_backward_input(dy, weight.value(), {own, dx.accumulate});
      dx.tensor.copy_from(own.reshape(x.shape()));
    }
  }
  if (weight.needs_gradient()) kernels::linear_backward_weight(dy, input, leaves, weight.sink());
  if (bias.defined() && bias.needs_gradient()) kernels::column_sum(dy, leaves, bias.sink());
}

Tensor value_or_none(Variable x) {
  return x.defined() ? x.value() : Tensor{};
}

}  // namespace

FORMULA("linear", "y = x W^T + bias", "dx = dy W,  dW = dy^T x,  dbias = sum over rows of dy");
Variable linear(Variable x, Variable weight, Variable bias) {
  const LinearShape shape = linear_shape(x, weight, bias);
  Tape& tape = x.tape();
  const Tensor input = contiguous(tape.arena(), x.value()).reshape({shape.rows, shape.inputs});
  const Tensor y = tape.empty(shape.output, x.dtype());
  kernels::linear(input, weight.value(), value_or_none(bias), y.reshape({shape.rows, shape.outputs}));
  const Variable result = tape.record("linear", {x, weight, bias}, y, [x, weight, bias, input](const Tensor& dy) {
    linear_backward(x, weight, bias, input, contiguous(x.tape().arena(), dy).reshape({input.size(0), weight.size(0)}));
  });
  const double flops = 2.0 * static_cast<double>(shape.rows * shape.inputs * shape.outputs);
  tape.add_flops(flops, 2 * flops);
  return result;
}

Variable linear_composed(Variable x, Variable weight, Variable bias) {
  const LinearShape shape = linear_shape(x, weight, bias);
  const Variable product = matmul(reshape(contiguous(x), {shape.rows, shape.inputs}), transpose(weight, 0, 1));
  return reshape(bias.defined() ? add(product, bias) : product, shape.output);
}

FORMULA("linear_gelu", "a = gelu(u),  u = x W^T + bias",
        "du = da gelu'(u);  dx = du W,  dW = du^T x,  dbias = sum over rows of du");
Variable linear_gelu(Variable x, Variable weight, Variable bias) {
  const LinearShape shape = linear_shape(x, weight, bias);
  Tape& tape = x.tape();
  const Tensor input = contiguous(tape.arena(), x.value()).reshape({shape.rows, shape.inputs});
  const Tensor u = tape.empty({shape.rows, shape.outputs}, x.dtype()), activated = tape.empty(shape.output, x.dtype());
  kernels::linear(input, weight.value(), value_or_none(bias), u, activated.reshape({shape.rows, shape.outputs}));
  const Variable result =
      tape.record("linear_gelu", {x, weight, bias}, activated,
                  [x, weight, bias, input, u](const Tensor& da) {
                    Tape& own = x.tape();
                    const Tensor du = own.empty(u.shape(), u.dtype());
                    kernels::gelu_backward(u, contiguous(own.arena(), da).reshape(u.shape()), {du, false});
                    linear_backward(x, weight, bias, input, du);
                  },
                  {u});
  const double flops = 2.0 * static_cast<double>(shape.rows * shape.inputs * shape.outputs);
  tape.add_flops(flops, 2 * flops);
  return result;
}

Variable linear_gelu_composed(Variable x, Variable weight, Variable bias) {
  return gelu_composed(linear_composed(x, weight, bias));
}

namespace {

using Inputs = std::span<const Variable>;

std::vector<AuditCase> linear_cases(Arena& arena, Variable (*fused)(Variable, Variable, Variable),
                                    Variable (*composed)(Variable, Variable, Variable)) {
  const auto with = [fused](Tape&, Inputs x) { return fused(x[0], x[1], x[2]); };
  const auto without = [fused](Tape&, Inputs x) { return fused(x[0], x[1], {}); };
  const auto twin = [composed](Tape&, Inputs x) { return composed(x[0], x[1], x[2]); };
  const auto twin_without = [composed](Tape&, Inputs x) { return composed(x[0], x[1], {}); };
  const auto twice = [fused](Tape&, Inputs x) { return fused(fused(x[0], x[1], {}), x[1], {}); };
  const auto leaves = [fused](Tape& tape, Inputs x) {
    tape.set_leaves(3);
    return fused(x[0], x[1], x[2]);
  };
  return {
      {"ordinary", {sample(arena, {2, 3, 5}), sample(arena, {4, 5}, 1, 8), sample(arena, {4}, 1, 9)}, with, twin},
      {"no bias", {sample(arena, {3, 5}), sample(arena, {4, 5}, 1, 8)}, without, twin_without},
      {"one element", {sample(arena, {1, 1}), sample(arena, {1, 1}, 1, 8), sample(arena, {1}, 1, 9)}, with, twin},
      {"weight used twice", {sample(arena, {3, 4}), sample(arena, {4, 4}, 1, 8)}, twice, {}},
      {"leaves", {sample(arena, {6, 5}), sample(arena, {4, 5}, 1, 8), sample(arena, {4}, 1, 9)}, leaves, twin},
      {"zero", {zeros(arena, {2, 3}, DType::f64), sample(arena, {4, 3}, 1, 8), sample(arena, {4}, 1, 9)}, with, twin},
      {"no rows", {sample(arena, {0, 3}), sample(arena, {4, 3}, 1, 8), sample(arena, {4}, 1, 9)}, with, twin},
      {"wider than a tile",
       {sample(arena, {7, 70}, 0.3), sample(arena, {67, 70}, 0.3, 8), sample(arena, {67}, 1, 9)},
       with,
       twin},
      {"many",
       {sample(arena, {129, 96}, 0.3), sample(arena, {160, 96}, 0.3, 8), sample(arena, {160}, 1, 9)},
       with,
       twin,
       true,
       true}};
}

}  // namespace

AUDIT(matmul, "products") {
  const auto f = [](Tape&, Inputs x) { return matmul(x[0], x[1]); };
  const auto transposed = [](Tape&, Inputs x) { return matmul(transpose(x[0], 0, 1), transpose(x[1], 0, 1)); };
  const auto square = [](Tape&, Inputs x) { return matmul(x[0], x[0]); };
  return {{"ordinary", {sample(arena, {3, 5}), sample(arena, {5, 4}, 1, 8)}, f, {}},
          {"batch", {sample(arena, {2, 2, 3, 5}), sample(arena, {2, 2, 5, 4}, 1, 8)}, f, {}},
          {"transposed", {sample(arena, {5, 3}), sample(arena, {4, 5}, 1, 8)}, transposed, {}},
          {"used twice", {sample(arena, {3, 3})}, square, {}},
          {"one element", {sample(arena, {1, 1}), sample(arena, {1, 1}, 1, 8)}, f, {}},
          {"nothing to sum", {sample(arena, {2, 0}), sample(arena, {0, 3}, 1, 8)}, f, {}},
          {"large", {sample(arena, {3, 5}, 1e4), sample(arena, {5, 4}, 1e4, 8)}, f, {}},
          {"many", {sample(arena, {2, 65, 96}), sample(arena, {2, 96, 130}, 1, 8)}, f, {}, true, true}};
}
AUDIT(linear, "products") {
  return linear_cases(arena, linear, linear_composed);
}
AUDIT(linear_gelu, "products") {
  return linear_cases(arena, linear_gelu, linear_gelu_composed);
}

}  // namespace sextant
