// Lag biases against closed forms: ALiBi's published slopes, and what PJ-bias must be when reduced.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/elementwise.h"
#include "autograd/gradient_check.h"
#include "autograd/reductions.h"
#include "autograd/shaping.h"
#include "positional/alibi.h"
#include "positional/functions.h"
#include "positional/pj_bias.h"
#include "positional/response.h"

namespace sextant {
namespace {

TEST(Alibi, HasThePublishedSlopes) {
  // The lists of the reference implementation (get_slopes), for powers of two and for what lies between.
  EXPECT_EQ(alibi_slopes(1), (std::vector<double>{0x1p-8}));
  EXPECT_EQ(alibi_slopes(8), (std::vector<double>{0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625}));
  EXPECT_EQ(alibi_slopes(3), (std::vector<double>{0.0625, 0.00390625, 0.25}));
  const std::vector<double> six{0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125};
  EXPECT_EQ(alibi_slopes(6), six);
  EXPECT_EQ(alibi_slopes(12).size(), 12u);
  EXPECT_NEAR(alibi_slopes(12)[8], std::sqrt(0.5), 1e-15);
}

TEST(Alibi, LayerGivesMinusSlopeTimesLag) {
  PositionSettings settings;
  settings.heads = 6;
  PositionStand stand("alibi", settings);
  const std::vector<int64_t> lags{0, 1, 255, 65535};
  const auto responses = bias_responses(stand, lags, 5);
  ASSERT_EQ(responses.front().component, "sum");
  for (size_t n = 0; n < lags.size(); ++n)
    EXPECT_EQ(responses.front().values[n], -0.125 * static_cast<double>(lags[n]));
}

TEST(Functions, SoftplusAndItsInverseAtBothEnds) {
  for (const double y : {1e-12, 1e-3, 0.7, 5.0, 700.0})
    EXPECT_NEAR(softplus_of(softplus_inverse(y)) / y, 1.0, 1e-12) << y;
  EXPECT_EQ(softplus_of(-1e4), 0.0);
  EXPECT_EQ(softplus_of(1e4), 1e4);
  EXPECT_EQ(sigmoid_of(-1e4), 0.0);
  EXPECT_EQ(sigmoid_of(1e4), 1.0);
}

// Single terms of the definition by long double arithmetic, at lags near and far, for one frequency apart from 1.
TEST(PjBias, IsItsDefinition) {
  const std::vector<DoubleDouble> grid{{1.0}, {0.01}};
  const double L = 100;
  for (int64_t order = 0; order < 3; ++order) {
    for (const bool light_cone : {false, true}) {
      for (const bool sine : {false, true}) {
        Tape tape;
        PjBiasVariables in;
        in.gate = tape.constant(full(tape.arena(), {3}, 0.4, DType::f64));
        const Tensor on = zeros(tape.arena(), {1, 2, 3}, DType::f64), off = zeros(tape.arena(), {1, 2, 3}, DType::f64);
        on.set_flat(3 + order, 1.5);  // k = 1
        Variable &cosines = light_cone ? in.lc_cos : in.fj_cos, &sines = light_cone ? in.lc_sin : in.fj_sin;
        cosines = tape.constant(sine ? off : on);
        sines = tape.constant(sine ? on : off);
        if (!light_cone) in.damping = tape.constant(full(tape.arena(), {2}, -1.0, DType::f64));
        const Tensor b = pj_bias(in, {1, grid, L, nullptr}, 40000).value();
        for (const int64_t d : {0, 1, 17, 100, 3333, 39999}) {
          const long double x = static_cast<long double>(d) / L;
          const long double angle = 0.01L * (light_cone ? L * std::asinh(x) : static_cast<long double>(d));
          const long double base = light_cone ? x / std::sqrt(1 + x * x) : x;
          const long double envelope = light_cone ? 1.0L : std::exp(-std::log1p(std::exp(-1.0L)) * x);
          const long double expected = 1.5L / (1 + std::exp(-0.4L)) * std::pow(base, static_cast<long double>(order)) *
                                       envelope * (sine ? std::sin(angle) : std::cos(angle));
          const double size =
              std::max(1.0, static_cast<double>(std::pow(base, static_cast<long double>(order)) * envelope));
          EXPECT_NEAR(b.flat(d), static_cast<double>(expected), 1e-13 * size)
              << order << light_cone << sine << " at lag " << d;
        }
      }
    }
  }
}

// The gradients in f32 differ from those in f64 only by the rounding of inputs and outputs: inner sums are in double.
TEST(PjBias, GradientsInF32AgreeWithF64) {
  for (const AuditEntry& entry : audit_entries()) {
    if (entry.name != "pj_bias") continue;
    Arena arena;
    for (const AuditCase& audit : entry.cases(arena)) {
      std::vector<Tensor> gradients[2];
      for (const DType dtype : {DType::f64, DType::f32}) {
        Tape tape;
        std::vector<Variable> inputs;
        for (const Tensor& x : audit.inputs)
          inputs.push_back(tape.variable(converted(tape.arena(), converted(tape.arena(), x, DType::f32), dtype)));
        const Variable y = audit.function(tape, inputs);
        const Tensor w = full(tape.arena(), y.shape(), 0.0, dtype);
        for (int64_t i = 0; i < w.elements(); ++i)
          w.set_flat(i, std::sin(static_cast<double>(i + 1)) < 0 ? -0.5 : 0.75);
        tape.backward(y, w);
        for (const Variable& x : inputs)
          gradients[dtype == DType::f32].push_back(converted(arena, x.gradient(), DType::f64));
      }
      for (size_t i = 0; i < gradients[0].size(); ++i) {
        for (int64_t n = 0; n < gradients[0][i].elements(); ++n) {
          const double exact = gradients[0][i].flat(n), rounded = gradients[1][i].flat(n);
          EXPECT_NEAR(rounded, exact, 1e-6 * std::fabs(exact) + 1e-30)
              << audit.label << ", input " << i << " entry " << n;
        }
      }
    }
  }
}

// What the bias is read by may hand back a gradient with its dimensions exchanged.
TEST(PjBias, GradientThroughATransposeIsTheSame) {
  PositionSettings settings;
  settings.heads = 3;
  settings.head_dim = 4;
  for (const char* spec : {"pj-bias(frequencies=2)", "affine", "buckets"}) {
    PositionStand stand(spec, settings);
    const auto gradient = [&](bool transposed) {
      Tape tape;
      const PositionCall call{&tape, {}, {}, 1, 7, 0, 7, false, nullptr};
      const Tensor weights = tape.empty({3, 7}, DType::f64);
      for (int64_t i = 0; i < weights.elements(); ++i) weights.set_flat(i, std::sin(static_cast<double>(i + 1)));
      const Variable bias = stand.position().lag_bias(call, 7, nullptr), w = tape.constant(weights);
      for (Parameter* parameter : stand.position().parameters()) parameter->has_gradient = false;
      tape.backward(sum(transposed ? multiply(transpose(bias, 0, 1), transpose(w, 0, 1)) : multiply(bias, w)));
      std::vector<double> all;
      for (Parameter* parameter : stand.position().parameters())
        for (int64_t i = 0; i < parameter->gradient.elements(); ++i) all.push_back(parameter->gradient.flat(i));
      return all;
    };
    EXPECT_EQ(gradient(false), gradient(true)) << spec;
  }
}

// Shared tables that grew while an earlier, shorter one is on the tape leave it alone.
TEST(PjBias, TablesMayGrowBetweenForwardAndBackward) {
  PositionSettings settings;
  settings.heads = 2;
  settings.head_dim = 4;
  PositionStand stand("pj-bias(frequencies=3)", settings);
  const auto gradient = [&](bool grow) {
    Tape tape;
    const PositionCall call{&tape, {}, {}, 1, 9, 0, 9, false, nullptr};
    const Variable bias = stand.position().lag_bias(call, 9, nullptr);
    if (grow) stand.position().lag_bias(call, 5000, nullptr);
    for (Parameter* parameter : stand.position().parameters()) parameter->has_gradient = false;
    tape.backward(sum(square(bias)));
    std::vector<double> all;
    for (Parameter* parameter : stand.position().parameters())
      for (int64_t i = 0; i < parameter->gradient.elements(); ++i) all.push_back(parameter->gradient.flat(i));
    return all;
  };
  EXPECT_EQ(gradient(false), gradient(true));
}

TEST(Components, AddUpToTheBias) {
  PositionSettings settings;
  settings.heads = 3;
  settings.head_dim = 4;
  for (const char* spec :
       {"pj-bias(jets=3,lc-jets=2)", "affine(scale=10)", "alibi+pj-bias(learn-frequencies=1,learn-scale=1)"}) {
    PositionStand stand(spec, settings);
    const std::vector<int64_t> lags{0, 1, 50, 4000};
    for (int head = 0; head < 3; ++head) {
      const auto responses = bias_responses(stand, lags, head);
      ASSERT_GT(responses.size(), 2u) << spec;
      for (size_t n = 0; n < lags.size(); ++n) {
        double sum_of_parts = 0;
        for (size_t c = 1; c < responses.size(); ++c) sum_of_parts += responses[c].values[n];
        EXPECT_NEAR(sum_of_parts, responses[0].values[n], 1e-12 * std::max(1.0, std::fabs(sum_of_parts)))
            << spec << " lag " << lags[n];
      }
    }
  }
}

}  // namespace
}  // namespace sextant
