#include "experiments/audit_precision.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "autograd/rounding.h"
#include "core/random.h"

namespace sextant {

namespace {

using Values = std::vector<double>;

Values values_of(const Tensor& x) {
  Values values;
  if (!x.defined()) return values;
  for (int64_t i = 0; i < x.elements(); ++i) values.push_back(x.flat(i));
  return values;
}

// The output, then the gradient of each input of <w, f(inputs)>; the weights w are f32 numbers.
std::vector<Values> evaluate(const TapeFunction& function, std::span<const Tensor> inputs, uint64_t seed,
                             Tape::Witness* witness, Rounding* rounding = nullptr) {
  Tape tape;
  tape.set_witness(witness);
  std::vector<Variable> variables;
  for (const Tensor& input : inputs) variables.push_back(tape.variable(input));
  const Variable output = function(tape, variables);
  const Tensor rounded = tape.empty(output.shape(), DType::f32);
  fill_uniform(rounded, Random(seed, "audit precision"), -1.0, 1.0);
  const Tensor weights = converted(tape.arena(), rounded, output.dtype());
  if (rounding != nullptr) rounding->move(weights);
  if (output.needs_gradient()) tape.backward(output, weights);
  std::vector<Values> result{values_of(output.value())};
  for (const Variable& x : variables) result.push_back(values_of(x.gradient()));
  return result;
}

bool stays_f64(const AuditCase& audit, size_t input) {
  return std::ranges::count(audit.inputs_f64, static_cast<int>(input)) > 0;
}

constexpr uint64_t samples = 8;

// By how much the entries of each tensor move, at most, when everything that f32 would round is moved. Raises
// `expected`.
void add_expected(const TapeFunction& function, const AuditCase& audit, std::span<const Tensor> inputs,
                  const std::vector<Values>& exact, const WideList& wide, uint64_t seed,
                  std::vector<double>& expected) {
  for (uint64_t sample = 0; sample < samples; ++sample) {
    Arena arena;
    Rounding rounding(Rounding::f32, seed + sample, wide);
    std::vector<Tensor> moved;
    for (size_t i = 0; i < inputs.size(); ++i) {
      moved.push_back(converted(arena, inputs[i], DType::f64));
      if (!stays_f64(audit, i)) rounding.move(moved.back());
    }
    const std::vector<Values> values = evaluate(function, moved, seed, &rounding, &rounding);
    for (size_t tensor = 0; tensor < exact.size(); ++tensor)
      for (size_t i = 0; i < std::min(exact[tensor].size(), values[tensor].size()); ++i)
        if (const double move = std::abs(values[tensor][i] - exact[tensor][i]); std::isfinite(move))
          expected[tensor] = std::max(expected[tensor], move);
  }
}

// Through the function's own tape, and through its twin's, which shows the values that a fused operation has inside.
std::vector<double> expected_errors(const AuditCase& audit, std::span<const Tensor> inputs,
                                    const std::vector<Values>& exact, WideList wide, uint64_t seed) {
  std::vector<double> expected(exact.size(), 0.0);
  add_expected(audit.function, audit, inputs, exact, wide, seed, expected);
  if (!audit.composed) return expected;
  wide.note("cumulative_sum", DType::f64);  // whatever goes into it
  add_expected(audit.composed, audit, inputs, exact, wide, seed, expected);
  return expected;
}

double largest_of(const Values& values) {
  double largest = 0;
  for (const double x : values) largest = std::max(largest, std::isfinite(x) ? std::abs(x) : 0.0);
  return largest;
}

bool beyond_f32(const Values& values) {
  return std::ranges::any_of(values, [](double x) { return std::isfinite(x) && std::abs(x) > FLT_MAX; });
}

double error_in(double exact, double x, double unit) {
  if (exact == x || (std::isnan(exact) && std::isnan(x))) return 0;
  const double error = std::abs(exact - x) / unit;
  return std::isfinite(error) ? error : INFINITY;
}

void compare(Precision& precision, const Values& exact, const Values& f32, int tensor, double overall,
             double expected) {
  const double largest = largest_of(exact);
  const double unit = ulp_f32(std::max(largest < 0x1p-24 * overall ? overall : largest, static_cast<double>(FLT_MIN)));
  expected = std::max(expected, unit / 2);  // the rounding of the result itself
  for (size_t i = 0; i < std::max(exact.size(), f32.size()); ++i) {
    const double x = i < exact.size() ? exact[i] : 0.0, y = i < f32.size() ? f32[i] : 0.0;
    const double error = error_in(x, y, unit), excess = error_in(x, y, expected);
    const PrecisionPlace place{tensor, static_cast<int64_t>(i), x, y};
    precision.errors.push_back(error);
    if (x != 0 && std::isfinite(x) && std::abs(x) > FLT_MIN && std::abs(x - y) >= 0x1p12 * ulp_f32(std::abs(x)))
      ++precision.cancelled;
    if (precision.worst_at.index < 0 || error > precision.worst) precision.worst = error, precision.worst_at = place;
    if (precision.excess_at.index < 0 || excess > precision.excess)
      precision.excess = excess, precision.excess_at = place;
  }
}

}  // namespace

double ulp_f32(double x) {
  return std::ldexp(1.0, std::max(std::ilogb(x), -126) - 23);
}

std::optional<Precision> compare_precision(const AuditCase& audit, uint64_t seed, std::string& reason,
                                           Tape::Witness* spoiler) {
  Arena arena;
  std::vector<Tensor> narrow, wide;
  for (size_t i = 0; i < audit.inputs.size(); ++i) {
    const bool keep = stays_f64(audit, i);
    if (!keep && beyond_f32(values_of(audit.inputs[i]))) return reason = "inputs beyond the range of f32", std::nullopt;
    narrow.push_back(converted(arena, audit.inputs[i], keep ? DType::f64 : DType::f32));
    wide.push_back(converted(arena, narrow.back(), DType::f64));
  }
  const std::vector<Values> exact = evaluate(audit.function, wide, seed, nullptr);
  if (std::ranges::any_of(exact, beyond_f32)) return reason = "results beyond the range of f32", std::nullopt;
  const TapeFunction& function = audit.function_f32 ? audit.function_f32 : audit.function;
  const std::vector<Values> f32 = evaluate(function, narrow, seed, spoiler);
  WideList stays_wide;
  const std::vector<Values> again = evaluate(function, narrow, seed, &stays_wide);
  const std::vector<double> expected = expected_errors(audit, wide, exact, stays_wide, seed);
  double overall = 0;
  for (const Values& values : exact) overall = std::max(overall, largest_of(values));
  Precision precision;
  for (size_t tensor = 0; tensor < exact.size(); ++tensor) {
    compare(precision, exact[tensor], f32[tensor], static_cast<int>(tensor) - 1, overall, expected[tensor]);
    for (size_t i = 0; i < f32[tensor].size() && spoiler == nullptr; ++i)
      if (error_in(f32[tensor][i], again[tensor][i], 1.0) != 0) precision.repeatable = false;
  }
  std::sort(precision.errors.begin(), precision.errors.end());
  return precision;
}

}  // namespace sextant
