// The row and elementwise kernels against their formulas in long double, their backwards against finite differences of
// those; on every instruction set, in both types, and with the same bits for any number of threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numbers>
#include <vector>

#include "core/cpu.h"
#include "core/error.h"
#include "core/kernels.h"
#include "core/parallel.h"
#include "core/random.h"

namespace sextant {
namespace {

using Real = long double;
using Reals = std::vector<Real>;

// Every test body runs for each instruction set and each type.
class RowsTest : public testing::TestWithParam<std::tuple<Isa, DType>> {
 protected:
  RowsTest() : isa_before_(isa()), threads_before_(threads()) { set_isa(std::get<0>(GetParam())); }
  ~RowsTest() override {
    set_isa(isa_before_);
    set_threads(threads_before_);
  }
  DType dtype() const { return std::get<1>(GetParam()); }
  double epsilon() const { return dtype() == DType::f32 ? 0x1p-23 : 0x1p-52; }

  Tensor normal(const Shape& shape, const char* stream, double mean = 0, double deviation = 1) {
    const Tensor x = empty(arena_, shape, dtype());
    fill_normal(x, Random(1, stream), mean, deviation);
    return x;
  }
  Tensor make(const Shape& shape, double value = -77) { return full(arena_, shape, value, dtype()); }
  Tensor make64(const Shape& shape) { return full(arena_, shape, -77, DType::f64); }

  Arena arena_;

 private:
  Isa isa_before_;
  int threads_before_;
};

INSTANTIATE_TEST_SUITE_P(Machines, RowsTest,
                         testing::Combine(testing::ValuesIn(available_isas()), testing::Values(DType::f32, DType::f64)),
                         [](const auto& machine) {
                           return std::string(name_of(std::get<0>(machine.param))) + "_" +
                                  name_of(std::get<1>(machine.param));
                         });

Reals values(const Tensor& x) {
  Reals result;
  for (int64_t i = 0; i < x.elements(); ++i) result.push_back(x.flat(i));
  return result;
}

// |actual - expected| <= tolerance (1 + |expected|)
void expect_near(const Tensor& actual, const Reals& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(actual.elements(), static_cast<int64_t>(expected.size())) << what;
  Real worst = 0;
  size_t place = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const Real error = std::fabs(actual.flat(static_cast<int64_t>(i)) - expected[i]) / (1 + std::fabs(expected[i]));
    if (!(error <= worst)) worst = error, place = i;
  }
  if (expected.empty()) return;
  EXPECT_LE(worst, tolerance) << what << " at " << place << ": " << actual.flat(static_cast<int64_t>(place))
                              << " against " << expected[place];
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && dispatch(a.dtype(), [&](auto type) {
           using T = decltype(type);
           return std::memcmp(a.data<T>(), b.data<T>(), a.bytes()) == 0;
         });
}

// d f / d x[i] for each i, by the fourth-order central difference in long double.
Reals derivative(const std::function<Real(const Reals&)>& f, const Reals& at, Real h = 1e-3L) {
  Reals result;
  Reals x = at;
  for (size_t i = 0; i < at.size(); ++i) {
    const auto moved = [&](Real by) {
      x[i] = at[i] + by;
      const Real value = f(x);
      x[i] = at[i];
      return value;
    };
    result.push_back((8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h));
  }
  return result;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// ---- GELU ---------------------------------------------------------------------------------------------------------

Real exact_gelu(Real x) {
  return 0.5L * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi_v<Real>) * (x + 0.044715L * x * x * x)));
}

TEST_P(RowsTest, GeluAndItsBackward) {
  for (int64_t count : {0, 1, 3, 17, 67, 40001}) {
    const Tensor x = normal({count}, "x", 0, 3), dy = normal({count}, "dy"), y = make({count}),
                 dx = make({count}, 0.25);
    kernels::gelu(x, y);
    Reals expected, expected_dx, added;
    for (int64_t i = 0; i < count; ++i) {
      expected.push_back(exact_gelu(x.flat(i)));
      expected_dx.push_back(derivative([](const Reals& at) { return exact_gelu(at[0]); }, {x.flat(i)})[0] * dy.flat(i));
      added.push_back(0.25L + expected_dx.back());
    }
    expect_near(y, expected, 4 * epsilon(), "gelu");
    kernels::gelu_backward(x, dy, {dx, true});
    const double tolerance = std::max(8 * epsilon(), 2e-11);  // the finite difference's own error
    expect_near(dx, added, tolerance, "dx added");
    kernels::gelu_backward(x, dy, {dx, false});
    expect_near(dx, expected_dx, tolerance, "dx written");
  }
}

// ---- layer norm ---------------------------------------------------------------------------------------------------

constexpr double layer_norm_epsilon = 1e-5;

Reals exact_layer_norm(const Reals& x, const Reals& gain, const Reals& bias) {
  const size_t width = gain.size();
  Reals y;
  for (size_t first = 0; first < x.size(); first += width) {
    // From the first number on, since even a long double mean of doubles near 1e4 is no better than 1e-14.
    Real mean = 0, variance = 0;
    for (size_t c = 0; c < width; ++c) mean += (x[first + c] - x[first]) / static_cast<Real>(width);
    mean += x[first];
    for (size_t c = 0; c < width; ++c)
      variance += (x[first + c] - mean) * (x[first + c] - mean) / static_cast<Real>(width);
    for (size_t c = 0; c < width; ++c)
      y.push_back((x[first + c] - mean) / std::sqrt(variance + static_cast<Real>(layer_norm_epsilon)) * gain[c] +
                  bias[c]);
  }
  return y;
}

TEST_P(RowsTest, LayerNorm) {
  for (const Shape& shape :
       {Shape{1, 1}, Shape{3, 5}, Shape{7, 64}, Shape{0, 4}, Shape{33, 100}, Shape{300, 131}, Shape{5, 768}}) {
    for (double offset : {0.0, 1e4, -1e4}) {
      SCOPED_TRACE(shape.text() + " offset " + std::to_string(offset));
      const int64_t rows = shape[0], width = shape[1];
      const Tensor x = normal(shape, "x", offset), residual = normal(shape, "residual", 0.5), sum = make(shape),
                   y = make(shape);
      const Tensor gain = normal({width}, "gain", 1, 0.3), bias = normal({width}, "bias"), mean = make({rows}),
                   rstd = make({rows});

      kernels::layer_norm(x, {}, gain, bias, layer_norm_epsilon, {}, y, mean, rstd);
      expect_near(y, exact_layer_norm(values(x), values(gain), values(bias)), 16 * epsilon(), "y");

      kernels::layer_norm(x, residual, gain, bias, layer_norm_epsilon, sum, y, mean, rstd);
      for (int64_t i = 0; i < x.elements(); ++i)
        ASSERT_EQ(sum.flat(i), dtype() == DType::f32 ? static_cast<float>(x.flat(i) + residual.flat(i))
                                                     : x.flat(i) + residual.flat(i));
      expect_near(y, exact_layer_norm(values(sum), values(gain), values(bias)), 16 * epsilon(), "y of the sum");
      for (int64_t n = 0; n < rows; ++n) {
        Real exact_mean = 0;
        for (int64_t c = 0; c < width; ++c) exact_mean += static_cast<Real>(sum.at({n, c})) / static_cast<Real>(width);
        ASSERT_NEAR(mean.flat(n), static_cast<double>(exact_mean), 8 * epsilon() * (1 + std::fabs(offset)));
      }
    }
  }
}

TEST_P(RowsTest, LayerNormOfAwkwardRows) {
  const int64_t width = 67;
  const Tensor gain = normal({width}, "gain"), bias = normal({width}, "bias"), mean = make({1}), rstd = make({1}),
               y = make({1, width});
  for (double value : {0.0, 3.0, 1e4, 1e-30, -1e15}) {  // all equal: what remains is the bias
    kernels::layer_norm(make({1, width}, value), {}, gain, bias, layer_norm_epsilon, {}, y, mean, rstd);
    expect_near(y, values(bias), 4 * epsilon(), "equal numbers " + std::to_string(value));
    EXPECT_NEAR(rstd.item(), 1 / std::sqrt(layer_norm_epsilon), 1e-4);
  }
  const Tensor huge = normal({1, width}, "huge", 0, 1e17), tiny = normal({1, width}, "tiny", 0, 1e-25);
  kernels::layer_norm(huge, {}, gain, bias, layer_norm_epsilon, {}, y, mean, rstd);
  expect_near(y, exact_layer_norm(values(huge), values(gain), values(bias)), 16 * epsilon(), "huge");
  kernels::layer_norm(tiny, {}, gain, bias, layer_norm_epsilon, {}, y, mean, rstd);
  expect_near(y, exact_layer_norm(values(tiny), values(gain), values(bias)), 16 * epsilon(), "tiny");
  const Tensor broken = normal({1, width}, "broken");
  broken.set_flat(66, std::numeric_limits<double>::quiet_NaN());
  kernels::layer_norm(broken, {}, gain, bias, layer_norm_epsilon, {}, y, mean, rstd);
  for (int64_t c = 0; c < width; ++c) ASSERT_TRUE(std::isnan(y.flat(c)));
}

TEST_P(RowsTest, LayerNormBackward) {
  for (const Shape& shape : {Shape{6, 1}, Shape{6, 5}, Shape{6, 64}, Shape{6, 83}}) {
    for (double offset : {0.0, 1e4}) {
      SCOPED_TRACE(shape.text() + " offset " + std::to_string(offset));
      const int64_t rows = shape[0], width = shape[1];
      const Tensor x = normal(shape, "x", offset), dy = normal(shape, "dy"), y = make(shape),
                   direct = normal(shape, "direct");
      const Tensor gain = normal({width}, "gain", 1, 0.3), bias = normal({width}, "bias"), mean = make({rows}),
                   rstd = make({rows});
      kernels::layer_norm(x, {}, gain, bias, layer_norm_epsilon, {}, y, mean, rstd);

      const Reals xs = values(x), gains = values(gain), biases = values(bias), dys = values(dy);
      const auto loss = [&](const Reals& x_at, const Reals& gain_at, const Reals& bias_at) {
        const Reals out = exact_layer_norm(x_at, gain_at, bias_at);
        Real sum = 0;
        for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dys[i];
        return sum;
      };
      const Reals dx =
          derivative([&](const Reals& at) { return loss(at, gains, biases); }, xs, width == 1 ? 1e-4L : 1e-3L);
      const Reals dgain = derivative([&](const Reals& at) { return loss(xs, at, biases); }, gains);
      const Reals dbias = derivative([&](const Reals& at) { return loss(xs, gains, at); }, biases);
      const double tolerance = std::max(40 * epsilon(), 1e-10);

      for (int64_t leaves : {1, 3}) {
        const Tensor got_dx = make(shape), got_dgain = make({width}, 2), got_dbias = make({width});
        kernels::layer_norm_backward(x, gain, mean, rstd, dy, {}, leaves, {got_dx}, {got_dgain, true}, {got_dbias},
                                     make64({leaves, 2, width}));
        expect_near(got_dx, dx, tolerance, "dx");
        Reals added = dgain;
        for (Real& each : added) each += 2;
        expect_near(got_dgain, added, tolerance, "dgain");
        expect_near(got_dbias, dbias, tolerance, "dbias");
      }
      // With the residual stream's own gradient, added to what was there, written over dy, and without parameters.
      const Tensor got = make(shape, 0.5), in_place = make(shape);
      in_place.copy_from(dy);
      kernels::layer_norm_backward(x, gain, mean, rstd, dy, direct, 1, {got, true}, {}, {}, {});
      kernels::layer_norm_backward(x, gain, mean, rstd, in_place, direct, 2, {in_place}, {}, {make({width})},
                                   make64({2, 2, width}));
      Reals total = dx, total_added = dx;
      for (size_t i = 0; i < dx.size(); ++i) {
        total[i] += direct.flat(static_cast<int64_t>(i));
        total_added[i] = total[i] + 0.5L;
      }
      expect_near(got, total_added, tolerance, "dx with direct, added");
      expect_near(in_place, total, tolerance, "dx with direct, in place of dy");
    }
  }
}

// 1e17 swallows a 1 it is added to: what the sum is tells the order it was taken in.
TEST_P(RowsTest, SumsOverRowsFollowTheTree) {
  const double big = 1e17;
  const auto expect_sum = [&](const std::vector<double>& rows, int64_t leaves, double expected) {
    const auto count = static_cast<int64_t>(rows.size());
    const Tensor dy = from_values(arena_, {count, 1}, rows, dtype()), x = make({count, 1}, 0), mean = make({count}, 0);
    const Tensor rstd = make({count}, 1), gain = make({1}, 1), dx = make({count, 1}), dbias = make({1}),
                 dtable = make({3, 1});
    const std::vector<int32_t> ids(rows.size(), 1);
    kernels::layer_norm_backward(x, gain, mean, rstd, dy, {}, leaves, {dx}, {}, {dbias}, make64({leaves, 2, 1}));
    EXPECT_EQ(dbias.item(), expected) << "layer norm, " << leaves << " leaves";
    kernels::embedding_backward(dy, ids, leaves, {dtable}, arena_);
    EXPECT_EQ(dtable.flat(1), expected) << "embedding, " << leaves << " leaves";
  };
  expect_sum({big, 1, -big, 1}, 1, 1);        // ((big + 1) - big) + 1
  expect_sum({big, 1, -big, 1}, 4, 0);        // (big + 1) + (-big + 1)
  expect_sum({1, big, -big}, 3, 0);           // (1 + big) - big, not 1 + (big - big)
  expect_sum({0, 0, 1, big, -big, 0}, 6, 1);  // ((0 + 0) + 1) + ((big - big) + 0): three leaves and three
  expect_sum({0, 1, big, -big, 0}, 5, 0);     // ((0 + 1) + big) + (-big + 0): three leaves and two
}

// ---- cross-entropy ------------------------------------------------------------------------------------------------

Real exact_loss(const Reals& logits, int64_t target) {
  Real top = logits[0], sum = 0;
  for (Real each : logits) top = std::max(top, each);
  for (Real each : logits) sum += std::exp(each - top);
  return top - logits[static_cast<size_t>(target)] + std::log(sum);
}

TEST_P(RowsTest, CrossEntropy) {
  for (int64_t vocabulary : {1, 2, 67, 256, 50257}) {
    for (double offset : {0.0, 1e4, -1e4}) {
      if (vocabulary > 1000 && offset < 0) continue;
      SCOPED_TRACE("V " + std::to_string(vocabulary) + " offset " + std::to_string(offset));
      const int64_t rows = vocabulary > 1000 ? 2 : 21;
      const Tensor logits = normal({rows, vocabulary}, "logits", offset, 4), loss = make64({rows}), lse = make({rows});
      std::vector<int32_t> targets;
      for (int64_t n = 0; n < rows; ++n)
        targets.push_back(n % 5 == 1 ? -1
                                     : static_cast<int32_t>(Random(1, "t").below(static_cast<uint64_t>(n),
                                                                                 static_cast<uint64_t>(vocabulary))));
      kernels::cross_entropy(logits, targets, loss, lse);
      const Tensor dlogits = make(logits.shape(), 1), added = make(logits.shape(), 1), in_place = make(logits.shape());
      in_place.copy_from(logits);
      kernels::cross_entropy_backward(logits, targets, lse, 0.5, {dlogits});
      kernels::cross_entropy_backward(logits, targets, lse, 0.5, {added, true});
      kernels::cross_entropy_backward(in_place, targets, lse, 0.5, {in_place});
      EXPECT_TRUE(same_bits(in_place, dlogits));
      // lse is kept in the logits' type, so a softmax is as exact as that number is.
      const double relative = epsilon() * (8 + std::fabs(offset));
      for (int64_t n = 0; n < rows; ++n) {
        const int32_t target = targets[static_cast<size_t>(n)];
        const Reals row = values(logits.slice(0, n, 1));
        const Real expected = target < 0 ? 0 : exact_loss(row, target);
        ASSERT_NEAR(loss.flat(n), static_cast<double>(expected),
                    8 * epsilon() * (1 + static_cast<double>(std::fabs(expected))))
            << "row " << n;
        const Real total = target < 0 ? 0 : expected + row[static_cast<size_t>(target)];
        for (int64_t c = 0; c < vocabulary; ++c) {
          const Real softmax = target < 0 ? 0 : std::exp(row[static_cast<size_t>(c)] - total);
          const Real gradient = 0.5L * (softmax - (c == target ? 1 : 0));
          ASSERT_NEAR(dlogits.at({n, c}), static_cast<double>(gradient),
                      relative * static_cast<double>(softmax) + epsilon())
              << n << " " << c;
          ASSERT_NEAR(added.at({n, c}), static_cast<double>(1 + gradient), relative + epsilon()) << n << " " << c;
        }
      }
    }
  }
}

TEST_P(RowsTest, CrossEntropyGradientIsTheDerivative) {
  const Tensor logits = normal({1, 7}, "logits"), loss = make64({1}), lse = make({1}), dlogits = make({1, 7});
  const std::vector<int32_t> targets = {3};
  kernels::cross_entropy(logits, targets, loss, lse);
  kernels::cross_entropy_backward(logits, targets, lse, -2, {dlogits});
  Reals expected = derivative([](const Reals& at) { return exact_loss(at, 3); }, values(logits));
  for (Real& each : expected) each *= -2;
  expect_near(dlogits, expected, std::max(8 * epsilon(), 1e-11), "dlogits");
}

TEST_P(RowsTest, CrossEntropyOfAwkwardLogits) {
  const double inf = std::numeric_limits<double>::infinity();
  const double huge = dtype() == DType::f32 ? 3e38 : 1.7e308;
  const auto run = [&](std::vector<double> row, int32_t target) {
    const int64_t vocabulary = static_cast<int64_t>(row.size());
    const Tensor logits = from_values(arena_, {1, vocabulary}, row, dtype()), loss = make64({1}), lse = make({1}),
                 dlogits = make({1, vocabulary});
    const std::vector<int32_t> targets = {target};
    kernels::cross_entropy(logits, targets, loss, lse);
    kernels::cross_entropy_backward(logits, targets, lse, 1, {dlogits});
    return std::pair{loss.item(), dlogits};
  };
  EXPECT_EQ(run({huge, -huge, 0}, 0).first, 0);
  EXPECT_NEAR(run({-huge, -huge}, 0).first, std::log(2.0), 1e-15);
  EXPECT_EQ(run({5, -inf, -inf}, 0).first, 0);
  EXPECT_EQ(run({5, -inf, -inf}, 1).first, inf);
  EXPECT_EQ(run({5, -inf, -inf}, 1).second.flat(1), -1);
  EXPECT_TRUE(std::isnan(run({-inf, -inf}, 0).first));
  EXPECT_TRUE(std::isnan(run({inf, 0}, 1).first));
  EXPECT_TRUE(std::isnan(run({0, std::numeric_limits<double>::quiet_NaN(), 1}, 0).first));
  EXPECT_TRUE(std::isnan(run({0, std::numeric_limits<double>::quiet_NaN(), 1}, 0).second.flat(2)));
  EXPECT_EQ(run({std::numeric_limits<double>::quiet_NaN(), 1}, -1).first, 0);
}

// ---- embedding ----------------------------------------------------------------------------------------------------

TEST_P(RowsTest, EmbeddingAndItsBackward) {
  for (int64_t width : {1, 64, 67, 200}) {
    const int64_t vocabulary = 300, rows = 120;
    const Tensor table = normal({vocabulary, width}, "table"), y = make({rows, width}),
                 dy = normal({rows, width}, "dy");
    std::vector<int32_t> ids;  // few distinct ones, the first and the last among them
    for (int64_t n = 0; n < rows; ++n)
      ids.push_back(static_cast<int32_t>(Random(2, "ids").below(static_cast<uint64_t>(n), 14) * 23));
    kernels::embedding(table, ids, y);
    Reals expected(static_cast<size_t>(vocabulary * width));
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t c = 0; c < width; ++c) {
        const int64_t id = ids[static_cast<size_t>(n)];
        ASSERT_EQ(y.at({n, c}), table.at({id, c}));
        expected[static_cast<size_t>(id * width + c)] += dy.at({n, c});
      }
    }
    for (int64_t leaves : {1, 3, 8, 120}) {
      const Tensor dtable = make(table.shape()), added = make(table.shape(), 3);
      const size_t used = arena_.used();
      kernels::embedding_backward(dy, ids, leaves, {dtable}, arena_);
      kernels::embedding_backward(dy, ids, leaves, {added, true}, arena_);
      EXPECT_EQ(arena_.used(), used) << "scratch was not given back";
      Reals expected_added = expected;
      for (Real& each : expected_added) each += 3;
      expect_near(dtable, expected, 8 * epsilon(), "dtable");
      expect_near(added, expected_added, 8 * epsilon(), "dtable added");
    }
  }
}

// ---- optimizer ----------------------------------------------------------------------------------------------------

TEST_P(RowsTest, AdamFollowsItsFormula) {
  for (int64_t count : {1, 5, 64, 67, 20001}) {
    const Tensor weight = normal({count}, "weight"), m = make({count}, 0), v = make({count}, 0);
    Reals w = values(weight), first(w.size()), second(w.size());
    const Real lr = 0.003L, beta1 = 0.9L, beta2 = 0.95L, eps = 1e-8L, decay = 0.1L, scale = 0.7L;
    for (int t = 1; t <= 4; ++t) {
      const Tensor gradient = normal({count}, t % 2 ? "odd" : "even");
      gradient.set_flat(0, 0);  // no gradient yet: a step of 0 / (0 + eps)
      kernels::adam(weight, gradient, m, v,
                    {.lr = static_cast<double>(lr),
                     .beta1 = static_cast<double>(beta1),
                     .beta2 = static_cast<double>(beta2),
                     .epsilon = static_cast<double>(eps),
                     .decay = static_cast<double>(decay),
                     .gradient_scale = static_cast<double>(scale),
                     .correction1 = static_cast<double>(1 - std::pow(beta1, t)),
                     .correction2 = static_cast<double>(1 - std::pow(beta2, t))});
      for (size_t i = 0; i < w.size(); ++i) {
        const Real g = scale * gradient.flat(static_cast<int64_t>(i));
        first[i] = beta1 * first[i] + (1 - beta1) * g;
        second[i] = beta2 * second[i] + (1 - beta2) * g * g;
        w[i] -= lr * (first[i] / (1 - std::pow(beta1, t)) / (std::sqrt(second[i] / (1 - std::pow(beta2, t))) + eps) +
                      decay * w[i]);
      }
    }
    expect_near(weight, w, 4 * epsilon(), "weight");
    expect_near(m, first, 2 * epsilon(), "m");
    expect_near(v, second, 2 * epsilon(), "v");
  }
}

TEST_P(RowsTest, SquaredNorm) {
  for (int64_t count : {0, 1, 31, 33, 16384, 50001}) {
    const Tensor x = normal({count}, "x", 0.5);
    Real sum = 0;
    for (Real each : values(x)) sum += each * each;
    EXPECT_NEAR(kernels::squared_norm(x), static_cast<double>(sum), 1e-14 * static_cast<double>(sum));
  }
  const double big = dtype() == DType::f32 ? 1e38 : 1e150;
  const double held = make({1}, big).item();
  EXPECT_DOUBLE_EQ(kernels::squared_norm(make({3}, big)), 3 * held * held);
}

// ---- threads and errors -------------------------------------------------------------------------------------------

TEST_P(RowsTest, SameBitsForAnyNumberOfThreads) {
  const int64_t rows = 528, width = 131, leaves = 8;
  const Shape shape = {rows, width};
  const auto run = [&](int count) {
    set_threads(count);
    const Tensor x = normal(shape, "x"), residual = normal(shape, "r"), dy = normal(shape, "dy"),
                 gain = normal({width}, "g"), bias = normal({width}, "b");
    std::vector<int32_t> ids;
    for (int64_t n = 0; n < rows; ++n) ids.push_back(static_cast<int32_t>(n * n % width));
    std::vector<Tensor> out;
    const auto result = [&](const Shape& of) { return out.emplace_back(make(of)); };
    const Tensor y = result(shape), dx = result(shape), sum = result(shape), norm = result(shape), dsum = result(shape),
                 dlogits = result(shape);
    const Tensor mean = result({rows}), rstd = result({rows}), lse = result({rows}), dgain = result({width}),
                 dbias = result({width});
    const Tensor dtable = result(shape), weight = result(shape), m = result(shape), v = make(shape, 1);
    out.push_back(make64({rows}));
    const Tensor loss = out.back();
    kernels::gelu(x, y);
    kernels::gelu_backward(x, dy, {dx});
    kernels::layer_norm(x, residual, gain, bias, 1e-5, sum, norm, mean, rstd);
    kernels::layer_norm_backward(sum, gain, mean, rstd, dy, {}, leaves, {dsum}, {dgain}, {dbias},
                                 make64({leaves, 2, width}));
    kernels::cross_entropy(x, ids, loss, lse);
    kernels::cross_entropy_backward(x, ids, lse, 1, {dlogits});
    kernels::embedding_backward(dy, ids, leaves, {dtable}, arena_);
    kernels::adam(weight, dy, m, v, {1e-3, 0.9, 0.95, 1e-8, 0.1, 1, 0.1, 0.05});
    const double norm_of_x = kernels::squared_norm(x);
    out.push_back(Tensor(from_values(arena_, {1}, std::vector<double>{norm_of_x}, DType::f64)));
    return out;
  };
  const std::vector<Tensor> one = run(1);
  for (int count : {2, 3}) {
    const std::vector<Tensor> more = run(count);
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_TRUE(same_bits(one[i], more[i])) << "result " << i << " with " << count << " threads";
  }
}

TEST_P(RowsTest, ErrorsNameWhatWhereAndBoth) {
  const Tensor x = make({4, 6}), small = make({4, 5}), wide = make({6}), rows = make({4});
  const DType other = dtype() == DType::f32 ? DType::f64 : DType::f32;
  const auto expect_message = [](const std::function<void()>& f, const std::vector<std::string>& parts) {
    const std::string message = message_of(f);
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  };
  expect_message([&] { kernels::gelu(x, small); }, {"gelu: y", "[4, 5]", "[4, 6]"});
  expect_message([&] { kernels::gelu(x, full(arena_, {4, 6}, 0, other)); }, {"gelu: y", "f32", "f64"});
  expect_message([&] { kernels::gelu(x.transpose(0, 1), x.transpose(0, 1)); }, {"gelu: x", "[6, 4]", "contiguous"});
  expect_message([&] { kernels::layer_norm(x, {}, rows, wide, 1e-5, {}, x, rows, rows); }, {"gain", "[4]", "[6]"});
  expect_message(
      [&] {
        kernels::layer_norm(make({4, 0}), {}, wide, wide, 1e-5, {}, x, rows, rows);
      },
      {"[4, 0]", "column"});
  expect_message([&] { kernels::layer_norm_backward(x, wide, rows, rows, x, {}, 3, {x}, {}, {}, {}); },
                 {"3 leaves", "4 rows"});
  expect_message(
      [&] {
        kernels::layer_norm_backward(x, wide, rows, rows, x, {}, 2, {x}, {wide}, {}, make64({2, 6}));
      },
      {"scratch", "[2, 6]", "[2, 2, 6]"});
  const std::vector<int32_t> beyond = {0, 1, 6, 2}, below = {0, -2, 0, 0}, negative = {3, -1, 0, 0}, few = {1};
  expect_message([&] { kernels::cross_entropy(x, beyond, make64({4}), rows); }, {"target 6", "position 2", "0 to 5"});
  expect_message([&] { kernels::cross_entropy(x, below, make64({4}), rows); }, {"target -2", "position 1"});
  expect_message([&] { kernels::cross_entropy(x, few, make64({4}), rows); }, {"1 targets", "4 rows"});
  expect_message([&] { kernels::embedding(make({6, 5}), beyond, small); }, {"id 6", "position 2", "vocabulary 6"});
  expect_message([&] { kernels::embedding(make({6, 5}), negative, small); }, {"id -1", "position 1", "vocabulary 6"});
  expect_message(
      [&] {
        kernels::embedding_backward(small, beyond, 1, {make({6, 5})}, arena_);
      },
      {"id 6", "position 2"});
  expect_message([&] { kernels::adam(x, small, x, x, {}); }, {"adam: gradient", "[4, 5]", "[4, 6]"});
}

}  // namespace
}  // namespace sextant
