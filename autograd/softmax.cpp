#include "autograd/softmax.h"

#include <cmath>
#include <limits>

#include "autograd/elementwise.h"
#include "autograd/formula.h"
#include "autograd/gradient_check.h"
#include "autograd/reductions.h"
#include "autograd/shaping.h"
#include "core/error.h"
#include "core/shape_format.h"

namespace sextant {

FORMULA("softmax", "y_i = e^{x_i - max} / sum_k e^{x_k - max}, row by row", "dx = y (dy - <dy, y>)");
Variable softmax(Variable x) {
  require(x.value().rank() >= 1, "softmax of a scalar");
  Tape& tape = x.tape();
  const Tensor input = contiguous(tape.arena(), x.value());
  const Tensor y = tape.empty(x.shape(), x.dtype());
  const int64_t width = x.size(-1), rows = x.shape().rows();
  dispatch(x.dtype(), [&](auto type) {
    using T = decltype(type);
    for (int64_t row = 0; row < rows; ++row) {
      const T* in = input.data<T>() + row * width;
      T* out = y.data<T>() + row * width;
      T most = -std::numeric_limits<T>::infinity();
      for (int64_t i = 0; i < width; ++i) most = std::max(most, in[i]);
      if (most == -std::numeric_limits<T>::infinity()) {  // nothing to choose from
        std::fill(out, out + width, T{0});
        continue;
      }
      double total = 0;
      for (int64_t i = 0; i < width; ++i) total += static_cast<double>(out[i] = std::exp(in[i] - most));
      for (int64_t i = 0; i < width; ++i) out[i] = static_cast<T>(static_cast<double>(out[i]) / total);
    }
  });
  return tape.record("softmax", {x}, y, [x, y, width, rows](const Tensor& dy) {
    const Tensor upstream = contiguous(x.tape().arena(), dy);
    const Tensor dx = x.tape().empty(x.shape(), x.dtype());
    dispatch(x.dtype(), [&](auto type) {
      using T = decltype(type);
      for (int64_t row = 0; row < rows; ++row) {
        const T *out = y.data<T>() + row * width, *d = upstream.data<T>() + row * width;
        T* result = dx.data<T>() + row * width;
        double inner = 0;
        for (int64_t i = 0; i < width; ++i) inner += static_cast<double>(d[i]) * static_cast<double>(out[i]);
        for (int64_t i = 0; i < width; ++i) result[i] = out[i] * (d[i] - static_cast<T>(inner));
      }
    });
    x.accumulate(dx);
  });
}

FORMULA("cross_entropy", "loss = mean over counted rows of logsumexp(x) - x[target]",
        "dx = dloss (softmax(x) - onehot(target)) / counted rows");
Variable cross_entropy(Variable logits, std::span<const int32_t> targets, BatchPart* part) {
  Tape& tape = logits.tape();
  const int64_t rows = logits.shape().rows(), vocabulary = logits.size(-1);
  require(static_cast<int64_t>(targets.size()) == rows, "cross_entropy of logits {} with {} targets, must be one a row",
          logits.shape(), targets.size());
  const Tensor flat = contiguous(tape.arena(), logits.value()).reshape({rows, vocabulary});
  const Tensor losses = tape.empty({rows}, DType::f64), lse = tape.empty({rows}, logits.dtype());
  auto* kept = static_cast<int32_t*>(tape.arena().allocate(targets.size_bytes()));
  std::copy(targets.begin(), targets.end(), kept);
  const std::span<const int32_t> own(kept, targets.size());
  kernels::cross_entropy(flat, own, losses, lse);
  // By leaves, along the tree: see core/kernels.h.
  const Tensor total = tape.zeros({1}, DType::f64);
  kernels::column_sum(losses.reshape({rows, 1}), tape.leaves_for(rows), {total, false});
  const int64_t own_count = rows - std::count(own.begin(), own.end(), -1);
  const double counted = static_cast<double>(std::max<int64_t>(1, part == nullptr ? own_count : part->counted));
  if (part != nullptr) part->nats = total.item();
  const Tensor loss = tape.empty({}, logits.dtype());
  loss.fill(total.item() / counted);
  return tape.record("cross_entropy", {logits}, loss,
                     [logits, own, flat, lse, counted](const Tensor& dloss) {
                       Tape& tape_ = logits.tape();
                       const Tensor dx = tape_.empty(flat.shape(), flat.dtype());
                       kernels::cross_entropy_backward(flat, own, lse, dloss.item() / counted, {dx, false});
                       logits.accumulate(dx.reshape(logits.shape()));
                     },
                     {lse});
}

Variable cross_entropy_composed(Variable logits, std::span<const int32_t> targets, BatchPart* part) {
  Tape& tape = logits.tape();
  const int64_t rows = logits.shape().rows(), vocabulary = logits.size(-1);
  const Variable flat = reshape(contiguous(logits), {rows, vocabulary});
  // Subtracting the row's maximum changes no gradient, since it cancels between the two terms.
  const Tensor most = tape.empty({rows, 1}, logits.dtype());
  const Tensor onehot = tape.zeros({rows, vocabulary}, logits.dtype());
  double counted = 0;
  for (int64_t row = 0; row < rows; ++row) {
    double maximum = -std::numeric_limits<double>::infinity();
    for (int64_t v = 0; v < vocabulary; ++v) maximum = std::max(maximum, flat.value().flat(row * vocabulary + v));
    most.set_flat(row, maximum);
    const int32_t target = targets[static_cast<size_t>(row)];
    if (target < 0) continue;
    onehot.set_flat(row * vocabulary + target, 1.0);
    ++counted;
  }
  const Variable centred = subtract(flat, tape.constant(most));
  const Variable lse = log(sum(exp(centred), 1, true));
  const Variable picked = multiply(subtract(lse, centred), tape.constant(onehot));
  const Variable total = sum(picked);
  if (part != nullptr) {
    counted = static_cast<double>(part->counted);
    part->nats = total.value().item();
  }
  return scale(total, 1.0 / std::max(1.0, counted));
}

namespace {
using Inputs = std::span<const Variable>;
}

AUDIT(softmax, "softmax") {
  const auto f = [](Tape&, Inputs x) { return softmax(x[0]); };
  return {{"ordinary", {sample(arena, {3, 5})}, f, {}},
          {"one column", {sample(arena, {3, 1})}, f, {}},
          {"equal", {full(arena, {2, 4}, 3.0, DType::f64)}, f, {}},
          {"large", {sample(arena, {2, 4}, 300)}, f, {}},
          {"many", {sample(arena, {97, 130}, 3)}, f, {}, true, true},
          {"no rows", {sample(arena, {0, 4})}, f, {}}};
}
AUDIT(cross_entropy, "softmax") {
  static const std::vector<int32_t> targets{1, 0, -1, 4, 4, 2};
  const auto f = [](Tape&, Inputs x) {
    return cross_entropy(x[0], std::span(targets).first(static_cast<size_t>(x[0].shape().rows())));
  };
  const auto composed = [](Tape&, Inputs x) {
    return cross_entropy_composed(x[0], std::span(targets).first(static_cast<size_t>(x[0].shape().rows())));
  };
  return {{"ordinary", {sample(arena, {2, 3, 5})}, f, composed},
          {"one row", {sample(arena, {1, 2})}, f, composed},
          {"large", {sample(arena, {6, 5}, 50)}, f, composed},
          {"equal", {full(arena, {6, 5}, 2.0, DType::f64)}, f, composed},
          {"odd width", {sample(arena, {6, 67})}, f, composed},
          {"many", {sample(arena, {6, 1030}, 3)}, f, composed, true, true}};
}

}  // namespace sextant
