// The gradient of every learned number of the lag biases against differences of the definition in 113-bit arithmetic.
// There, differences keep their digits where those in double have none: gates and softplus far into saturation, length
// scales that leave next to nothing of a term.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "core/random.h"
#include "positional/affine.h"
#include "positional/pj_bias.h"
#include "tests/positional/quad.h"

namespace sextant {
namespace {

using quad::Quad;
using Numbers = std::vector<Quad>;

Quad sigmoid(Quad x) {
  return 1 / (1 + quad::exp(-x));
}
Quad softplus(Quad x) {
  return (x > 0 ? x : Quad(0)) + quad::log(1 + quad::exp(-quad::absolute(x)));
}

enum Input { gate, fj_cos, fj_sin, damping, affine_const, affine_slope, lc_cos, lc_sin, log_frequency, log_scale };
constexpr std::array<const char*, 10> names{"gate",         "fj_cos", "fj_sin", "damping",       "affine_const",
                                            "affine_slope", "lc_cos", "lc_sin", "log_frequency", "log_scale"};

struct Case {
  const char* label;
  double gate = 0, amplitude = 1, damping = 0, slope = 0, scale = 10;
  int64_t lags = 20, jets = 2, lc_jets = 3;
};
constexpr int64_t heads = 2, frequencies = 2;

std::ostream& operator<<(std::ostream& out, const Case& each) {
  return out << each.label;
}

Shape shape_of(Input input, const Case& with) {
  if (input == gate) return {3};
  if (input == fj_cos || input == fj_sin) return {heads, frequencies, with.jets};
  if (input == lc_cos || input == lc_sin) return {heads, frequencies, with.lc_jets};
  if (input == affine_const || input == affine_slope) return {heads};
  return {input == log_scale ? 1 : frequencies};
}

// b_h(d), position-space.md section 4.
Quad bias(const std::array<Numbers, 10>& p, const Case& with, int64_t h, int64_t d) {
  const Quad L = quad::exp(p[log_scale][0]), x = d / L, root = quad::root(x * x + 1);
  const Quad P = L * (x < Quad(0.5) ? quad::artanh(x / root) : quad::log(x + root));  // either way asinh x
  Quad fj = 0, lc = 0;
  for (int64_t k = 0; k < frequencies; ++k) {
    const Quad w = quad::exp(p[log_frequency][k]);
    Quad jet = quad::exp(-softplus(p[damping][k]) * x), amplitude = 1;
    for (int64_t r = 0, at = (h * frequencies + k) * with.jets; r < with.jets; ++r, ++at, jet *= x)
      fj += jet * (p[fj_cos][at] * quad::cos(w * d) + p[fj_sin][at] * quad::sin(w * d));
    for (int64_t r = 0, at = (h * frequencies + k) * with.lc_jets; r < with.lc_jets; ++r, ++at, amplitude *= x / root)
      lc += amplitude * (p[lc_cos][at] * quad::cos(w * P) + p[lc_sin][at] * quad::sin(w * P));
  }
  return sigmoid(p[gate][0]) * fj + sigmoid(p[gate][1]) * (p[affine_const][h] - softplus(p[affine_slope][h]) * x) +
         sigmoid(p[gate][2]) * lc;
}

// The derivative of f at x by the 4-point central difference, whose truncation and rounding leave some 25 digits.
template <class F>
Quad derivative(Quad& x, F f) {
  const Quad at = x, step = Quad(1e-7);
  const auto moved = [&](int n) {
    x = at + n * step;
    return f();
  };
  const Quad result = (8 * (moved(1) - moved(-1)) - (moved(2) - moved(-2))) / (12 * step);
  x = at;
  return result;
}

// Whether number n of an input counts in head h: amplitudes and lines belong to one head, the others to all.
bool counts_in(int64_t h, Input input, int64_t n, const Case& with) {
  const Shape shape = shape_of(input, with);
  const bool of_all = input == gate || input == damping || input == log_frequency || input == log_scale;
  return of_all || n / (shape.elements() / heads) == h;
}

class BiasGradient : public testing::TestWithParam<Case> {};

// A number that f32 holds, too.
double rounded(double x) {
  return static_cast<double>(static_cast<float>(x));
}

TEST_P(BiasGradient, IsThatOfTheDefinition) {
  const Case with = GetParam();
  const std::array<double, 10> center{with.gate, 0, 0, with.damping, 0, with.slope, 0, 0, -1.5, std::log(with.scale)};
  std::array<Numbers, 10> numbers;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const bool amplitude = i == fj_cos || i == fj_sin || i == lc_cos || i == lc_sin || i == affine_const;
    const double spread = amplitude ? with.amplitude : i == log_scale ? 0.0 : 0.5;
    for (int64_t n = 0; n < shape_of(static_cast<Input>(i), with).elements(); ++n)
      numbers[i].push_back(Quad(rounded(center[i] + spread * Random(7, names[i]).normal(static_cast<uint64_t>(n)))));
  }
  const auto u = [](int64_t n) { return rounded(Random(8, "u").normal(static_cast<uint64_t>(n))); };
  std::array<Variable, 10> in[2];
  Tape tapes[2];
  for (const DType dtype : {DType::f64, DType::f32}) {
    Tape& tape = tapes[dtype == DType::f32];
    auto& own = in[dtype == DType::f32];
    for (size_t i = 0; i < own.size(); ++i) {
      const Tensor x = tape.empty(shape_of(static_cast<Input>(i), with), dtype);
      for (int64_t n = 0; n < x.elements(); ++n) x.set_flat(n, static_cast<double>(numbers[i][static_cast<size_t>(n)]));
      own[i] = tape.variable(x);
    }
    const Variable b = pj_bias({own[gate], own[fj_cos], own[fj_sin], own[damping], own[affine_const], own[affine_slope],
                                own[lc_cos], own[lc_sin], own[log_frequency], own[log_scale]},
                               {heads, std::vector<DoubleDouble>(frequencies), 0, nullptr}, with.lags);
    const Tensor weights = tape.empty(b.shape(), dtype);
    for (int64_t n = 0; n < weights.elements(); ++n) weights.set_flat(n, u(n));
    tape.backward(b, weights);
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    const size_t count = numbers[i].size();
    for (size_t n = 0; n < count; n += (count + 3) / 4) {  // some of each
      Quad sum = 0, size = 0;  // and of the terms' absolute values, which rounding is relative to
      for (int64_t h = 0; h < heads; ++h) {
        if (!counts_in(h, static_cast<Input>(i), static_cast<int64_t>(n), with)) continue;
        for (int64_t d = 0; d < with.lags; ++d) {
          const Quad term =
              Quad(u(h * with.lags + d)) * derivative(numbers[i][n], [&] { return bias(numbers, with, h, d); });
          sum += term;
          size += quad::absolute(term);
        }
      }
      const double expected = static_cast<double>(sum), rounding = 1e-11 * static_cast<double>(size) + 1e-30;
      const int64_t at = static_cast<int64_t>(n);
      EXPECT_NEAR(in[0][i].gradient().flat(at), expected, rounding) << names[i] << " [" << n << "]";
      EXPECT_NEAR(in[1][i].gradient().flat(at), expected, rounding + 0x1p-24 * std::fabs(expected))
          << names[i] << " [" << n << "] in f32";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Extremes, BiasGradient,
    testing::Values(Case{.label = "ordinary"}, Case{.label = "gates_open", .gate = 30},
                    Case{.label = "gates_shut", .gate = -30}, Case{.label = "zero_amplitudes", .amplitude = 0},
                    Case{.label = "lag_0_alone", .lags = 1}, Case{.label = "L_1e6", .scale = 1e6},
                    Case{.label = "L_1e12", .scale = 1e12}, Case{.label = "L_1e_minus_3", .scale = 1e-3},
                    Case{.label = "L_1e_minus_6", .scale = 1e-6}, Case{.label = "damping_near_0", .damping = -30},
                    Case{.label = "large_damping", .damping = 30}, Case{.label = "no_slope_left", .slope = -30},
                    Case{.label = "steep", .slope = 30}),
    [](const auto& instance) { return std::string(instance.param.label); });

TEST(AffineGradient, IsThatOfTheDefinition) {
  for (const double raw : {-30.0, 0.0, 30.0}) {
    for (const double L : {1e-9, 16.0, 1e12}) {
      for (const int64_t lags : {1, 20}) {
        Tape tape;
        const Variable constant = tape.variable(full(tape.arena(), {1}, 0.3, DType::f64)),
                       slope = tape.variable(full(tape.arena(), {1}, raw, DType::f64));
        const Tensor u = tape.empty({1, lags}, DType::f64);
        for (int64_t d = 0; d < lags; ++d) u.set_flat(d, Random(8, "u").normal(static_cast<uint64_t>(d)));
        tape.backward(affine_bias(constant, slope, lags, L), u);
        Quad by_constant = 0, by_slope = 0, size = 0, s = raw;
        const Quad derivative_of_slope = derivative(s, [&] { return softplus(s); });
        for (int64_t d = 0; d < lags; ++d) {
          const Quad term = -derivative_of_slope * Quad(u.flat(d)) * d / Quad(L);
          by_constant += Quad(u.flat(d));
          by_slope += term;
          size += quad::absolute(term);
        }
        EXPECT_NEAR(constant.gradient().flat(0), static_cast<double>(by_constant), 1e-13) << raw << " " << L;
        EXPECT_NEAR(slope.gradient().flat(0), static_cast<double>(by_slope), 1e-13 * static_cast<double>(size))
            << raw << " " << L;
      }
    }
  }
}

}  // namespace
}  // namespace sextant
