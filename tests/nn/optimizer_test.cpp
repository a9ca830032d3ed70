// AdamW against its published algorithm written plainly in long double; clipping's norm; the schedule's corners.
#include "nn/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/random.h"

namespace sextant {
namespace {

TEST(AdamWTest, FollowsThePublishedAlgorithm) {
  Arena arena;
  for (DType dtype : {DType::f32, DType::f64}) {
    const int64_t count = 37;
    Parameter w{"w", empty(arena, {count}, dtype), empty(arena, {count}, dtype), false, true};
    fill_normal(w.value, Random(1, "w"), 0, 1);
    std::vector<long double> value, m(37, 0), v(37, 0);
    for (int64_t i = 0; i < count; ++i) value.push_back(w.value.flat(i));
    AdamW optimizer({&w}, {0.9, 0.95, 1e-8, 0.1});
    for (int t = 1; t <= 5; ++t) {
      const long double lr = 0.01L * t;
      fill_normal(w.gradient, Random(static_cast<uint64_t>(t), "g"), 0, t == 3 ? 1e-6 : 1);
      w.has_gradient = true;
      for (size_t i = 0; i < 37; ++i) {
        const long double g = 0.5L * w.gradient.flat(static_cast<int64_t>(i));
        m[i] = 0.9L * m[i] + 0.1L * g;
        v[i] = 0.95L * v[i] + 0.05L * g * g;
        value[i] -= lr * 0.1L * value[i];  // decoupled: the decay does not pass through the moments
        value[i] -= lr * (m[i] / (1 - powl(0.9L, t))) / (sqrtl(v[i] / (1 - powl(0.95L, t))) + 1e-8L);
      }
      optimizer.step(static_cast<double>(lr), 0.5);
      EXPECT_FALSE(w.has_gradient);
    }
    for (int64_t i = 0; i < count; ++i)
      EXPECT_NEAR(w.value.flat(i), static_cast<double>(value[static_cast<size_t>(i)]),
                  dtype == DType::f32 ? 1e-6 : 1e-14);
  }
}

TEST(AdamWTest, AParameterWithoutGradientOnlyDecaysAndStaleNumbersAreIgnored) {
  Arena arena;
  Parameter w{"w", full(arena, {1}, 2.0, DType::f64), full(arena, {1}, 77.0, DType::f64), false, true};
  Parameter b{"b", full(arena, {1}, 2.0, DType::f64), full(arena, {1}, 77.0, DType::f64), false, false};
  AdamW optimizer({&w, &b}, {0.9, 0.95, 1e-8, 0.5});
  optimizer.step(0.1);
  EXPECT_DOUBLE_EQ(w.value.item(), 2.0 * (1 - 0.1 * 0.5));
  EXPECT_DOUBLE_EQ(b.value.item(), 2.0);
}

TEST(GradientNormTest, IsTheNormOverAllParametersThatHaveOne) {
  Arena arena;
  Parameter a{"a", zeros(arena, {2}), from_values(arena, {2}, std::vector<double>{3, 0}), true, false};
  Parameter b{"b", zeros(arena, {1}), from_values(arena, {1}, std::vector<double>{4}), true, false};
  Parameter c{"c", zeros(arena, {1}), from_values(arena, {1}, std::vector<double>{100}), false, false};
  const std::vector<Parameter*> all{&a, &b, &c};
  EXPECT_DOUBLE_EQ(gradient_norm(all), 5.0);
}

TEST(ScheduleTest, WarmsUpLinearlyAndFallsAlongACosine) {
  const Schedule schedule{1.0, 0.1, 10, 110};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.1);
  EXPECT_DOUBLE_EQ(schedule.at(9), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(10), 1.0);
  EXPECT_NEAR(schedule.at(60), 0.55, 1e-15);  // half-way: the mean of peak and floor
  EXPECT_DOUBLE_EQ(schedule.at(110), 0.1);
  EXPECT_DOUBLE_EQ(schedule.at(100000), 0.1);
  const Schedule no_warmup{1.0, 0.0, 0, 2};
  EXPECT_DOUBLE_EQ(no_warmup.at(0), 1.0);
  EXPECT_NEAR(no_warmup.at(1), 0.5, 1e-15);
}

}  // namespace
}  // namespace sextant
