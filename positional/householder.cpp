// kind=householder: orthogonal steps that do not commute (position-space.md section 7).
//
//   M_t = I - 2 u_t u_t^T,  u_t = w_t / |w_t|,  w_t = W x_t + c,     C_t = M_t ... M_1,     M_i ... M_{j+1} = C_i C_j^T
//
// so q~_i = C_i^T q_i meets k~_j = C_j^T k_j, and values travel as C_j^T v_j and come back by C_i. W starts as N(0,
// 0.02^2), c as 0: only the direction of w matters to the step.
#include "positional/householder.h"

#include "autograd/elementwise.h"
#include "autograd/formula.h"
#include "autograd/gradient_check.h"
#include "autograd/products.h"
#include "autograd/reductions.h"
#include "autograd/shaping.h"
#include "core/error.h"
#include "core/reflections.h"
#include "positional/projection.h"
#include "positional/transport.h"

namespace sextant {

AccumulatedReflections accumulated_reflections(Variable w, const Tensor& before, int64_t first) {
  Tape& tape = w.tape();
  const Tensor anchors = tape.empty(kernels::reflection_anchors_shape(w.shape()), DType::f64);
  kernels::accumulate_reflections(w.value(), before, first, anchors, tape.arena());
  return {w, anchors};
}

namespace {

FORMULA("reflect", "y_t = C_t^T x_t (C_t x_t on the way back),  C_t = M_t C_{t-1},  M_t = I - 2 w_t w_t^T / |w_t|^2",
        "dx_t = C_t dy_t;  with P_t = sum of x_t dy_t^T:  dC_t = P_t + M_{t+1} dC_{t+1},  dM_t = dC_t C_{t-1}^T, which "
        "gives dw_t");
// For each of N tensors; with P_t = sum over them of x_t dy_t^T the gradients of C_t
// alone (dy_t x_t^T with `back`), dC_t = P_t + M_{t+1} dC_{t+1}, and dM_t = dC_t C_{t-1}^T gives dw_t. Derived in
// core/simd/reflections.cpp.
template <size_t N>
std::array<Variable, N> reflect_all(const AccumulatedReflections& reflections, const std::array<Variable, N>& x,
                                    bool back) {
  const Variable w = reflections.w;
  const Tensor anchors = reflections.anchors;
  Tape& tape = w.tape();
  std::array<Tensor, N> y;
  std::array<kernels::Reflected, N> jobs;
  for (size_t i = 0; i < N; ++i) {
    y[i] = tape.empty(x[i].shape(), x[i].dtype());
    jobs[i] = {x[i].value(), {y[i], false}};
  }
  kernels::reflect(w.value(), anchors, jobs, back, tape.arena());
  const auto backward = [w, anchors, x, back](std::span<const Tensor> dy) {
    std::array<kernels::ReflectedGradient, N> parts;
    for (size_t i = 0; i < N; ++i) parts[i] = {x[i].value(), dy[i], x[i].needs_gradient() ? x[i].sink() : Sink{}};
    kernels::reflect_backward(w.value(), anchors, parts, back, w.needs_gradient() ? w.sink() : Sink{},
                              w.tape().arena());
  };
  if constexpr (N == 1) {
    return tape.record_many<N>("reflect", {x[0], w}, y, backward, {anchors});
  } else if constexpr (N == 2) {
    return tape.record_many<N>("reflect", {x[0], x[1], w}, y, backward, {anchors});
  } else {
    return tape.record_many<N>("reflect", {x[0], x[1], x[2], w}, y, backward, {anchors});
  }
}

}  // namespace

void reflect(const AccumulatedReflections& reflections, Features& features, bool values) {
  if (values) {
    const auto [q, k, v] = reflect_all<3>(reflections, {features.q, features.k, features.v}, false);
    features = {q, k, v};
  } else {
    const auto [q, k] = reflect_all<2>(reflections, {features.q, features.k}, false);
    features = {q, k, features.v};
  }
}

Variable reflect_back(const AccumulatedReflections& reflections, Variable x) {
  return reflect_all<1>(reflections, {x}, true)[0];
}

// ---- composed -----------------------------------------------------------------------------------------------------

namespace {

// C_0 .. C_{T-1} [B, H, D, D] each, by C_t = C_{t-1} - 2 w (w^T C_{t-1}) / (w^T w); f(t, C_t) in order.
template <class F>
void for_products(Variable w, F&& f) {
  Tape& tape = w.tape();
  const int64_t batch = w.size(0), length = w.size(1), heads = w.size(2), dim = w.size(3);
  const Tensor identity = tape.zeros({batch, heads, dim, dim}, w.dtype());
  for (int64_t n = 0; n < batch * heads; ++n)
    for (int64_t i = 0; i < dim; ++i) identity.set_flat((n * dim + i) * dim + i, 1.0);
  Variable product = tape.constant(identity, "identity");
  for (int64_t t = 0; t < length; ++t) {
    const Variable column = reshape(contiguous(slice(w, 1, t, 1)), {batch, heads, dim, 1});
    const Variable row = transpose(column, 2, 3);
    const Variable along = divide(matmul(row, product), matmul(row, column));  // [B, H, 1, D]
    product = subtract(product, scale(matmul(column, along), 2.0));
    f(t, product);
  }
}

Variable rows_at(Variable x, int64_t t) {
  return reshape(contiguous(slice(x, 1, t, 1)), {x.size(0), x.size(2), 1, x.size(3)});
}

// Appends y [B, H, 1, D] as token t of `all` [B, t, H, D].
void append_token(Variable& all, Variable y) {
  const Variable token = reshape(y, {y.size(0), 1, y.size(1), y.size(3)});
  all = all.defined() ? concatenate(all, token, 1) : token;
}

}  // namespace

void reflect_composed(Variable w, Features& features, bool values) {
  Variable q, k, v;
  for_products(w, [&](int64_t t, Variable product) {  // as rows: (C^T x)^T = x^T C
    append_token(q, matmul(rows_at(features.q, t), product));
    append_token(k, matmul(rows_at(features.k, t), product));
    if (values) append_token(v, matmul(rows_at(features.v, t), product));
  });
  features = {q, k, values ? v : features.v};
}

Variable reflect_back_composed(Variable w, Variable x) {
  Variable y;
  for_products(w,
               [&](int64_t t, Variable product) { append_token(y, matmul(rows_at(x, t), transpose(product, 2, 3))); });
  return y;
}

// ---- the term -----------------------------------------------------------------------------------------------------

namespace {

struct ReflectionState : TermState {
  Arena arena;
  Tensor product;  // C after the last token seen, [B, H, D, D rounded up]
  bool started = false;
};

class HouseholderTransport : public Term {
 public:
  HouseholderTransport(const PositionSettings& settings, bool values)
      : settings_(settings),
        values_(values),
        direction_(settings, "transport", "weight", "bias", settings.heads * settings.head_dim, 0.02) {}

  std::vector<Parameter*> parameters() override { return {&direction_.weight, &direction_.bias}; }

  void transform(const PositionCall& call, Features& features) override {
    const Variable w = reshape(direction_(call), {call.batch, call.length, settings_.heads, settings_.head_dim});
    auto* state = static_cast<ReflectionState*>(call.state);
    if (call.composed) {
      require(
          state == nullptr,
          "position: the composed form of transport(kind=householder) goes through whole sequences, without a cache");
      reflections_ = {w, {}};
      reflect_composed(w, features, values_);
      return;
    }
    reflections_ =
        accumulated_reflections(w, state != nullptr && state->started ? state->product : Tensor{}, call.first);
    reflect(reflections_, features, values_);
    if (state != nullptr) {
      state->product.copy_from(reflections_.anchors.select(2, reflections_.anchors.size(2) - 1));
      state->started = true;
    }
  }

  Variable restore(const PositionCall& call, Variable output) override {
    if (!values_) return output;
    return call.composed ? reflect_back_composed(reflections_.w, output) : reflect_back(reflections_, output);
  }

  std::unique_ptr<TermState> new_state(int64_t batch) const override {
    auto state = std::make_unique<ReflectionState>();
    const Shape anchors = kernels::reflection_anchors_shape({batch, 1, settings_.heads, settings_.head_dim});
    state->product = empty(state->arena, {batch, settings_.heads, anchors[3], anchors[4]}, DType::f64);
    return state;
  }

 private:
  PositionSettings settings_;
  bool values_;
  Projection direction_;
  AccumulatedReflections reflections_;  // of the call under way, for restore()
};

}  // namespace

std::unique_ptr<Term> make_householder_transport(const PositionSettings& settings, bool values) {
  return std::make_unique<HouseholderTransport>(settings, values);
}

// ---- audit --------------------------------------------------------------------------------------------------------

namespace {

AuditCase reflected_case(Arena& arena, const char* label, const Shape& shape, bool values, double size = 1.0) {
  const auto f = [values](std::span<const Variable> x, bool composed) {
    Features features{x[0], x[1], x[2]};
    AccumulatedReflections reflections;
    if (composed) {
      reflect_composed(x[3], features, values);
    } else {
      reflections = accumulated_reflections(x[3]);
      reflect(reflections, features, values);
    }
    Variable sum = add(subtract(features.q, scale(features.k, 2.0)), scale(features.v, 0.5));
    if (!values) return sum;
    const Variable v = square(features.v);
    return add(sum, composed ? reflect_back_composed(x[3], v) : reflect_back(reflections, v));
  };
  AuditCase result;
  result.label = label;
  result.inputs = {sample(arena, shape, 1, 3), sample(arena, shape, 1, 4), sample(arena, shape, 1, 5),
                   sample(arena, shape, size, 6)};
  result.function = [f](Tape&, std::span<const Variable> x) { return f(x, false); };
  result.composed = [f](Tape&, std::span<const Variable> x) { return f(x, true); };
  return result;
}

}  // namespace

AUDIT(reflect, "positional") {
  AuditCase zero = reflected_case(arena, "no direction", {1, 3, 1, 4}, true, 0.0);
  zero.composed = {};
  zero.differentiable_here = false;
  AuditCase tiny = reflected_case(arena, "tiny w", {1, 4, 1, 5}, true, 1e-5);
  tiny.step = 1e-9;  // far shorter than w
  return {reflected_case(arena, "q, k", {2, 5, 2, 6}, false),
          reflected_case(arena, "q, k, v and back", {2, 5, 2, 6}, true),
          reflected_case(arena, "one token", {1, 1, 1, 2}, false),
          tiny,
          reflected_case(arena, "huge w", {1, 4, 1, 5}, true, 1e8),
          zero};
}

}  // namespace sextant
