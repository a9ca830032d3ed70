// nearest_wrong_gradient and Rounding: what finds a wrong backward among many, and what rounding may do to a tape.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/elementwise.h"
#include "autograd/fault.h"
#include "autograd/products.h"
#include "autograd/reductions.h"
#include "autograd/rounding.h"
#include "autograd/shaping.h"

namespace sextant {
namespace {

using Contributors = std::vector<std::pair<std::string, int>>;

TapeFunction chain() {
  return [](Tape&, std::span<const Variable> x) { return square(tanh(matmul(exp(x[0]), sin(x[1])))); };
}
std::vector<Tensor> chain_inputs(Arena& arena) {
  return {sample(arena, {3, 4}, 0.3), sample(arena, {4, 2}, 0.3, 8)};
}

TEST(NearestWrongGradientTest, FindsNothingWhereNothingIsWrong) {
  Arena arena;
  EXPECT_EQ(nearest_wrong_gradient(chain(), chain_inputs(arena), 1e-6).node, -1);
}

TEST(NearestWrongGradientTest, NamesTheOperationAndItsInput) {
  Arena arena;
  const std::vector<std::pair<const char*, int>> places{{"matmul", 0}, {"matmul", 1}, {"exp", 0},
                                                        {"sin", 0},    {"tanh", 0},   {"square", 0}};
  for (const auto& [operation, input] : places) {
    for (const FaultKind kind : {FaultKind::wrong_sign, FaultKind::missing_factor, FaultKind::off_by_one}) {
      Fault fault(operation, input, kind);
      const WrongGradient wrong = nearest_wrong_gradient(chain(), chain_inputs(arena), 1e-6, &fault);
      EXPECT_EQ(wrong.contributors, (Contributors{{operation, input}})) << fault.text();
      EXPECT_GT(std::abs(wrong.analytic - wrong.numeric), 1e-6) << fault.text();
    }
  }
}

TEST(NearestWrongGradientTest, AViewIsNotToldFromTheMemoryItLooksAt) {
  Arena arena;
  const TapeFunction f = [](Tape&, std::span<const Variable> x) { return exp(reshape(x[0], {6})); };
  Fault fault("exp", 0, FaultKind::wrong_sign);
  const WrongGradient wrong = nearest_wrong_gradient(f, std::vector{sample(arena, {2, 3})}, 1e-6, &fault);
  EXPECT_EQ(wrong.node, 0);
  EXPECT_EQ(wrong.contributors, (Contributors{{"reshape", 0}, {"exp", 0}}));
}

TEST(NearestWrongGradientTest, AValueReadTwiceHasTwoSuspects) {
  Arena arena;
  const TapeFunction f = [](Tape&, std::span<const Variable> x) {
    const Variable first = exp(x[0]), second = sin(x[0]);
    return add(first, second);
  };
  Fault fault("sin", 0, FaultKind::dropped_term);
  EXPECT_EQ(nearest_wrong_gradient(f, std::vector{sample(arena, {3})}, 1e-6, &fault).contributors,
            (Contributors{{"exp", 0}, {"sin", 0}}));
}

TEST(RoundingTest, MovesEveryNumberByAShareOfItsSizeAndNoMore) {
  Arena arena;
  const Tensor x = sample(arena, {1000}, 5.0), moved = converted(arena, x, DType::f64);
  const WideList nothing;
  Rounding(0x1p-24, 1, nothing).move(moved);
  double largest = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    const double share = std::abs(moved.flat(i) / x.flat(i) - 1);
    EXPECT_GT(share, 0.0);
    largest = std::max(largest, share);
  }
  EXPECT_LE(largest, 0x1.0001p-24);
  EXPECT_GT(largest, 0.9 * 0x1p-24);
}

// d = a - b with a and b nearly equal: moving a and b by u moves d by up to 2 u |a|, far more than u |d|.
TEST(RoundingTest, SeesCancellation) {
  Arena arena;
  const WideList nothing;
  double largest = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Rounding rounding(0x1p-24, seed, nothing);
    Tape tape;
    tape.set_witness(&rounding);
    const Variable x = tape.variable(full(arena, {1}, 1.0, DType::f64));
    const Variable d = subtract(scale(x, 1000.0), scale(x, 999.0));
    largest = std::max(largest, std::abs(d.value().flat(0) - 1));
    tape.backward(sum(d));
    EXPECT_GT(std::abs(x.gradient().flat(0) - 1), 0.0);
  }
  EXPECT_LE(largest, 2001 * 0x1p-24);
  EXPECT_GT(largest, 500 * 0x1p-24);
}

TEST(RoundingTest, LeavesWhatF32ModelsKeepInF64) {
  Arena arena;
  const auto f = [](Variable x) { return exp(convert(cumulative_sum(x, 0), x.dtype())); };
  WideList wide;
  {
    Tape tape;
    tape.set_witness(&wide);
    const Variable x = tape.variable(full(arena, {4}, 0.5, DType::f32));
    tape.backward(sum(f(x)));
  }
  EXPECT_TRUE(wide.value("cumulative_sum"));
  EXPECT_FALSE(wide.value("exp"));
  EXPECT_TRUE(wide.gradient("convert", 0));          // of the f64 sums
  EXPECT_FALSE(wide.gradient("cumulative_sum", 0));  // of x
  Rounding rounding(0x1p-10, 1, wide);
  Tape tape;
  tape.set_witness(&rounding);
  const Variable sums = cumulative_sum(tape.variable(full(arena, {4}, 0.5, DType::f64)), 0);
  EXPECT_EQ(sums.value().flat(3), 2.0);
  EXPECT_NE(exp(sums).value().flat(3), std::exp(2.0));
}

TEST(WitnessTest, ViewsAreNotRecordedValues) {
  struct Names : Tape::Witness {
    void recorded(const char* operation, int, const Tensor&) override { all.emplace_back(operation); }
    std::vector<std::string> all;
  } names;
  Arena arena;
  Tape tape;
  tape.set_witness(&names);
  const Variable x = tape.variable(sample(arena, {2, 6}));
  contiguous(transpose(slice(reshape(exp(x), {3, 4}), 1, 1, 2), 0, 1));
  EXPECT_EQ(names.all, (std::vector<std::string>{"exp", "contiguous"}));
}

}  // namespace
}  // namespace sextant
