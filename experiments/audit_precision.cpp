#include "experiments/audit_precision.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

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
std::vector<Values> evaluate(const TapeFunction& function, std::span<const Tensor> inputs, uint64_t seed) {
  Tape tape;
  std::vector<Variable> variables;
  for (const Tensor& input : inputs) variables.push_back(tape.variable(input));
  const Variable output = function(tape, variables);
  const Tensor rounded = tape.empty(output.shape(), DType::f32);
  fill_uniform(rounded, Random(seed, "audit precision"), -1.0, 1.0);
  if (output.needs_gradient()) tape.backward(output, converted(tape.arena(), rounded, output.dtype()));
  std::vector<Values> result{values_of(output.value())};
  for (const Variable& x : variables) result.push_back(values_of(x.gradient()));
  return result;
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

void compare(Precision& precision, const Values& exact, const Values& f32, int tensor, double overall) {
  const double largest = largest_of(exact);
  const double unit = ulp_f32(std::max(largest < 0x1p-24 * overall ? overall : largest, static_cast<double>(FLT_MIN)));
  for (size_t i = 0; i < std::max(exact.size(), f32.size()); ++i) {
    const double x = i < exact.size() ? exact[i] : 0.0, y = i < f32.size() ? f32[i] : 0.0;
    const double error = error_in(x, y, unit);
    precision.errors.push_back(error);
    if (x != 0 && std::isfinite(x) && std::abs(x) > FLT_MIN && std::abs(x - y) >= 0x1p12 * ulp_f32(std::abs(x)))
      ++precision.cancelled;
    if (precision.index >= 0 && error <= precision.worst) continue;
    precision.worst = error;
    precision.tensor = tensor;
    precision.index = static_cast<int64_t>(i);
    precision.in_f64 = x;
    precision.in_f32 = y;
  }
}

}  // namespace

double ulp_f32(double x) {
  return std::ldexp(1.0, std::max(std::ilogb(x), -126) - 23);
}

std::optional<Precision> compare_precision(const AuditCase& audit, uint64_t seed, std::string& reason) {
  Arena arena;
  std::vector<Tensor> narrow, wide;
  for (size_t i = 0; i < audit.inputs.size(); ++i) {
    const bool keep = std::ranges::count(audit.inputs_f64, static_cast<int>(i)) > 0;
    if (!keep && beyond_f32(values_of(audit.inputs[i]))) return reason = "inputs beyond the range of f32", std::nullopt;
    narrow.push_back(converted(arena, audit.inputs[i], keep ? DType::f64 : DType::f32));
    wide.push_back(converted(arena, narrow.back(), DType::f64));
  }
  const std::vector<Values> exact = evaluate(audit.function, wide, seed);
  if (std::ranges::any_of(exact, beyond_f32)) return reason = "results beyond the range of f32", std::nullopt;
  const TapeFunction& function = audit.function_f32 ? audit.function_f32 : audit.function;
  const std::vector<Values> f32 = evaluate(function, narrow, seed), again = evaluate(function, narrow, seed);
  double overall = 0;
  for (const Values& values : exact) overall = std::max(overall, largest_of(values));
  Precision precision;
  for (size_t tensor = 0; tensor < exact.size(); ++tensor) {
    compare(precision, exact[tensor], f32[tensor], static_cast<int>(tensor) - 1, overall);
    for (size_t i = 0; i < f32[tensor].size(); ++i)
      if (error_in(f32[tensor][i], again[tensor][i], 1.0) != 0) precision.repeatable = false;
  }
  std::sort(precision.errors.begin(), precision.errors.end());
  return precision;
}

}  // namespace sextant
