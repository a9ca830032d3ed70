// Accumulated rotations: against products of 2 x 2 matrices route by route, RoPE, long double sums, and a cache.
#include <gtest/gtest.h>

#include <numbers>

#include "core/angles.h"
#include "core/error.h"
#include "positional/accumulated_rotation.h"
#include "positional/rope.h"
#include "tests/positional/attention_layer.h"

namespace sextant {
namespace {

using namespace testing_layer;

// The angle steps of a layer [B, T, H, P] as its parameters or constants give them, in double.
std::vector<std::vector<double>> steps_of(Layer& layer, const Sequence& s, int64_t b, int64_t h) {
  const int64_t pairs = layer.settings.head_dim / 2, length = s.x.size(1);
  Parameter *weight = layer.find("blocks.0.position.transport.weight"),
            *bias = layer.find("blocks.0.position.transport.bias");
  std::vector<std::vector<double>> steps;
  for (int64_t t = 0; t < length; ++t) {
    std::vector<double> step;
    for (int64_t p = 0; p < pairs; ++p) {
      if (weight == nullptr) {
        step.push_back(
            layer.position->constants().at(0).value.at({s.tokens[static_cast<size_t>(b * length + t)], h, p}));
        continue;
      }
      double sum = bias->value.flat(h * pairs + p);
      for (int64_t c = 0; c < layer.settings.width; ++c)
        sum += weight->value.at({h * pairs + p, c}) * s.x.at({b, t, c});
      step.push_back(sum);
    }
    steps.push_back(step);
  }
  return steps;
}

// row <- R(-theta) row, pair by pair
void turn(std::vector<double>& row, const std::vector<double>& theta) {
  for (size_t p = 0; p < theta.size(); ++p) {
    const double c = std::cos(theta[p]), s = std::sin(theta[p]), x = row[2 * p], y = row[2 * p + 1];
    row[2 * p] = c * x + s * y;
    row[2 * p + 1] = c * y - s * x;
  }
}

// M_i ... M_{j+1} x, one step after another.
std::vector<double> carried(std::vector<double> x, const std::vector<std::vector<double>>& steps, int64_t j,
                            int64_t i) {
  for (int64_t t = j + 1; t <= i; ++t) turn(x, steps[static_cast<size_t>(t)]);
  return x;
}

class RotationTransport : public testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(RotationTransport, EqualsTheProductOfStepsRouteByRoute) {
  const auto [spec, values] = GetParam();
  Layer layer(spec, 2, 6, DType::f64);
  layer.shake(0.3);
  Arena arena;
  Tape tape;
  const Sequence s = random_sequence(arena, layer.settings, 2, 40);
  const double scale = 1 / std::sqrt(6.0);
  const auto logit = [&](int64_t b, int64_t h, int64_t i, int64_t j) {
    return scale * inner(row_of(s.q, b, i, h), carried(row_of(s.k, b, j, h), steps_of(layer, s, b, h), j, i));
  };
  const bool travels = values;
  const auto value = [&](int64_t b, int64_t h, int64_t i, int64_t j, std::vector<double>& row) {
    row = row_of(s.v, b, j, h);
    if (travels) row = carried(row, steps_of(layer, s, b, h), j, i);
  };
  const Tensor expected = plain_attention(arena, s, logit, value);
  EXPECT_LT(difference(layer.run(tape, s).value(), expected), 1e-13);
  EXPECT_LT(difference(layer.run(tape, s, true).value(), expected), 1e-13);
}
INSTANTIATE_TEST_SUITE_P(Kinds, RotationTransport,
                         testing::Values(std::tuple{"transport(kind=learned)", false},
                                         std::tuple{"transport(kind=learned,values=1)", true},
                                         std::tuple{"transport(kind=random)", false},
                                         std::tuple{"transport(kind=random,values=1,std=1.5)", true}));

TEST(Transport, ConstantStepsAreRope) {
  Layer layer("transport", 2, 16, DType::f64), rope("rope", 2, 16, DType::f64);
  layer.find("blocks.0.position.transport.weight")->value.zero();
  const auto frequencies = rope_frequencies(10000.0, "none", {1.0}, 16, 64);
  const Tensor bias = layer.find("blocks.0.position.transport.bias")->value;
  for (int64_t i = 0; i < 16; ++i) bias.set_flat(i, frequencies[static_cast<size_t>(i % 8)].value());
  Arena arena;
  Tape tape;
  const Sequence s = random_sequence(arena, layer.settings, 1, 700);
  EXPECT_LT(difference(layer.run(tape, s).value(), rope.run(tape, s).value()), 1e-12);
}

TEST(Transport, ConstantStepsStayRopeAtAHundredThousandTokens) {
  Arena arena;
  const int64_t length = 131072;
  const Tensor steps = full(arena, {1, length, 1, 1}, 1.0, DType::f64),
               angles = empty(arena, steps.shape(), DType::f64);
  kernels::accumulate_angles(steps, {}, angles);
  double worst = 0;
  for (int64_t t = 0; t < length; ++t) {
    const long double exact = std::remainder(static_cast<long double>(t + 1), 2 * std::numbers::pi_v<long double>);
    const long double error =
        std::remainder(static_cast<long double>(angles.flat(t)) - exact, 2 * std::numbers::pi_v<long double>);
    worst = std::max(worst, static_cast<double>(std::abs(error)));
    ASSERT_LE(std::abs(angles.flat(t)), 3.1415926535897936);
  }
  EXPECT_LT(worst, 2e-11);
}

TEST(Transport, PhasorsAreRightToAnUlp) {
  Arena arena;
  const int64_t count = 20001;
  const Tensor angles = empty(arena, {1, 1, 1, count}, DType::f64);
  for (int64_t i = 0; i < count; ++i)
    angles.set_flat(i, std::numbers::pi * (2.0 * static_cast<double>(i) / (count - 1) - 1.0));
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Tensor phasors = empty(arena, {1, 1, 1, 2 * count}, dtype);
    kernels::phasors_of(angles, phasors);
    const double tolerance = dtype == DType::f32 ? 3.1e-8 : 1.7e-16;  // half an ulp below 1, and a little for double
    for (int64_t i = 0; i < count; ++i) {
      const long double angle = angles.flat(i);
      ASSERT_NEAR(phasors.flat(2 * i), static_cast<double>(std::cos(angle)), tolerance) << angles.flat(i);
      ASSERT_NEAR(phasors.flat(2 * i + 1), static_cast<double>(std::sin(angle)), tolerance) << angles.flat(i);
    }
  }
}

// dLoss/dtheta at 65,536 steps for Loss = sum of weights times all rotated numbers.
Tensor step_gradient(Arena& arena, const Tensor& steps, const Tensor& q, const Tensor& k, const Tensor& weights,
                     DType dtype) {
  Tape tape;
  const Variable theta = tape.variable(converted(arena, steps, dtype));
  const Variable angles = accumulated_angles(theta, {});
  Features features{tape.constant(converted(arena, q, dtype)), tape.constant(converted(arena, k, dtype)), {}};
  rotate(accumulated_rotation(angles, dtype), features, false);
  tape.backward(features.q, converted(arena, weights, dtype));
  return converted(arena, theta.gradient(), DType::f64);
}

TEST(Transport, StepGradientIsASuffixSumAt65536Steps) {
  Arena arena;
  const int64_t length = 65536;
  const Shape shape{1, length, 1, 4}, pairs{1, length, 1, 2};
  // The inputs are exact in f32, so that both precisions see the same problem.
  const auto exact = [&](const Shape& of, uint64_t seed, double scale) {
    return converted(arena, random_tensor(arena, of, DType::f32, seed, scale), DType::f64);
  };
  const Tensor steps = exact(pairs, 1, 0.3), q = exact(shape, 2, 1.0), k = exact(shape, 3, 1.0),
               weights = exact(shape, 4, 1.0);
  const Tensor wide = step_gradient(arena, steps, q, k, weights, DType::f64);
  const Tensor narrow = step_gradient(arena, steps, q, k, weights, DType::f32);
  // The oracle: dLoss/dPhi_t of each rotation by itself in long double, added from the end.
  std::vector<std::array<long double, 2>> local(static_cast<size_t>(length));
  std::array<long double, 2> phi{}, suffix{};
  for (int64_t t = 0; t < length; ++t)
    for (int64_t p = 0; p < 2; ++p) {
      long double& angle = phi[static_cast<size_t>(p)];
      angle += steps.flat(2 * t + p);
      const long double c = std::cos(angle), s = std::sin(angle), x = q.flat(4 * t + 2 * p),
                        y = q.flat(4 * t + 2 * p + 1);
      local[static_cast<size_t>(t)][static_cast<size_t>(p)] =
          static_cast<long double>(weights.flat(4 * t + 2 * p)) * (-s * x - c * y) +
          static_cast<long double>(weights.flat(4 * t + 2 * p + 1)) * (c * x - s * y);
    }
  const Tensor expected = empty(arena, pairs, DType::f64);
  for (int64_t t = length - 1; t >= 0; --t)
    for (int64_t p = 0; p < 2; ++p) {
      suffix[static_cast<size_t>(p)] += local[static_cast<size_t>(t)][static_cast<size_t>(p)];
      expected.set_flat(2 * t + p, static_cast<double>(suffix[static_cast<size_t>(p)]));
    }
  EXPECT_LT(difference(wide, expected), 1e-11);
  EXPECT_LT(difference(narrow, expected), 1e-6);
}

TEST(Transport, GateKeyIsTheGateTerm) {
  Layer one("transport(values=1,gate=1)", 2, 4, DType::f64), two("transport(values=1)+gate", 2, 4, DType::f64);
  Arena arena;
  Tape tape;
  const Sequence s = random_sequence(arena, one.settings, 1, 30);
  const auto a = one.position->parameters(), b = two.position->parameters();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i]->name, b[i]->name);
    EXPECT_EQ(difference(a[i]->value, b[i]->value), 0.0);
  }
  EXPECT_EQ(a.back()->name, "blocks.0.position.gate.bias");
  EXPECT_EQ(difference(one.run(tape, s).value(), two.run(tape, s).value()), 0.0);
}

TEST(Transport, RandomAnglesAreAFunctionOfTheToken) {
  Layer layer("transport(kind=random,std=0.5)", 3, 8, DType::f32);
  ASSERT_EQ(layer.position->constants().size(), 1u);
  const PositionConstant constant = layer.position->constants()[0];
  EXPECT_EQ(constant.name, "blocks.0.position.transport.angles");
  EXPECT_EQ(constant.value.shape(), (Shape{11, 3, 4}));
  double square = 0;
  for (int64_t i = 0; i < 132; ++i) square += constant.value.flat(i) * constant.value.flat(i) / 132;
  EXPECT_NEAR(std::sqrt(square), 0.5, 0.1);
  EXPECT_TRUE(layer.position->parameters().empty());
}

TEST(Transport, ByPositionIgnoresTheTokens) {
  Layer layer("transport(kind=random,by=position)", 2, 4, DType::f64),
      by_token("transport(kind=random)", 2, 4, DType::f64);
  Arena arena;
  Tape tape;
  Sequence s = random_sequence(arena, layer.settings, 1, 30);
  const Tensor before = layer.run(tape, s).value(), token_before = by_token.run(tape, s).value();
  for (int32_t& token : s.tokens) token = (token + 1) % 11;
  EXPECT_EQ(difference(layer.run(tape, s).value(), before), 0.0);
  EXPECT_GT(difference(by_token.run(tape, s).value(), token_before), 1e-3);
  EXPECT_TRUE(layer.position->constants().empty());
}

TEST(Transport, NearRoutesBeginNearTheIdentity) {
  Layer layer("transport", 2, 16, DType::f64), none("none", 2, 16, DType::f64);
  Arena arena;
  Tape tape;
  const Sequence s = random_sequence(arena, layer.settings, 1, 8);
  const double away = difference(layer.run(tape, s).value(), none.run(tape, s).value());
  EXPECT_LT(away, 0.1);
  EXPECT_GT(away, 1e-6);  // but not at the identity itself, where all pairs would learn alike
}

class CachedTransport : public testing::TestWithParam<const char*> {};

TEST_P(CachedTransport, EqualsTheFullPass) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Layer layer(GetParam(), 2, 8, dtype);
    layer.shake(0.2);
    Arena arena;
    Tape tape;
    const Sequence s = random_sequence(arena, layer.settings, 2, 200);
    const Tensor full_pass = layer.run(tape, s).value();
    const double tolerance = dtype == DType::f32 ? 1e-5 : 1e-12;
    std::vector<int64_t> one_by_one(200, 1);
    EXPECT_LT(difference(layer.run_cached(arena, s, one_by_one), full_pass), tolerance);
    EXPECT_LT(difference(layer.run_cached(arena, s, {200}), full_pass), tolerance);
    EXPECT_LT(difference(layer.run_cached(arena, s, {1, 62, 1, 1, 63, 65, 7}), full_pass), tolerance);
    EXPECT_LT(difference(layer.run_cached(arena, s, {64, 64, 72}), full_pass), tolerance);
    EXPECT_LT(difference(layer.run_cached(arena, s, {50, 150}), full_pass), tolerance);
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, CachedTransport,
                         testing::Values("transport(kind=learned,values=1)", "transport(kind=random,values=1)",
                                         "transport(kind=random,by=position)", "transport(kind=householder)",
                                         "transport(kind=householder,values=1)", "transport(kind=path)",
                                         "transport(kind=path,gate=1)", "transport(gate=1)", "gate", "rope+gate+alibi",
                                         "rope+transport(values=1)"));

TEST(Transport, RefusesWhatHasNoMeaning) {
  const auto message = [](const char* spec, int64_t head_dim) -> std::string {
    try {
      Layer(spec, 2, head_dim, DType::f32);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message("transport", 5).find("head dimension is 5"), std::string::npos);
  EXPECT_NE(message("transport(kind=path,values=1)", 4).find("values=1"), std::string::npos);
  EXPECT_NE(message("transport(kind=householder,std=1)", 4).find("std"), std::string::npos);
  EXPECT_NE(message("transport(by=position)", 4).find("by=position"), std::string::npos);
  EXPECT_NE(message("transport(kind=path)+rope", 4).find("do not commute"), std::string::npos);
  EXPECT_NE(message("transport(gate=1)+gate", 4).find("gate.weight"), std::string::npos);
  EXPECT_EQ(message("transport+rope", 4), "");
}

}  // namespace
}  // namespace sextant
