#include "positional/rotate.h"

#include "autograd/elementwise.h"
#include "autograd/formula.h"
#include "autograd/gradient_check.h"
#include "autograd/shaping.h"
#include "positional/phase.h"

namespace sextant {

FORMULA("rotate", "y_n = R(n w) x_n, pair by pair", "dx_n = R(n w)^T dy_n = R(-n w) dy_n");
// [B, T, H, D]
Variable rotate(Tape& tape, Variable x, const Tensor& phasors, Pairing pairing) {
  const Tensor y = tape.empty(x.shape(), x.dtype());
  kernels::rotate({{{x.value(), {y, false}}}}, phasors, pairing, false);
  return tape.record("rotate", {x}, y, [x, phasors, pairing](const Tensor& dy) {
    kernels::rotate({{{dy, x.sink()}}}, phasors, pairing, true);
  });
}

void rotate(Tape& tape, Features& features, const Tensor& phasors, Pairing pairing) {
  const Variable q = features.q, k = features.k;
  const Tensor rotated_q = tape.empty(q.shape(), q.dtype()), rotated_k = tape.empty(k.shape(), k.dtype());
  kernels::rotate({{{q.value(), {rotated_q, false}}, {k.value(), {rotated_k, false}}}}, phasors, pairing, false);
  const auto rotated = tape.record_many<2>("rotate", {q, k}, {rotated_q, rotated_k},
                                           [q, k, phasors, pairing](std::span<const Tensor> dy) {
                                             kernels::Rotation jobs[2];
                                             size_t count = 0;
                                             if (q.needs_gradient()) jobs[count++] = {dy[0], q.sink()};
                                             if (k.needs_gradient()) jobs[count++] = {dy[1], k.sink()};
                                             kernels::rotate({jobs, count}, phasors, pairing, true);
                                           });
  features.q = rotated[0];
  features.k = rotated[1];
}

// The two coordinates of all pairs apart, [B, T, H, P] each, rotated by broadcast tables [T, 1, P] and put together
// again.
Variable rotate_composed(Tape& tape, Variable x, const Tensor& phasors, Pairing pairing) {
  const int64_t length = x.size(1), pairs = x.size(3) / 2;
  const bool interleaved = pairing == Pairing::interleaved;
  const int axis = interleaved ? 4 : 3;  // of [B, T, H, P, 2] or [B, T, H, 2, P]
  const Shape apart =
      interleaved ? Shape{x.size(0), length, x.size(2), pairs, 2} : Shape{x.size(0), length, x.size(2), 2, pairs};
  const Shape flat{x.size(0), length, x.size(2), pairs};
  const Variable both = reshape(contiguous(x), apart);
  const Variable x0 = reshape(contiguous(slice(both, axis, 0, 1)), flat),
                 x1 = reshape(contiguous(slice(both, axis, 1, 1)), flat);
  const Tensor table =
      contiguous(tape.arena(), phasors).reshape(interleaved ? Shape{length, 1, pairs, 2} : Shape{length, 1, 2, pairs});
  const Variable cosine = tape.constant(table.select(axis - 1, 0)), sine = tape.constant(table.select(axis - 1, 1));
  Shape part = apart;
  part.set(axis, 1);
  const Variable y0 = reshape(subtract(multiply(x0, cosine), multiply(x1, sine)), part);
  const Variable y1 = reshape(add(multiply(x1, cosine), multiply(x0, sine)), part);
  return reshape(concatenate(y0, y1, axis), x.shape());
}

namespace {

AuditCase rotate_case(Arena& arena, const char* label, const Shape& shape, Pairing pairing, int64_t first,
                      double scale) {
  const auto table = [&](DType dtype) {
    return phasor_table(arena, first, shape[1], geometric_frequencies({10000.0}, shape[3] / 2), pairing, dtype);
  };
  const auto rotated = [pairing](const Tensor& phasors) {
    // The two outputs weighted unequally: a swap of q and k would show.
    return [phasors, pairing](Tape& tape, std::span<const Variable> x) {
      Features features{x[0], x[1], {}};
      rotate(tape, features, phasors, pairing);
      return subtract(features.q, sextant::scale(features.k, 2.0));
    };
  };
  AuditCase result;
  result.label = label;
  result.inputs = {sample(arena, shape, scale, 3), sample(arena, shape, scale, 4)};
  const Tensor phasors = table(DType::f64);
  result.function = rotated(phasors);
  result.function_f32 = rotated(table(DType::f32));
  result.composed = [phasors, pairing](Tape& tape, std::span<const Variable> x) {
    return subtract(rotate_composed(tape, x[0], phasors, pairing),
                    sextant::scale(rotate_composed(tape, x[1], phasors, pairing), 2.0));
  };
  return result;
}

}  // namespace

AUDIT(rotate, "positional") {
  return {rotate_case(arena, "interleaved", {2, 5, 2, 16}, Pairing::interleaved, 0, 1.0),
          rotate_case(arena, "half pairing", {2, 5, 2, 34}, Pairing::half, 0, 1.0),
          rotate_case(arena, "one pair, one token", {1, 1, 1, 2}, Pairing::interleaved, 1048575, 1.0),
          rotate_case(arena, "far positions, huge features", {1, 3, 1, 6}, Pairing::half, 1048570, 1e100),
          rotate_case(arena, "zero features", {1, 2, 1, 4}, Pairing::interleaved, 3, 0.0)};
}

}  // namespace sextant
