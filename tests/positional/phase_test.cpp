// Tables of angles against 113-bit arithmetic.
#include "positional/phase.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "positional/rope.h"
#include "tests/positional/quad.h"

namespace sextant {
namespace {

using quad::Quad;

// How many floats lie between a and the exact value's nearest float.
int64_t ulps(float a, Quad exact) {
  const auto ordered = [](float x) {
    const int32_t bits = std::bit_cast<int32_t>(x);
    return static_cast<int64_t>(bits < 0 ? std::numeric_limits<int32_t>::min() - bits : bits);
  };
  return std::abs(ordered(a) - ordered(static_cast<float>(exact)));
}
double error_in_ulps(double a, Quad exact) {
  const double nearest = static_cast<double>(exact);
  const double ulp = std::nextafter(std::fabs(nearest), INFINITY) - std::fabs(nearest);
  return std::fabs(static_cast<double>((Quad(a) - exact) / Quad(ulp)));
}

Quad exact_frequency(double base, int64_t k, int64_t count) {
  return quad::exp(-quad::log(Quad(base)) * k / count);
}

TEST(Phase, TheOracleKnowsItsConstants) {
  EXPECT_EQ(static_cast<double>(quad::pi()), M_PI);
  EXPECT_EQ(static_cast<double>(quad::exp(Quad(1))), M_E);
  EXPECT_EQ(static_cast<double>(quad::log(Quad(10))), M_LN10);
  EXPECT_EQ(static_cast<double>(quad::cos(Quad(3))), std::cos(3.0));
  EXPECT_EQ(static_cast<double>(quad::sin(Quad(-200))), std::sin(-200.0));
}

TEST(Phase, FrequenciesAreRightToTwiceDoublePrecision) {
  for (const double base : {10000.0, 500000.0, 1.5, 1e15}) {
    for (const int64_t count : {1, 2, 7, 32, 64}) {
      const auto frequencies = geometric_frequencies({base}, count);
      for (int64_t k = 0; k < count; ++k) {
        const Quad exact = exact_frequency(base, k, count);
        const DoubleDouble w = frequencies[static_cast<size_t>(k)];
        const Quad error = (Quad(w.high) + Quad(w.low) - exact) / exact;
        EXPECT_LT(quad::absolute(error), Quad(1e-28)) << base << " " << k << "/" << count;
      }
    }
  }
}

class Tables : public testing::TestWithParam<int64_t> {};  // the first of 64 positions

TEST_P(Tables, AreRightToOneUlp) {
  Arena arena;
  const int64_t first = GetParam(), count = 64, pairs = 32;
  const auto frequencies = geometric_frequencies({10000.0}, pairs);
  const Tensor f32 = phasor_table(arena, first, count, frequencies, Pairing::interleaved, DType::f32);
  const Tensor f64 = phasor_table(arena, first, count, frequencies, Pairing::half, DType::f64);
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t k = 0; k < pairs; ++k) {
      const Quad angle = exact_frequency(10000.0, k, pairs) * (first + n);
      const Quad cosine = quad::cos(angle), sine = quad::sin(angle);
      const float* row = f32.data<float>() + n * 2 * pairs;
      EXPECT_LE(ulps(row[2 * k], cosine), 1) << "position " << first + n << " pair " << k;
      EXPECT_LE(ulps(row[2 * k + 1], sine), 1) << "position " << first + n << " pair " << k;
      const double* row64 = f64.data<double>() + n * 2 * pairs;
      EXPECT_LE(error_in_ulps(row64[k], cosine), 2.0) << "position " << first + n << " pair " << k;
      EXPECT_LE(error_in_ulps(row64[pairs + k], sine), 2.0) << "position " << first + n << " pair " << k;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Positions, Tables, testing::Values(0, 4096 - 32, 131071 - 63, 1048575 - 63, int64_t{1} << 40));

// The light-cone chart's, at any length scale: raw where L is huge, logarithmic where it is small.
class LightConeTables : public testing::TestWithParam<int64_t> {};

TEST_P(LightConeTables, AreRightToOneUlp) {
  const int64_t first = GetParam(), count = 1024, pairs = 32, fastest = 4;
  const auto frequencies = geometric_frequencies({10000.0}, pairs);
  for (const double L : {1.0, 256.0, 65536.0, 1e6, 1e12}) {
    for (int64_t n = first; n < first + count; ++n) {
      const Quad x = Quad(n) / Quad(L), root = quad::root(1 + x * x);
      const Quad P = Quad(L) * (x < Quad(0.5) ? quad::artanh(x / root) : quad::log(x + root));  // either way asinh x
      const DoubleDouble position = light_cone_position(static_cast<double>(n), L);
      for (int64_t k = 0; k < fastest; ++k) {
        const Phasor wave = phasor(position, in_turns(frequencies[static_cast<size_t>(k)]));
        const Quad angle = exact_frequency(10000.0, k, pairs) * P;
        EXPECT_LE(ulps(static_cast<float>(wave.cosine), quad::cos(angle)), 1) << n << " of " << L << " pair " << k;
        EXPECT_LE(ulps(static_cast<float>(wave.sine), quad::sin(angle)), 1) << n << " of " << L << " pair " << k;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Positions, LightConeTables, testing::Values(0, 131071 - 1023, 1048575 - 1023));

// The scalings' tables, too: frequencies to double precision would leave 1e-10 of an angle there.
TEST(Phase, ScaledFrequenciesAreRightToTwiceDoublePrecision) {
  const int64_t dim = 16, context = 256;
  const Quad factor = 3, base = 10000;
  for (const std::string scaling : {"none", "linear", "ntk", "dynamic-ntk", "yarn"}) {
    const auto frequencies = rope_frequencies(10000.0, scaling, {3.0}, dim, context);
    for (int64_t k = 0; k < dim / 2; ++k) {
      const bool ntk = scaling.ends_with("ntk");
      const Quad stretched = ntk ? quad::log(base) + quad::log(factor) * dim / (dim - 2) : quad::log(base);
      Quad exact = quad::exp(-stretched * 2 * k / dim);
      if (scaling == "linear") exact /= factor;
      if (scaling == "yarn") {
        const Quad turns = context * exact / (2 * quad::pi());
        const Quad share = turns < 1 ? Quad(0) : turns > 32 ? Quad(1) : (turns - 1) / 31;
        exact = (1 - share) * exact / factor + share * exact;
      }
      const DoubleDouble w = frequencies[static_cast<size_t>(k)];
      EXPECT_LT(quad::absolute(Quad(w.high) + Quad(w.low) - exact) / exact, Quad(1e-27)) << scaling << " " << k;
    }
  }
}

// Where a cosine is nearly zero its last digits show the angle's: the fastest pair's nearest approach to a quarter turn
// below 2^20.
TEST(Phase, IsRightNextToZeroCrossings) {
  int64_t closest = 1;
  for (int64_t n = 1; n < (1 << 20); ++n)
    if (std::fabs(std::cos(static_cast<double>(n))) < std::fabs(std::cos(static_cast<double>(closest)))) closest = n;
  const Phasor value = phasor(closest, in_turns({1.0}));
  EXPECT_LT(std::fabs(value.cosine), 1e-5);
  EXPECT_LE(error_in_ulps(value.cosine, quad::cos(Quad(closest))), 2.0) << closest;
}

TEST(Phase, ScalingsHaveTheirPublishedFrequencies) {
  const int64_t dim = 16, context = 256;
  const double factor = 4.0;
  const auto frequency = [&](const std::string& scaling, int64_t k) {
    return rope_frequencies(10000.0, scaling, {factor}, dim, context)[static_cast<size_t>(k)].value();
  };
  for (int64_t k = 0; k < dim / 2; ++k) {
    const double w = std::pow(10000.0, -2.0 * static_cast<double>(k) / static_cast<double>(dim));
    EXPECT_NEAR(frequency("none", k) / w, 1.0, 1e-14);
    EXPECT_NEAR(frequency("linear", k) / (w / factor), 1.0, 1e-14);
    const double stretched = 10000.0 * std::pow(factor, 16.0 / 14.0);
    EXPECT_NEAR(frequency("ntk", k) / std::pow(stretched, -2.0 * static_cast<double>(k) / static_cast<double>(dim)),
                1.0, 1e-14);
    const double turns = context * w / (2 * M_PI);  // in the training context
    const double share = turns < 1 ? 0.0 : turns > 32 ? 1.0 : (turns - 1) / 31;
    EXPECT_NEAR(frequency("yarn", k) / ((1 - share) * w / factor + share * w), 1.0, 1e-14);
  }
  // The end points that give NTK its exponent: the fastest pair stays, the slowest is slowed by the factor.
  EXPECT_EQ(frequency("ntk", 0), 1.0);
  EXPECT_NEAR(frequency("ntk", 7) * factor / frequency("none", 7), 1.0, 1e-14);
  EXPECT_EQ(rope_frequencies(10000.0, "ntk", {factor}, 2, context)[0].value(), 1.0);
}

}  // namespace
}  // namespace sextant
