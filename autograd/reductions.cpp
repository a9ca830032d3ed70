#include "autograd/reductions.h"

#include "autograd/elementwise.h"
#include "autograd/formula.h"
#include "autograd/gradient_check.h"
#include "autograd/shaping.h"
#include "core/error.h"
#include "core/shape_format.h"

namespace sextant {

FORMULA("sum", "y = sum of all x", "dx = dy everywhere");
Variable sum(Variable x) {
  const Tensor y = x.tape().empty({}, x.dtype());
  double total = 0;
  for (int64_t i = 0, count = x.value().elements(); i < count; ++i) total += x.value().flat(i);
  y.fill(total);
  return x.tape().record(
      "sum", {x}, y, [x](const Tensor& dy) { x.accumulate(full(x.tape().arena(), x.shape(), dy.item(), x.dtype())); });
}

Variable mean(Variable x) {
  return scale(sum(x), 1.0 / static_cast<double>(std::max<int64_t>(1, x.value().elements())));
}

FORMULA("sum_dim", "y[.., ..] = sum over s of x[.., s, ..]", "dx[.., s, ..] = dy[.., ..] for every s");
Variable sum(Variable x, int dim, bool keep) {
  if (dim < 0) dim += x.value().rank();
  require(dim >= 0 && dim < x.value().rank(), "sum over dimension {} of a tensor of shape {}", dim, x.shape());
  Shape shape, kept = x.shape();
  kept.set(dim, 1);
  for (int d = 0; d < x.value().rank(); ++d)
    if (d != dim || keep) shape.append(d == dim ? 1 : x.size(d));
  const Tensor y = x.tape().empty(shape, x.dtype());
  const Tensor input = contiguous(x.tape().arena(), x.value());
  const int64_t outer = x.shape().prefix(dim), length = x.size(dim);
  const int64_t inner = y.elements() / std::max<int64_t>(1, outer);  // from y: x may have nothing along `dim`
  dispatch(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* in = input.data<T>();
    T* out = y.data<T>();
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < inner; ++i) {
        double total = 0;
        for (int64_t s = 0; s < length; ++s) total += static_cast<double>(in[(o * length + s) * inner + i]);
        out[o * inner + i] = static_cast<T>(total);
      }
  });
  return x.tape().record("sum_dim", {x}, y, [x, kept, dim](const Tensor& dy) {
    const Tensor row = contiguous(x.tape().arena(), dy).reshape(kept);
    const Tensor dx = x.tape().empty(x.shape(), x.dtype());
    for (int64_t s = 0; s < x.size(dim); ++s) dx.slice(dim, s, 1).copy_from(row);
    x.accumulate(dx);
  });
}

Variable mean(Variable x, int dim, bool keep) {
  return scale(sum(x, dim, keep), 1.0 / static_cast<double>(std::max<int64_t>(1, x.size(dim))));
}

FORMULA("cumulative_sum", "y[t] = initial + sum_{s <= t} x[s], in double", "dx[s] = sum_{t >= s} dy[t]");
Variable cumulative_sum(Variable x, int dim, const Tensor& initial) {
  if (dim < 0) dim += x.value().rank();
  require(dim >= 0 && dim < x.value().rank(), "cumulative_sum over dimension {} of a tensor of shape {}", dim,
          x.shape());
  Tape& tape = x.tape();
  const Tensor input = contiguous(tape.arena(), x.value());
  const Tensor y = tape.empty(x.shape(), DType::f64);
  const int64_t outer = x.shape().prefix(dim), length = x.size(dim);
  const int64_t inner = x.value().elements() / std::max<int64_t>(1, outer * length);
  if (initial.defined())
    require(initial.dtype() == DType::f64 && initial.elements() == outer * inner,
            "cumulative_sum: initial has {} elements of {}, must have {} of f64", initial.elements(),
            name_of(initial.dtype()), outer * inner);
  dispatch(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* in = input.data<T>();
    double* out = y.data<double>();
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < inner; ++i) {
        double total = initial.defined() ? initial.flat(o * inner + i) : 0.0;
        for (int64_t t = 0; t < length; ++t) {
          const int64_t at = (o * length + t) * inner + i;
          total += static_cast<double>(in[at]);
          out[at] = total;
        }
      }
  });
  return tape.record("cumulative_sum", {x}, y, [x, outer, length, inner](const Tensor& dy) {
    const Tensor upstream = contiguous(x.tape().arena(), dy);
    const Tensor dx = x.tape().empty(x.shape(), x.dtype());
    dispatch(x.dtype(), [&](auto type) {
      using T = decltype(type);
      const double* d = upstream.data<double>();
      T* out = dx.data<T>();
      for (int64_t o = 0; o < outer; ++o)
        for (int64_t i = 0; i < inner; ++i) {
          double total = 0;
          for (int64_t t = length - 1; t >= 0; --t) {
            const int64_t at = (o * length + t) * inner + i;
            total += d[at];
            out[at] = static_cast<T>(total);
          }
        }
    });
    x.accumulate(dx);
  });
}

namespace {
using Inputs = std::span<const Variable>;
}

AUDIT(sum, "reductions") {
  const auto f = [](Tape&, Inputs x) { return sum(square(x[0])); };
  return {{"ordinary", {sample(arena, {3, 4})}, f, {}},
          {"one element", {sample(arena, {})}, f, {}},
          {"empty", {sample(arena, {0})}, f, {}}};
}
AUDIT(mean, "reductions") {
  return {{"ordinary", {sample(arena, {3, 4})}, [](Tape&, Inputs x) { return mean(square(x[0])); }, {}},
          {"dimension", {sample(arena, {3, 4, 2})}, [](Tape&, Inputs x) { return square(mean(x[0], 1, true)); }, {}}};
}
AUDIT(sum_dim, "reductions") {
  return {{"middle", {sample(arena, {2, 3, 4})}, [](Tape&, Inputs x) { return square(sum(x[0], 1)); }, {}},
          {"first, kept", {sample(arena, {2, 3})}, [](Tape&, Inputs x) { return square(sum(x[0], 0, true)); }, {}},
          {"last", {sample(arena, {2, 3})}, [](Tape&, Inputs x) { return square(sum(x[0], -1)); }, {}},
          {"empty", {sample(arena, {2, 0})}, [](Tape&, Inputs x) { return sum(x[0], 1); }, {}}};
}
AUDIT(cumulative_sum, "reductions") {
  return {{"middle", {sample(arena, {2, 5, 3})}, [](Tape&, Inputs x) { return square(cumulative_sum(x[0], 1)); }, {}},
          {"one step", {sample(arena, {2, 1})}, [](Tape&, Inputs x) { return cumulative_sum(x[0], 1); }, {}}};
}

}  // namespace sextant
