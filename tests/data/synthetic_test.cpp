// The teachers' tasks: the Bayes-optimal loss against enumeration of all sequences, against what is drawn, and against
// other predictors.
#include "data/synthetic.h"

#include <cmath>
#include <numbers>

#include "tests/data/temporary.h"

namespace sextant {
namespace {

// A naive twin: softmax over lags in long double, position by position.
std::vector<double> naive(const SyntheticTask& task, const std::vector<int32_t>& x, size_t i) {
  std::vector<long double> m(static_cast<size_t>(task.vocabulary()), 0.0L), p(m.size());
  long double total = 0;
  for (size_t j = 0; j <= i; ++j) {
    const long double a = std::exp(static_cast<long double>(task.kernel()(static_cast<int64_t>(i - j))));
    m[static_cast<size_t>(x[j])] += a;
    total += a;
  }
  long double sum = 0;
  for (size_t v = 0; v < m.size(); ++v)
    sum += p[v] = std::exp(static_cast<long double>(task.sharpness()) * m[v] / total);
  std::vector<double> out;
  for (const long double value : p) out.push_back(static_cast<double>(value / sum));
  return out;
}

TEST(Synthetic, KernelsByHand) {
  const double pi = std::numbers::pi;
  const TeacherKernel affine{.sector = TeacherKernel::Sector::affine, .scale = 8, .slope = 2};
  EXPECT_DOUBLE_EQ(affine(4), -1);
  const TeacherKernel phase{.sector = TeacherKernel::Sector::phase, .amplitude = 3, .angle_per_token = pi / 4};
  EXPECT_DOUBLE_EQ(phase(0), 3);
  EXPECT_DOUBLE_EQ(phase(4), -3);
  EXPECT_NEAR(phase(2), 0, 1e-15);
  // x e e^{-x} cos: at x = 1 the envelope is 1.
  const TeacherKernel jet{.sector = TeacherKernel::Sector::jet,
                          .order = 1,
                          .scale = 8,
                          .amplitude = 5,
                          .angle_per_token = pi / 8,
                          .damping = 1};
  EXPECT_DOUBLE_EQ(jet(8), -5);
  EXPECT_DOUBLE_EQ(jet(0), 0);
  EXPECT_NEAR(jet(16), 5 * 2 * std::exp(-1.0), 1e-14);
  const TeacherKernel cone{
      .sector = TeacherKernel::Sector::light_cone, .order = 1, .scale = 3, .amplitude = 2, .angle_per_token = 0.5};
  EXPECT_NEAR(cone(4), 2 * 0.8 * std::cos(0.5 * 3 * std::log(3.0)), 1e-14);  // asinh(4/3) = log 3
}

TEST(Synthetic, DistributionAgreesWithTheNaiveTwin) {
  for (const std::string& name : synthetic_task_names()) {
    const SyntheticTask task = synthetic_task(name);
    Batch batch;
    task.fill(3, 0, 1, 50, batch);
    const auto p = task.distribution(batch.inputs);
    for (size_t i = 0; i < 50; ++i) {
      const auto expected = naive(task, batch.inputs, i);
      for (size_t v = 0; v < expected.size(); ++v)
        EXPECT_NEAR(p[i * expected.size() + v], expected[v], 1e-13) << name << " " << i;
    }
  }
}

TEST(Synthetic, BayesLossIsTheMeanOverAllSequences) {
  // V = 2, T = 6: all 64 sequences by enumeration; the mean of many batches must approach it.
  const SyntheticTask task("t", {.sector = TeacherKernel::Sector::affine, .scale = 4, .slope = 2}, 2, 3);
  double exact = 0;
  for (int code = 0; code < 64; ++code) {
    std::vector<int32_t> x;
    for (int i = 0; i < 6; ++i) x.push_back(code >> i & 1);
    for (size_t i = 0; i < 6; ++i)
      for (const double p : naive(task, x, i)) exact -= p * std::log(p) / (64 * 6);
  }
  double mean = 0;
  Batch batch;
  const int steps = 200;
  for (int step = 0; step < steps; ++step) mean += task.fill(9, step, 64, 6, batch) / steps;
  EXPECT_NEAR(mean, exact, 0.002);
  const double returned = task.fill(9, 4, 64, 6, batch);
  EXPECT_DOUBLE_EQ(returned, task.bayes_loss(batch));
}

TEST(Synthetic, NoPredictorIsBetter) {
  // The mean negative log likelihood of the drawn labels: the teacher's own approaches the Bayes loss, other kernels
  // and no kernel are worse.
  for (const std::string& name : synthetic_task_names()) {
    const SyntheticTask task = synthetic_task(name);
    double bayes = 0, own = 0, flat = 0, uniform = 0;
    const SyntheticTask other("flat", {.sector = TeacherKernel::Sector::affine, .slope = 0}, task.vocabulary(),
                              task.sharpness());
    Batch batch;
    const int steps = 60;
    for (int step = 0; step < steps; ++step) {
      bayes += task.fill(1, step, 16, 64, batch) / steps;
      for (size_t s = 0; s < 16; ++s) {
        const auto x = std::span(batch.inputs).subspan(s * 64, 64);
        const auto p = task.distribution(x), q = other.distribution(x);
        for (size_t i = 0; i < 64; ++i) {
          const size_t y = static_cast<size_t>(batch.targets[s * 64 + i]),
                       at = i * static_cast<size_t>(task.vocabulary()) + y;
          own -= std::log(p[at]) / (steps * 16 * 64);
          flat -= std::log(q[at]) / (steps * 16 * 64);
        }
      }
    }
    uniform = std::log(static_cast<double>(task.vocabulary()));
    std::printf("%-10s Bayes %.4f, drawn %.4f, flat kernel %.4f, uniform %.4f nats\n", name.c_str(), bayes, own, flat,
                uniform);
    EXPECT_NEAR(own, bayes, 0.01) << name;
    EXPECT_GT(flat, bayes + 0.1) << name;
    EXPECT_LT(bayes, 0.75 * uniform) << name;  // there is something to learn
    EXPECT_GT(bayes, 0.2 * uniform) << name;   // and it is not determined
  }
}

TEST(Synthetic, AFunctionOfSeedAndStep) {
  const SyntheticTask task = synthetic_task("jet-1");
  Batch a, b;
  task.fill(1, 2, 3, 20, a);
  task.fill(1, 2, 3, 20, b);
  EXPECT_EQ(a.inputs, b.inputs);
  EXPECT_EQ(a.targets, b.targets);
  task.fill(1, 3, 3, 20, b);
  EXPECT_NE(a.inputs, b.inputs);
  task.fill(2, 2, 3, 20, b);
  EXPECT_NE(a.inputs, b.inputs);
}

TEST(Synthetic, AwkwardSizesAndErrors) {
  Batch batch;
  const SyntheticTask task = synthetic_task("affine");
  task.fill(1, 0, 1, 1, batch);
  EXPECT_EQ(batch.inputs.size(), 1u);
  // An extreme slope: all weights but the newest vanish, the loss stays finite.
  const SyntheticTask steep("steep", {.sector = TeacherKernel::Sector::affine, .scale = 1, .slope = 1e6}, 4, 5);
  EXPECT_TRUE(std::isfinite(steep.fill(1, 0, 2, 300, batch)));
  EXPECT_ERROR(synthetic_task("jets"), "jets", "jet-1", "light-cone");
  EXPECT_ERROR(SyntheticTask("t", TeacherKernel{}, 1, 1), "vocabulary of 1");
  EXPECT_ERROR(task.fill(1, -1, 1, 1, batch), "-1");
  EXPECT_ERROR(task.distribution(std::vector<int32_t>{8}), "token 8");
}

}  // namespace
}  // namespace sextant
