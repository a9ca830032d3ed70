#include "positional/accumulated_rotation.h"

#include "autograd/elementwise.h"
#include "autograd/formula.h"
#include "autograd/gradient_check.h"
#include "autograd/reductions.h"
#include "autograd/shaping.h"
#include "core/angles.h"
#include "core/rotation.h"

namespace sextant {

FORMULA("accumulated_angles", "Phi_i = initial + sum_{t <= i} theta_t, in double", "dtheta_t = sum_{i >= t} dPhi_i");
Variable accumulated_angles(Variable steps, const Tensor& initial) {
  Tape& tape = steps.tape();
  const Tensor angles = tape.empty(steps.shape(), DType::f64);
  kernels::accumulate_angles(contiguous(tape.arena(), steps.value()), initial, angles);
  return tape.record("accumulated_angles", {steps}, angles, [steps](const Tensor& dangles) {
    Arena& arena = steps.tape().arena();
    const Tensor dsteps = empty(arena, steps.shape(), steps.dtype());
    kernels::accumulate_angles_backward(contiguous(arena, dangles), {dsteps, false});
    steps.accumulate(dsteps);
  });
}

Variable accumulated_angles_composed(Variable steps, const Tensor& initial) {
  Tensor flat = initial;
  if (initial.defined()) flat = initial.reshape({steps.size(0), 1, steps.size(2), steps.size(3)});
  return cumulative_sum(steps, 1, flat);
}

AccumulatedRotation accumulated_rotation(Variable angles, DType dtype) {
  const Shape& shape = angles.shape();
  const Tensor phasors = angles.tape().empty({shape[0], shape[1], shape[2], 2 * shape[3]}, dtype);
  kernels::phasors_of(angles.value(), phasors);
  return {angles, phasors};
}

namespace {

FORMULA("rotate_accumulated", "y = R(Phi) x for each of q, k and perhaps v",
        "dx = R(-Phi) dy,  dPhi = sum over them of dy^T R(pi/2) y");
template <size_t N>
std::array<Variable, N> rotate_all(const AccumulatedRotation& rotation, const std::array<Variable, N>& x) {
  Tape& tape = rotation.angles.tape();
  std::array<Tensor, N> y;
  std::array<kernels::Rotation, N> jobs;
  for (size_t i = 0; i < N; ++i) {
    y[i] = tape.empty(x[i].shape(), x[i].dtype());
    jobs[i] = {x[i].value(), {y[i], false}};
  }
  kernels::rotate(jobs, rotation.phasors, Pairing::interleaved, false);
  const auto backward = [rotation, x, y](std::span<const Tensor> dy) {
    std::array<kernels::Rotation, N> back;
    std::array<kernels::Turned, N> turned;
    size_t count = 0;
    for (size_t i = 0; i < N; ++i) {
      if (x[i].needs_gradient()) back[count++] = {dy[i], x[i].sink()};
      turned[i] = {y[i], dy[i]};
    }
    kernels::rotate({back.data(), count}, rotation.phasors, Pairing::interleaved, true);
    if (rotation.angles.needs_gradient()) kernels::turn_gradient(turned, 1.0, rotation.angles.sink());
  };
  if constexpr (N == 2) {
    return tape.record_many<N>("rotate_accumulated", {x[0], x[1], rotation.angles}, y, backward, {rotation.phasors});
  } else {
    return tape.record_many<N>("rotate_accumulated", {x[0], x[1], x[2], rotation.angles}, y, backward,
                               {rotation.phasors});
  }
}

}  // namespace

void rotate(const AccumulatedRotation& rotation, Features& features, bool values) {
  if (values) {
    const auto [q, k, v] = rotate_all<3>(rotation, {features.q, features.k, features.v});
    features = {q, k, v};
  } else {
    const auto [q, k] = rotate_all<2>(rotation, {features.q, features.k});
    features = {q, k, features.v};
  }
}

FORMULA("rotate_back", "y = R(-Phi) x", "dx = R(Phi) dy,  dPhi = -dy^T R(pi/2) y");
Variable rotate_back(const AccumulatedRotation& rotation, Variable x) {
  Tape& tape = x.tape();
  const Tensor y = tape.empty(x.shape(), x.dtype());
  kernels::rotate({{{x.value(), {y, false}}}}, rotation.phasors, Pairing::interleaved, true);
  return tape.record("rotate_back", {x, rotation.angles}, y, [rotation, x, y](const Tensor& dy) {
    if (x.needs_gradient()) kernels::rotate({{{dy, x.sink()}}}, rotation.phasors, Pairing::interleaved, false);
    if (rotation.angles.needs_gradient()) kernels::turn_gradient({{{y, dy}}}, -1.0, rotation.angles.sink());
  });
}

// ---- composed -----------------------------------------------------------------------------------------------------

namespace {

Variable rotate_one_composed(const AccumulatedRotation& rotation, Variable x, double sign) {
  const Shape& shape = rotation.angles.shape();
  const Variable cosine = convert(cos(rotation.angles), x.dtype());
  const Variable sine = convert(scale(sin(rotation.angles), sign), x.dtype());
  const Variable pairs = reshape(contiguous(x), {shape[0], shape[1], shape[2], shape[3], 2});
  const Variable x0 = reshape(contiguous(slice(pairs, 4, 0, 1)), shape),
                 x1 = reshape(contiguous(slice(pairs, 4, 1, 1)), shape);
  const Variable y0 = subtract(multiply(x0, cosine), multiply(x1, sine)),
                 y1 = add(multiply(x1, cosine), multiply(x0, sine));
  const Shape apart{shape[0], shape[1], shape[2], shape[3], 1};
  return reshape(concatenate(reshape(y0, apart), reshape(y1, apart), 4), x.shape());
}

}  // namespace

void rotate_composed(const AccumulatedRotation& rotation, Features& features, bool values) {
  features.q = rotate_one_composed(rotation, features.q, 1.0);
  features.k = rotate_one_composed(rotation, features.k, 1.0);
  if (values) features.v = rotate_one_composed(rotation, features.v, 1.0);
}

Variable rotate_back_composed(const AccumulatedRotation& rotation, Variable x) {
  return rotate_one_composed(rotation, x, -1.0);
}

// ---- audit --------------------------------------------------------------------------------------------------------

namespace {

using Inputs = std::span<const Variable>;

// q, k, v and steps; all three outputs count, unequally.
Variable turned_sum(Inputs x, bool composed, bool values) {
  const Variable angles = composed ? accumulated_angles_composed(x[3], {}) : accumulated_angles(x[3], {});
  const AccumulatedRotation rotation = accumulated_rotation(angles, x[0].dtype());
  Features features{x[0], x[1], x[2]};
  (composed ? rotate_composed : rotate)(rotation, features, values);
  Variable sum = add(subtract(features.q, scale(features.k, 2.0)), scale(features.v, 0.5));
  if (values) sum = add(sum, (composed ? rotate_back_composed : rotate_back)(rotation, square(features.v)));
  return sum;
}

AuditCase turned_case(Arena& arena, const char* label, const Shape& shape, double step, bool values,
                      double feature = 1.0) {
  const Shape angles{shape[0], shape[1], shape[2], shape[3] / 2};
  AuditCase result;
  result.label = label;
  result.inputs = {sample(arena, shape, feature, 3), sample(arena, shape, feature, 4), sample(arena, shape, feature, 5),
                   sample(arena, angles, step, 6)};
  result.function = [values](Tape&, Inputs x) { return turned_sum(x, false, values); };
  result.composed = [values](Tape&, Inputs x) { return turned_sum(x, true, values); };
  return result;
}

}  // namespace

AUDIT(accumulated_rotation, "positional") {
  AuditCase turns = turned_case(arena, "steps of many turns", {1, 6, 1, 4}, 40.0, true);
  turns.step = 1e-3;  // one that grows with the entries is too coarse for a cosine
  AuditCase back{"back alone", {sample(arena, {2, 5, 2, 6}, 1, 5), sample(arena, {2, 5, 2, 3}, 1, 6)}, {}, {}};
  const auto back_alone = [](bool composed) {
    return [composed](Tape&, Inputs x) {
      const Variable angles = composed ? accumulated_angles_composed(x[1], {}) : accumulated_angles(x[1], {});
      return (composed ? rotate_back_composed : rotate_back)(accumulated_rotation(angles, x[0].dtype()), x[0]);
    };
  };
  back.function = back_alone(false);
  back.composed = back_alone(true);
  return {turned_case(arena, "q, k", {2, 5, 2, 6}, 1.0, false),
          turned_case(arena, "q, k, v and back", {2, 5, 2, 6}, 1.0, true),
          back,
          turned_case(arena, "one token, one pair", {1, 1, 1, 2}, 1.0, true),
          turned_case(arena, "wider than a vector", {1, 3, 2, 36}, 0.3, true),
          turns,
          turned_case(arena, "zero steps", {1, 4, 1, 4}, 0.0, true),
          turned_case(arena, "huge features", {1, 4, 1, 4}, 1.0, false, 1e100)};
}

AUDIT(accumulated_angles, "positional") {
  const auto f = [](Tape&, Inputs x) { return cos(accumulated_angles(x[0], {})); };
  const auto composed = [](Tape&, Inputs x) { return cos(accumulated_angles_composed(x[0], {})); };
  return {{"ordinary", {sample(arena, {2, 7, 3, 4})}, f, composed},
          {"more than a group of lanes", {sample(arena, {1, 3, 2, 45})}, f, composed},
          {"one", {sample(arena, {1, 1, 1, 1})}, f, composed}};
}

}  // namespace sextant
