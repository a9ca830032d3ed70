// The checker must be able to fail: wrong gradients are planted and must be found where they are.
#include "autograd/gradient_check.h"

#include <gtest/gtest.h>

#include "autograd/elementwise.h"
#include "autograd/products.h"
#include "autograd/reductions.h"
#include "core/error.h"

namespace sextant {
namespace {

// y = x^2 with a backward that is wrong in one entry only.
Variable planted(Variable x, int64_t wrong_entry, double factor) {
  const Tensor y = x.tape().empty(x.shape(), x.dtype());
  for (int64_t i = 0; i < y.elements(); ++i) y.set_flat(i, x.value().flat(i) * x.value().flat(i));
  return x.tape().record("planted", {x}, y, [x, wrong_entry, factor](const Tensor& dy) {
    const Tensor dx = x.tape().empty(x.shape(), x.dtype());
    for (int64_t i = 0; i < dx.elements(); ++i)
      dx.set_flat(i, 2 * x.value().flat(i) * dy.flat(i) * (i == wrong_entry ? factor : 1.0));
    x.accumulate(dx);
  });
}

TEST(GradientCheckTest, FindsThePlantedEntry) {
  Arena arena;
  const std::vector<Tensor> inputs{sample(arena, {2}), sample(arena, {3, 4}, 1.0, 9)};
  for (double factor : {-1.0, 0.0, 2.0, 1.0001}) {
    const GradientCheck check = check_gradients(
        [&](Tape&, std::span<const Variable> x) { return add(sum(planted(x[1], 7, factor)), sum(x[0])); }, inputs);
    EXPECT_GT(check.worst_error, 1e-6) << factor;
    EXPECT_EQ(check.input, 1);
    EXPECT_EQ(check.index, 7);
    EXPECT_NEAR(check.analytic, factor * check.numeric, 1e-6 * std::abs(check.numeric));
  }
  const GradientCheck right =
      check_gradients([&](Tape&, std::span<const Variable> x) { return planted(x[1], -1, 0); }, inputs);
  EXPECT_LT(right.worst_error, 1e-9);
  EXPECT_EQ(right.entries, 14);
}

TEST(GradientCheckTest, DirectionalFindsItToo) {
  Arena arena;
  const std::vector<Tensor> inputs{sample(arena, {50, 40})};
  EXPECT_GT(check_directional([](Tape&, std::span<const Variable> x) { return planted(x[0], 1234, -1.0); }, inputs, 4)
                .worst_error,
            1e-6);
  EXPECT_LT(
      check_directional([](Tape&, std::span<const Variable> x) { return planted(x[0], -1, 0); }, inputs, 4).worst_error,
      1e-9);
}

TEST(GradientCheckTest, RefusesF32AndNamesTheInput) {
  Arena arena;
  const std::vector<Tensor> inputs{sample(arena, {2}), zeros(arena, {2}, DType::f32)};
  try {
    check_gradients([](Tape&, std::span<const Variable> x) { return sum(x[0]); }, inputs);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("input 1"), std::string::npos) << error.what();
  }
}

TEST(GradientCheckTest, SeesAForgottenGradientAndANonRepeatableOne) {
  Arena arena;
  const std::vector<Tensor> inputs{sample(arena, {3})};
  const auto forgotten = [](Tape& tape, std::span<const Variable> x) {
    return tape.record("forgotten", {x[0]}, x[0].value(), [](const Tensor&) {});
  };
  EXPECT_NEAR(check_gradients(forgotten, inputs).worst_error, 1.0, 1e-5);
  int calls = 0;
  const auto unsteady = [&calls](Tape& tape, std::span<const Variable> x) {
    const Variable input = x[0];
    const int call = ++calls;
    return tape.record("unsteady", {input}, input.value(), [input, call](const Tensor& dy) {
      const Tensor dx = converted(input.tape().arena(), dy, DType::f64);
      dx.set_flat(0, dx.flat(0) * (1 + 1e-15 * call));
      input.accumulate(dx);
    });
  };
  EXPECT_FALSE(check_gradients(unsteady, inputs).repeatable);
}

TEST(GradientCheckTest, DifferenceOfTwinsIsRelativeToTheLargestEntry) {
  Arena arena;
  const std::vector<Tensor> inputs{sample(arena, {4, 4})};
  const auto f = [](Tape&, std::span<const Variable> x) { return square(x[0]); };
  const auto off = [](Tape&, std::span<const Variable> x) { return shift(square(x[0]), 1e-3); };
  EXPECT_EQ(worst_difference(f, f, inputs), 0);
  EXPECT_GT(worst_difference(f, off, inputs), 1e-5);
}

}  // namespace
}  // namespace sextant
