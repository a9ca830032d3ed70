// Every registered operation, at every registered input, against central differences in f64 and against its composed
// twin; and a few closed forms that neither derivation can get wrong together.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/attention.h"
#include "autograd/elementwise.h"
#include "autograd/gradient_check.h"
#include "autograd/normalization.h"
#include "autograd/products.h"
#include "autograd/reductions.h"
#include "autograd/shaping.h"
#include "autograd/softmax.h"
#include "core/error.h"

namespace sextant {
namespace {

class OperationTest : public testing::TestWithParam<std::string> {};

const AuditEntry& entry_of(const std::string& name) {
  for (const AuditEntry& entry : audit_entries())
    if (entry.family + "/" + entry.name == name) return entry;
  throw std::runtime_error(name);
}

TEST_P(OperationTest, GradientsAgreeWithFiniteDifferencesAndTheTwin) {
  Arena arena;
  for (const AuditCase& check : entry_of(GetParam()).cases(arena)) {
    if (check.large) {
      const GradientCheck result = check_directional(check.function, check.inputs, 2);
      EXPECT_LT(result.worst_error, 1e-7) << check.label << ": " << result.text();
      EXPECT_TRUE(result.repeatable) << check.label;
    } else if (check.differentiable_here) {
      const GradientCheck result = check_gradients(check.function, check.inputs, {check.step, 40, 1});
      EXPECT_LT(result.worst_error, 1e-7) << check.label << ": " << result.text();
      EXPECT_TRUE(result.repeatable) << check.label;
    }
    if (check.composed) {
      EXPECT_LT(worst_difference(check.function, check.composed, check.inputs), 1e-9) << check.label;
    }
  }
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const AuditEntry& entry : audit_entries()) all.push_back(entry.family + "/" + entry.name);
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, OperationTest, testing::ValuesIn(names()), [](const auto& test) {
  std::string name = test.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

TEST(ClosedFormTest, SoftmaxOfEqualEntriesIsUniformAndMaskedRowsAreZero) {
  Arena arena;
  Tape tape;
  const double infinity = INFINITY;
  const Variable x = tape.variable(from_values(
      arena, {2, 4}, std::vector<double>{9, 9, 9, 9, -infinity, -infinity, -infinity, -infinity}, DType::f64));
  const Variable y = softmax(x);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(y.value().flat(i), 0.25);
  for (int i = 4; i < 8; ++i) EXPECT_EQ(y.value().flat(i), 0.0);
  tape.backward(sum(y));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(x.gradient().flat(i), 0.0);
}

TEST(ClosedFormTest, CrossEntropyOfUniformLogitsIsLogV) {
  Arena arena;
  Tape tape;
  const Variable x = tape.variable(zeros(arena, {3, 256}, DType::f64));
  const std::vector<int32_t> targets{0, 255, 7};
  const Variable loss = cross_entropy(x, targets);
  EXPECT_NEAR(loss.value().item(), std::log(256.0), 1e-14);
  tape.backward(loss);
  EXPECT_NEAR(x.gradient().at({0, 0}), (1.0 / 256 - 1) / 3, 1e-16);
  EXPECT_NEAR(x.gradient().at({0, 1}), 1.0 / 256 / 3, 1e-18);
}

TEST(ClosedFormTest, LayerNormOfTwoValuesIsPlusMinusOne) {
  Arena arena;
  Tape tape;
  const Variable x = tape.constant(from_values(arena, {1, 2}, std::vector<double>{5, 9}, DType::f64));
  const Variable y = layer_norm(x, tape.constant(full(arena, {2}, 3.0, DType::f64)),
                                tape.constant(full(arena, {2}, 0.5, DType::f64)), 1e-30);
  EXPECT_NEAR(y.value().flat(0), -2.5, 1e-14);
  EXPECT_NEAR(y.value().flat(1), 3.5, 1e-14);
}

TEST(ClosedFormTest, SaturatedFunctionsStayFinite) {
  Arena arena;
  Tape tape;
  const Variable x = tape.variable(from_values(arena, {4}, std::vector<double>{-800, 800, -40, 40}, DType::f64));
  const Variable s = sigmoid(x), p = softplus(x), l = log_sigmoid(x);
  EXPECT_EQ(s.value().flat(0), 0.0);
  EXPECT_EQ(s.value().flat(1), 1.0);
  EXPECT_EQ(p.value().flat(1), 800.0);
  EXPECT_EQ(l.value().flat(0), -800.0);
  EXPECT_NEAR(p.value().flat(2) / std::exp(-40.0), 1.0, 1e-12);
  tape.backward(sum(add(add(s, p), l)));
  EXPECT_TRUE(all_finite(x.gradient()));
  EXPECT_EQ(x.gradient().flat(0), 1.0);  // only log_sigmoid still rises
}

TEST(ClosedFormTest, AttentionOverEqualKeysAveragesTheValuesSeenSoFar) {
  Arena arena;
  Tape tape;
  const Variable q = tape.constant(full(arena, {1, 5, 1, 8}, 0.3, DType::f64)),
                 k = tape.constant(full(arena, {1, 5, 1, 8}, 0.7, DType::f64));
  const Tensor values = empty(arena, {1, 5, 1, 8}, DType::f64);
  for (int64_t i = 0; i < values.elements(); ++i) values.set_flat(i, static_cast<double>(i / 8));
  const Variable v = tape.constant(values);
  const Variable out = attention({q, k, v, {}, {}, 1.0, nullptr});
  for (int64_t t = 0; t < 5; ++t) EXPECT_NEAR(out.value().at({0, t, 0, 3}), static_cast<double>(t) / 2, 1e-14);
}

TEST(ClosedFormTest, ConversionRoundsTheValueAndPassesTheGradient) {
  Arena arena;
  Tape tape;
  const Variable x = tape.variable(from_values(arena, {2}, std::vector<double>{0.1, -3}, DType::f64));
  const Variable y = convert(x, DType::f32);
  EXPECT_EQ(y.dtype(), DType::f32);
  EXPECT_EQ(y.value().flat(0), static_cast<double>(0.1F));
  tape.backward(sum(scale(y, 0.5)));
  EXPECT_EQ(x.gradient().dtype(), DType::f64);
  EXPECT_EQ(x.gradient().flat(0), 0.5);
  EXPECT_EQ(convert(x, DType::f64).index(), x.index());
}

TEST(ErrorTest, ShapesThatDoNotFitAreNamedBoth) {
  Arena arena;
  Tape tape;
  const Variable a = tape.constant(zeros(arena, {2, 3})), b = tape.constant(zeros(arena, {4, 5}));
  for (const auto& call :
       std::vector<std::function<void()>>{[&] { add(a, b); }, [&] { matmul(a, b); }, [&] { linear(a, b, {}); }}) {
    try {
      call();
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("[2, 3]"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("[4, 5]"), std::string::npos) << error.what();
    }
  }
}

TEST(CumulativeSumTest, KeepsDigitsOverLongSequencesAndStartsWhereItIsTold) {
  Arena arena;
  Tape tape;
  const int64_t length = 65536;
  const Variable x = tape.variable(full(arena, {1, length, 1}, -1.1f, DType::f32));
  const Variable whole = cumulative_sum(x, 1);
  EXPECT_EQ(whole.dtype(), DType::f64);
  EXPECT_NEAR(whole.value().flat(length - 1), static_cast<double>(-1.1f) * static_cast<double>(length), 1e-6);
  // The second half alone, started from the first half's end, gives the same numbers.
  const Tensor initial =
      from_values(arena, {1, 1}, std::vector<double>{whole.value().flat(length / 2 - 1)}, DType::f64);
  const Variable half = cumulative_sum(slice(x, 1, length / 2, length / 2), 1, initial);
  EXPECT_EQ(half.value().flat(length / 2 - 1), whole.value().flat(length - 1));
}

}  // namespace
}  // namespace sextant
