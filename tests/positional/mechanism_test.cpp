// The mechanism tools on cases whose answers are known.
#include <gtest/gtest.h>

#include <numeric>

#include "positional/householder.h"
#include "positional/logits.h"
#include "positional/mechanism.h"
#include "tests/positional/attention_layer.h"

namespace sextant::mechanism {
namespace {

std::vector<int64_t> up_to(int64_t last) {
  std::vector<int64_t> lengths(static_cast<size_t>(last + 1));
  std::iota(lengths.begin(), lengths.end(), 0);
  return lengths;
}

TEST(SpectralGap, GaussianAngles) {
  const Random random(3, "angles");
  for (const double deviation : {0.1, 0.5, 1.5}) {
    std::vector<double> angles;
    for (uint64_t i = 0; i < 200000; ++i) angles.push_back(deviation * random.normal(i));
    EXPECT_NEAR(spectral_gap_of_angles(angles), 1 - std::exp(-deviation * deviation / 2), 5e-3);
  }
  EXPECT_EQ(spectral_gap_of_angles(std::vector<double>{0.7}), 0.0);
  EXPECT_NEAR(spectral_gap_of_angles(std::vector<double>{0.0, M_PI}), 1.0, 1e-15);
}

TEST(SpectralGap, OfMatricesIsThatOfTheirLargestBlock) {
  // One pair turns by +-1 in turns (mean cos 1), the other by +-0.25.
  Arena arena;
  const Tensor angles = from_values(arena, {2, 2}, std::vector<double>{1.0, 0.25, -1.0, -0.25}, DType::f64);
  EXPECT_NEAR(spectral_gap(rotation_steps(angles), 2, 4), 1 - std::cos(0.25), 1e-12);
}

TEST(SpectralGap, ReflectionsAndHaar) {
  // Reflections along all D axes: the mean is (1 - 2/D) I.  PaTH with strength beta: (1 - beta/D) I.
  Arena arena;
  const Tensor axes = zeros(arena, {5, 5}, DType::f64);
  for (int64_t i = 0; i < 5; ++i) axes.set_flat(6 * i, 3.0);
  EXPECT_NEAR(spectral_gap(householder_steps(axes), 5, 5), 2.0 / 5, 1e-12);
  EXPECT_NEAR(spectral_gap(path_steps(axes, full(arena, {5}, 0.5, DType::f64)), 5, 5), 0.1, 1e-12);
  EXPECT_GT(spectral_gap(haar_steps(Random(1, "haar"), 8), 4000, 8), 0.9);  // the mean of Haar's measure is 0
}

TEST(Haar, IsOrthogonalWithScoresOfDeviationOneOverRootD) {
  const Random random(1, "haar");
  for (const int64_t dim : {4, 16, 64}) {
    const std::vector<double> m = haar_orthogonal(random, 7, dim);
    for (int64_t i = 0; i < dim; ++i)
      for (int64_t j = 0; j <= i; ++j) {
        double sum = 0;
        for (int64_t d = 0; d < dim; ++d)
          sum += m[static_cast<size_t>(i * dim + d)] * m[static_cast<size_t>(j * dim + d)];
        ASSERT_NEAR(sum, i == j ? 1.0 : 0.0, 1e-14);
      }
  }
  // A step is the same whichever was asked for before, and two of them can be held at a time.
  const Step steps = haar_steps(random, 4);
  const Map seventh = steps(7), third = steps(3);
  std::vector<double> x(4, 1.0), y(4, 1.0);
  third(y);
  seventh(x);
  const std::vector<double> rows = haar_orthogonal(random, 7, 4);
  for (size_t r = 0; r < 4; ++r)
    EXPECT_NEAR(x[r], rows[4 * r] + rows[4 * r + 1] + rows[4 * r + 2] + rows[4 * r + 3], 1e-14);
  EXPECT_NE(x, y);
  std::vector<double> probe(16, 0.25);
  const Decoherence curve = decoherence(haar_steps(random, 16), 3000, probe, probe, std::vector<int64_t>{0, 1, 3}, 2);
  EXPECT_NEAR(curve.mean[0], 1.0, 1e-12);
  EXPECT_NEAR(curve.deviation[0], 0.0, 1e-12);
  for (const size_t n : {1, 2}) {
    EXPECT_NEAR(curve.mean[n], 0.0, 0.025);
    EXPECT_NEAR(curve.deviation[n], 1 / std::sqrt(16.0), 0.015);
  }
}

TEST(DecoherenceCurve, GaussianRotationsDecayExponentially) {
  const double deviation = 0.5;
  const std::vector<double> probe(32, 1.0);
  const Decoherence curve =
      decoherence(gaussian_rotation_steps(Random(2, "steps"), deviation), 20000, probe, probe, up_to(24), 5);
  for (size_t n = 0; n < curve.mean.size(); ++n)
    EXPECT_NEAR(curve.mean[n], std::exp(-static_cast<double>(n) * deviation * deviation / 2), 0.02) << n;
  // 2 / deviation^2 = 8 steps to 1/e.
  EXPECT_NEAR(static_cast<double>(mixing_window(curve, std::exp(-1.0))), 8.0, 1.0);
}

TEST(DecoherenceCurve, WindowDoesNotDependOnTheContext) {
  const std::vector<double> probe(32, 1.0);
  for (const int64_t context : {1000, 4000, 16000}) {
    const Decoherence curve =
        decoherence(gaussian_rotation_steps(Random(2, "steps"), 0.4), context, probe, probe, up_to(60), 3);
    EXPECT_NEAR(static_cast<double>(mixing_window(curve, 0.2)), -2 * std::log(0.2) / 0.16, 2.5) << context;
  }
}

TEST(DecoherenceCurve, FromTransformedFeaturesOfALayer) {
  // Householder steps of a layer, seen by the features of a probe and step by step.
  Arena arena;
  Tape tape;
  const Tensor w = testing_layer::random_tensor(arena, {1, 60, 1, 4}, DType::f64, 1);
  const Tensor probes = full(arena, w.shape(), 1.0, DType::f64);
  Features features{tape.constant(probes), tape.constant(probes), {}};
  reflect(accumulated_reflections(tape.constant(w)), features, false);
  const auto rows = [](Variable x) { return x.value().reshape({60, 4}); };
  const std::vector<double> probe(4, 1.0);
  const std::vector<int64_t> lengths{0, 1, 2, 7, 59, 60};
  const Decoherence a = decoherence_of_features(rows(features.q), rows(features.k), 4.0, lengths);
  const Decoherence b = decoherence(householder_steps(w.reshape({60, 4})), 60, probe, probe, lengths, 1);
  for (size_t n = 0; n < 5; ++n) {
    EXPECT_NEAR(a.mean[n], b.mean[n], 1e-13);
    EXPECT_NEAR(a.deviation[n], b.deviation[n], 1e-13);
  }
  EXPECT_TRUE(std::isnan(a.mean[5]) && std::isnan(b.mean[5]));
}

TEST(MixingWindow, IsTheLastCrossing) {
  EXPECT_EQ(mixing_window({{1, 2, 4, 8}, {0.9, 0.1, 0.5, 0.1}, {}}, 0.2), 8);
  EXPECT_EQ(mixing_window({{1, 2, 4, 8}, {0.9, -0.1, 0.05, -0.2}, {}}, 0.2), 2);
  EXPECT_EQ(mixing_window({{1, 2}, {0.9, 0.8}, {}}, 0.2), -1);
  EXPECT_EQ(mixing_window({{1, 2, 3}, {0.9, 0.1, NAN}, {}}, 0.2), 2);
}

TEST(ScoreGap, IsNearMeanLessLargestFarScore) {
  const Decoherence curve{{0, 1, 5, 9}, {1.0, 0.5, -0.2, 0.1}, {0.0, 0.1, 0.02, 0.3}};
  EXPECT_NEAR(score_gap(curve, 1, 0.0), 0.75 - 0.2, 1e-15);
  EXPECT_NEAR(score_gap(curve, 1, 1.0), 0.75 - 0.4, 1e-15);
  EXPECT_TRUE(std::isnan(score_gap(curve, 9, 0.0)));
}

TEST(FarMass, AgainstClosedForms) {
  EXPECT_DOUBLE_EQ(far_mass(std::vector<double>(10, 3.0), 3), 0.6);  // 10 equal sources, 4 of them near
  EXPECT_DOUBLE_EQ(far_mass(std::vector<double>{1.0}, 0), 0.0);
  EXPECT_DOUBLE_EQ(far_mass(std::vector<double>{800.0, 800.0, -800.0}, 1), 0.5);
  // The bound is met with equality when far sources are as low and near ones as high as lambda allows.
  std::vector<double> logits(100, -1.5);
  for (size_t j = 90; j < 100; ++j) logits[j] = 1.5;
  EXPECT_NEAR(far_mass(logits, 9), far_mass_bound(10, 90, 1.5), 1e-14);
  EXPECT_EQ(far_mass_bound(10, 0, 1.0), 0.0);
  EXPECT_GT(far_mass_bound(10, int64_t{1} << 40, 2.0), 0.999);
}

TEST(FarMass, LogitsOfAQuery) {
  Arena arena;
  const Tensor q = from_values(arena, {1, 3, 1, 2}, std::vector<double>{1, 0, 0, 1, 1, 1}, DType::f64);
  const Tensor k = from_values(arena, {1, 3, 1, 2}, std::vector<double>{1, 2, 3, 4, 5, 6}, DType::f64);
  const Tensor bias = from_values(arena, {1, 3}, std::vector<double>{0, -1, -10}, DType::f64);
  const Tensor gate = from_values(arena, {1, 3, 1}, std::vector<double>{-0.5, -1.5, -3.5}, DType::f64);
  EXPECT_EQ(logits_of_query({q, k, {}, bias, gate, 0.5, nullptr}, 0, 0, 2),
            (std::vector<double>{1.5 - 10 - 3, 3.5 - 1 - 2, 5.5}));
  EXPECT_EQ(logits_of_query({q, k, {}, {}, {}, 1.0, nullptr}, 0, 0, 1), (std::vector<double>{2, 4}));
  // One query, the last of three positions.
  EXPECT_EQ(logits_of_query({q.slice(1, 2, 1), k, {}, {}, {}, 1.0, nullptr}, 0, 0, 0), (std::vector<double>{3, 7, 11}));
}

TEST(FarContribution, CancelsWhenValuesAreRotated) {
  const FarModel model{.weights = std::vector<double>(200, 1.0 / 200), .dim = 4, .background = 1.0, .noise = 0.5};
  const double deviation = 0.6, resultant = std::exp(-deviation * deviation / 2);
  const Random random(4, "values");
  const int64_t contexts = 4000;
  const auto still = far_covariance(model, {}, contexts, random);
  const auto moved = far_covariance(
      model,
      [&](int64_t context) {
        return gaussian_rotation_steps(Random(100 + static_cast<uint64_t>(context), "steps"), deviation);
      },
      contexts, random);
  // Without transport the shared background comes through whole: 1 + 0.25 / 200 a coordinate.
  EXPECT_NEAR(far_variance(model, 1.0), 1 + 0.25 / 200, 1e-12);
  EXPECT_NEAR(trace(still, 4) / 4, far_variance(model, 1.0), 0.05);
  EXPECT_NEAR(trace(moved, 4) / 4 / far_variance(model, resultant), 1.0, 0.1);
  EXPECT_LT(trace(moved, 4), 0.1 * trace(still, 4));
  EXPECT_NEAR(moved[1], 0.0, 0.01);
}

TEST(FarContribution, VarianceIsTheDoubleSum) {
  const FarModel model{.weights = {0.5, -0.25, 2.0, 0.125}, .dim = 2, .background = 3.0, .noise = 0.5};
  double expected = 0;
  for (int j = 0; j < 4; ++j) {
    for (int k = 0; k < 4; ++k)
      expected += 9.0 * model.weights[static_cast<size_t>(j)] * model.weights[static_cast<size_t>(k)] *
                  std::pow(0.7, std::abs(j - k));
    expected += 0.25 * model.weights[static_cast<size_t>(j)] * model.weights[static_cast<size_t>(j)];
  }
  EXPECT_NEAR(far_variance(model, 0.7), expected, 1e-12);
}

}  // namespace
}  // namespace sextant::mechanism
