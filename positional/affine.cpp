// Learned affine recency: the unit root's sector of the position space.
//
//   b_h(d) = beta_h - s_h d / L,   s_h = softplus(s^_h) >= 0, so that recency never turns into its opposite
//
// L is the training context unless `scale` says otherwise. It starts as ALiBi: beta = 0, s_h = m_h L.
// [position-space.md section 2]
#include "positional/affine.h"

#include "autograd/elementwise.h"
#include "autograd/formula.h"
#include "autograd/gradient_check.h"
#include "autograd/shaping.h"
#include "positional/alibi.h"
#include "positional/functions.h"
#include "positional/strategy.h"

namespace sextant {

namespace {

double slope_of(double raw, bool either_sign) {
  return either_sign ? raw : softplus_of(raw);
}
double slope_derivative(double raw, bool either_sign) {
  return either_sign ? 1.0 : sigmoid_of(raw);
}

}  // namespace

FORMULA("affine bias", "b_h(d) = beta_h - s_h d / L,  s_h = softplus(s^_h)",
        "dbeta_h = sum_d db_h(d),  ds^_h = -s'(s^_h) sum_d db_h(d) d / L");
Variable affine_bias(Variable constant, Variable slope, int64_t lags, double length_scale, bool either_sign) {
  Tape& tape = slope.tape();
  const int64_t heads = slope.size(0);
  const Tensor bias = tape.empty({heads, lags}, slope.dtype());
  dispatch(bias.dtype(), [&](auto type) {
    using T = decltype(type);
    for (int64_t h = 0; h < heads; ++h) {
      const double beta = constant.value().flat(h), s = slope_of(slope.value().flat(h), either_sign);
      T* row = bias.data<T>() + h * lags;
      for (int64_t d = 0; d < lags; ++d) row[d] = static_cast<T>(beta - s * (static_cast<double>(d) / length_scale));
    }
  });
  return tape.record("affine bias", {constant, slope}, bias, [=](const Tensor& dbias) {
    const Tensor sums = empty(slope.tape().arena(), {2, heads}, DType::f64);
    dispatch(dbias.dtype(), [&](auto type) {
      using T = decltype(type);
      for (int64_t h = 0; h < heads; ++h) {
        double sum = 0, moment = 0;
        for (int64_t d = 0; d < lags; ++d) {
          const double u = dbias.data<T>()[h * dbias.stride(0) + d];
          sum += u;
          moment += u * static_cast<double>(d);
        }
        sums.set_flat(h, sum);
        sums.set_flat(heads + h, -slope_derivative(slope.value().flat(h), either_sign) * moment / length_scale);
      }
    });
    const auto deliver = [&](const Variable& parameter, int64_t row) {
      if (!parameter.needs_gradient()) return;
      const Tensor gradient = empty(parameter.tape().arena(), parameter.shape(), parameter.dtype());
      gradient.copy_from(sums.select(0, row));
      parameter.accumulate(gradient);
    };
    deliver(constant, 0);
    deliver(slope, 1);
  });
}

namespace {

// The lags 0 .. count-1 over L, as a constant [1, count].
Variable scaled_lags(Tape& tape, int64_t count, double length_scale, DType dtype) {
  const Tensor lags = tape.empty({1, count}, dtype);
  for (int64_t d = 0; d < count; ++d) lags.set_flat(d, static_cast<double>(d) / length_scale);
  return tape.constant(lags);
}

}  // namespace

Variable affine_bias_composed(Variable constant, Variable slope, int64_t lags, double length_scale, bool either_sign) {
  const Shape column{slope.size(0), 1};
  const Variable x = scaled_lags(slope.tape(), lags, length_scale, slope.dtype());
  const Variable s = either_sign ? slope : softplus(slope);
  return subtract(reshape(constant, column), multiply(reshape(s, column), x));
}

namespace {

AuditCase affine_case(Arena& arena, const char* label, Shape heads, int64_t lags, double scale, double raw,
                      bool either_sign) {
  AuditCase result;
  result.label = label;
  const Tensor slope = sample(arena, heads, 1.0, 5);
  for (int64_t h = 0; h < heads[0]; ++h) slope.set_flat(h, raw + slope.flat(h));
  result.inputs = {sample(arena, heads, 1.0, 4), slope};
  result.function = [=](Tape&, std::span<const Variable> x) {
    return affine_bias(x[0], x[1], lags, scale, either_sign);
  };
  result.composed = [=](Tape&, std::span<const Variable> x) {
    return affine_bias_composed(x[0], x[1], lags, scale, either_sign);
  };
  return result;
}

}  // namespace

AUDIT(affine_bias, "positional") {
  return {affine_case(arena, "ordinary", {3}, 37, 16.0, 0.0, false),
          affine_case(arena, "either sign", {2}, 9, 16.0, -1.0, true),
          affine_case(arena, "lag 0 alone", {4}, 1, 16.0, 0.0, false),
          affine_case(arena, "no slope left", {2}, 9, 16.0, -30.0, false),
          affine_case(arena, "steep", {2}, 9, 16.0, 30.0, false),
          affine_case(arena, "very large L", {2}, 9, 1e12, 0.0, false),
          affine_case(arena, "very small L", {2}, 9, 1e-9, 0.0, false)};
}

namespace {

class Affine : public Term {
 public:
  Affine(const TermSpec& spec, const PositionSettings& settings)
      : scale_(spec.given("scale") ? spec.number("scale", 1e-6, 1e12) : static_cast<double>(settings.context)),
        either_sign_(spec.flag("either-sign")),
        constant_(make_parameter(settings, spec.name(), "const", {settings.heads})),
        slope_(make_parameter(settings, spec.name(), "slope", {settings.heads})) {
    const std::vector<double> slopes = alibi_slopes(settings.heads);
    for (int64_t h = 0; h < settings.heads; ++h) {
      const double s = slopes[static_cast<size_t>(h)] * scale_;
      slope_.value.set_flat(h, either_sign_ ? s : softplus_inverse(s));
    }
  }

  std::vector<Parameter*> parameters() override { return {&constant_, &slope_}; }

  Variable lag_bias(const PositionCall& call, int64_t lags) override {
    const auto form = call.composed ? affine_bias_composed : affine_bias;
    return form(call.tape->parameter(constant_), call.tape->parameter(slope_), lags, scale_, either_sign_);
  }

  std::vector<SectorComponent> components() override {
    double constant_mass = 0, slope_mass = 0;
    const int64_t heads = slope_.value.elements();
    for (int64_t h = 0; h < heads; ++h) {
      constant_mass += std::fabs(constant_.value.flat(h)) / static_cast<double>(heads);
      slope_mass += std::fabs(slope_of(slope_.value.flat(h), either_sign_)) / static_cast<double>(heads);
    }
    return {{"affine", 0, constant_mass, [this](int head, int64_t) { return constant_.value.flat(head); },
             [this] { return fill_with(constant_.value, 0.0); }},
            {"affine", 1, slope_mass,
             [this](int head, int64_t lag) {
               return -slope_of(slope_.value.flat(head), either_sign_) * static_cast<double>(lag) / scale_;
             },
             [this] { return fill_with(slope_.value, either_sign_ ? 0.0 : no_slope); }}};
  }

 private:
  static constexpr double no_slope = -1e4;  // softplus gives exactly 0

  double scale_;
  bool either_sign_;
  Parameter constant_, slope_;
};

const RegisterStrategy register_affine({
    .name = "affine",
    .summary = "learned linear recency, the unit root of the position space (arXiv 2606.05345)",
    .keys = {{"scale", "", "length scale L in tokens, from 1e-6 to 1e12; the training context when not given", {}},
             {"either-sign", "0", "1 lets slopes become negative, so that far keys may gain", {"0", "1"}}},
    .examples = {"affine", "affine(scale=64)", "affine(scale=16,either-sign=1)"},
    .make = [](const TermSpec& spec, const PositionSettings& settings) -> std::unique_ptr<Term> {
      return std::make_unique<Affine>(spec, settings);
    },
});

}  // namespace

}  // namespace sextant
