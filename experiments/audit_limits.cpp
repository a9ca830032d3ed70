#include "experiments/audit_limits.h"

#include <fmt/format.h>

#include <cmath>

#include "autograd/elementwise.h"
#include "autograd/gradient_check.h"
#include "autograd/reductions.h"

namespace sextant {

namespace {

using Function = Variable (*)(Variable);

double derivative(Function f, double at, DType dtype) {
  Tape tape;
  const Variable x = tape.variable(full(tape.arena(), {1}, at, dtype));
  tape.backward(sum(f(x)));
  return x.gradient().flat(0);
}

// |central difference - derivative| / |derivative|
double difference_error(const TapeFunction& f, double at, double step) {
  Arena arena;
  const GradientCheck check =
      check_gradients(f, std::vector{full(arena, {1}, at, DType::f64)}, {.step = step, .entries_per_input = 1});
  return std::abs(check.numeric - check.analytic) / std::abs(check.analytic);
}

TapeFunction of_tape(Function f) {
  return [f](Tape&, std::span<const Variable> x) { return f(x[0]); };
}

std::string error_text(double error) {
  if (!std::isfinite(error)) return "no digit";
  if (error == 0) return "0";
  return error >= 1 ? "no digit" : fmt::format("{:.1e}", error);
}

}  // namespace

Table saturation_limits() {
  Table table{{"function", "x", "derivative", "f32 off by", "differences off by"}, {}};
  const std::pair<const char*, Function> functions[] = {
      {"tanh", tanh}, {"sigmoid", sigmoid}, {"softplus", softplus}, {"gelu", gelu}};
  for (const auto& [name, f] : functions) {
    for (const double magnitude : {0.5, 2.0, 4.0, 8.0, 16.0, 32.0}) {
      const double x = f == softplus || f == gelu ? -magnitude : magnitude;  // the side on which it flattens
      const double exact = derivative(f, x, DType::f64), narrow = derivative(f, x, DType::f32);
      if (std::abs(exact) < 1e-300) {
        table.rows.push_back({name, fmt::format("{:g}", x), "0 in f64", "-", "-"});
        continue;
      }
      table.rows.push_back({name, fmt::format("{:g}", x), fmt::format("{:.2e}", exact),
                            error_text(std::abs(narrow - exact) / std::abs(exact)),
                            error_text(difference_error(of_tape(f), x, 1e-3 * magnitude))});
    }
  }
  return table;
}

Table kink_limits() {
  Table table{{"x", "derivative of |x|", "differences off by"}, {}};
  const TapeFunction size = [](Tape&, std::span<const Variable> x) { return sqrt(square(x[0])); };
  for (const double x : {1e-1, 1e-3, 1e-4, 2.1e-5, 1.9e-5, 1e-5, 1e-6, 1e-8})
    table.rows.push_back({fmt::format("{:g}", x), "1", error_text(difference_error(size, x, 1e-5))});
  return table;
}

Table constant_limits() {
  Table table{{"C", "derivative of x^2 + C at 1", "differences off by"}, {}};
  for (const double constant : {0.0, 1e3, 1e6, 1e9, 1e12, 1e15})
    table.rows.push_back(
        {fmt::format("{:g}", constant), "2",
         error_text(difference_error(
             [constant](Tape&, std::span<const Variable> x) { return shift(square(x[0]), constant); }, 1.0, 1e-3))});
  return table;
}

Plot step_limits() {
  Plot plot{.title = "exp at 1: relative error of the 4-point central difference",
            .x_label = "step, as a power of 2",
            .y_label = "relative error",
            .series = {{.label = "measured", .x = {}, .y = {}, .points = true}}};
  plot.log_y = true;
  for (int exponent = 1; exponent <= 44; ++exponent) {
    const double step = std::ldexp(1.0, -exponent), error = difference_error(of_tape(exp), 1.0, step);
    plot.series[0].x.push_back(-exponent);
    plot.series[0].y.push_back(std::max(error, 1e-17));
  }
  return plot;
}

}  // namespace sextant
