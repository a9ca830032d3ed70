// The tape itself: accumulation, views that share a gradient, scopes, printing, what it reports when numbers go bad.
#include "autograd/tape.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/elementwise.h"
#include "autograd/products.h"
#include "autograd/reductions.h"
#include "autograd/shaping.h"
#include "core/error.h"

namespace sextant {
namespace {

class TapeTest : public testing::Test {
 protected:
  Variable leaf(const Shape& shape, std::initializer_list<double> values) {
    return tape.variable(from_values(arena, shape, std::vector<double>(values), DType::f64));
  }
  static std::vector<double> values(const Tensor& x) {
    std::vector<double> result;
    for (int64_t i = 0; i < x.elements(); ++i) result.push_back(x.flat(i));
    return result;
  }
  Arena arena;
  Tape tape;
};

TEST_F(TapeTest, GradientOfAValueUsedTwiceAddsUp) {
  const Variable x = leaf({2}, {3, -2});
  // loss = sum(x * x + x) so dx = 2 x + 1
  tape.backward(sum(add(multiply(x, x), x)));
  EXPECT_EQ(values(x.gradient()), (std::vector<double>{7, -3}));
}

TEST_F(TapeTest, BorrowedGradientIsNotOverwrittenByALaterContribution) {
  const Variable x = leaf({1}, {5}), y = leaf({1}, {7});
  const Variable both = add(x, y);  // hands the same dy to x and y
  const Variable loss = sum(add(both, multiply(x, y)));
  tape.backward(loss);
  EXPECT_EQ(x.gradient().item(), 1 + 7);
  EXPECT_EQ(y.gradient().item(), 1 + 5);
  EXPECT_EQ(both.gradient().item(), 1);
}

// The gradient of a transposed view comes with its strides exchanged; who reads rows must not see that.
TEST_F(TapeTest, GradientsReachAnOperationWithContiguousRows) {
  const Variable x = leaf({2, 3}, {1, 2, 3, 4, 5, 6});
  static int64_t step;  // a closure on the tape holds nothing that needs destroying
  step = 0;
  const Variable y = tape.record("rows", {x}, x.value(), [x](const Tensor& dy) {
    step = dy.stride(1);
    x.accumulate(dy);
  });
  const Tensor weights = from_values(arena, {3, 2}, std::vector<double>{1, 2, 3, 4, 5, 6}, DType::f64);
  tape.backward(sum(multiply(transpose(y, 0, 1), tape.constant(weights))));
  EXPECT_EQ(step, 1);
  EXPECT_EQ(values(x.gradient()), (std::vector<double>{1, 3, 5, 2, 4, 6}));
}

TEST_F(TapeTest, ParameterAccumulatesOverBackwardsUntilItIsTakenUp) {
  Parameter w{"w", from_values(arena, {1}, std::vector<double>{2}, DType::f64), zeros(arena, {1}, DType::f64), false,
              false};
  w.gradient.fill(99);  // stale numbers must be overwritten, not added to
  for (int pass = 1; pass <= 2; ++pass) {
    const Variable x = tape.parameter(w);
    EXPECT_EQ(tape.parameter(w).index(), x.index());
    tape.backward(sum(square(x)));
    EXPECT_EQ(w.gradient.item(), 4.0 * pass);
    tape.reset();
  }
}

TEST_F(TapeTest, SplitWritesItsGradientsInPlaceAndFillsTheUnusedWithZeros) {
  const Variable x = leaf({1, 2, 6}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  const Variable qkv = scale(x, 1.0);
  const auto parts = split_qkv(qkv, 1);
  EXPECT_EQ(values(parts[1].value()), (std::vector<double>{3, 4, 9, 10}));
  // Used besides the split, too: its gradient must add up with that of the windows.
  tape.backward(add(sum(square(parts[1])), sum(qkv)));
  EXPECT_EQ(values(x.gradient()), (std::vector<double>{1, 1, 7, 9, 1, 1, 1, 1, 19, 21, 1, 1}));
}

TEST_F(TapeTest, NoGradRecordsValuesOnly) {
  const Variable x = leaf({1}, {2});
  Variable y;
  {
    const NoGrad guard(tape);
    y = square(x);
  }
  EXPECT_EQ(y.value().item(), 4);
  EXPECT_FALSE(y.needs_gradient());
  EXPECT_THROW(tape.backward(sum(y)), Error);
  EXPECT_TRUE(square(x).needs_gradient());
}

TEST_F(TapeTest, ScopeGivesBackNodesAndMemory) {
  const Variable x = leaf({2}, {1, 2});
  const Variable before = square(x);
  const size_t used = tape.arena().used();
  const int64_t nodes = tape.size();
  {
    const TapeScope scope(tape);
    for (int i = 0; i < 10; ++i) exp(tape.constant(full(tape.arena(), {100000}, 1.0, DType::f64)));
    EXPECT_GT(tape.arena().used(), used);
  }
  EXPECT_EQ(tape.arena().used(), used);
  EXPECT_EQ(tape.size(), nodes);
  tape.backward(sum(before));  // what was there before the scope still works
  EXPECT_EQ(values(x.gradient()), (std::vector<double>{2, 4}));
}

TEST_F(TapeTest, ConstantsGetNoGradientAndLossMustBeOneElement) {
  const Variable c = tape.constant(full(arena, {2}, 3.0, DType::f64)), x = leaf({2}, {1, 2});
  const Variable y = multiply(c, x);
  EXPECT_THROW(tape.backward(y), Error);
  tape.backward(sum(y));
  EXPECT_FALSE(c.gradient().defined());
  EXPECT_EQ(values(x.gradient()), (std::vector<double>{3, 3}));
}

TEST_F(TapeTest, NamesTheFirstOperationThatMadeANonFiniteNumber) {
  const Variable x = leaf({2}, {-1, 4});
  EXPECT_EQ(tape.first_nonfinite(), "");
  sum(scale(log(x), 2.0));
  EXPECT_EQ(tape.first_nonfinite(), "log");
}

TEST_F(TapeTest, PrintsOperationShapeBytesAndGradientNorm) {
  const Variable x = leaf({2}, {3, 4});
  tape.backward(sum(square(x)));
  const std::string text = tape.text();
  EXPECT_NE(text.find("square"), std::string::npos) << text;
  EXPECT_NE(text.find("[2]"), std::string::npos) << text;
  EXPECT_NE(text.find("10"), std::string::npos) << text;  // |dx| = |(6, 8)|
  EXPECT_EQ(tape.rows()[0].gradient_norm, 10.0);
  EXPECT_EQ(tape.rows()[1].bytes, 16u);
}

TEST_F(TapeTest, StepsOfEqualShapeStopAskingTheSystemForMemory) {
  const Tensor data = full(arena, {300, 300}, 0.5, DType::f64);
  size_t allocations = 0;
  for (int step = 0; step < 6; ++step) {
    const Variable x = tape.variable(data);
    tape.backward(sum(tanh(matmul(x, x))));
    tape.reset();
    if (step == 1) allocations = tape.arena().system_allocations();
  }
  EXPECT_EQ(tape.arena().system_allocations(), allocations);
}

TEST_F(TapeTest, ProfileCountsCallsTimeAndWorkByOperation) {
  tape.set_profiling(true);
  const Variable x = tape.variable(full(arena, {64, 64}, 0.1, DType::f64));
  tape.backward(sum(matmul(matmul(x, x), x)));
  const Tape::Timing& timing = tape.profile().at("matmul");
  EXPECT_EQ(timing.calls, 2);
  EXPECT_GT(timing.forward_seconds, 0);
  EXPECT_GT(timing.backward_seconds, 0);
  EXPECT_EQ(timing.forward_flops, 2 * 2.0 * 64 * 64 * 64);
  EXPECT_EQ(timing.backward_flops, 2 * timing.forward_flops);
}

}  // namespace
}  // namespace sextant
