// The vector functions against the C library's in twice the precision: errors in ulps, special values, lanes.
#include "core/simd/vector_math_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <string>
#include <type_traits>
#include <vector>

#include "core/cpu.h"
#include "core/random.h"

namespace sextant {
namespace {

const VectorMathTable& table_of(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return isa_avx512::vector_math_table();
  if (isa == Isa::avx2) return isa_avx2::vector_math_table();
#endif
  (void)isa;
  return isa_plain::vector_math_table();
}

template <class T>
const VectorMath<T>& functions(Isa isa) {
  if constexpr (std::is_same_v<T, float>)
    return table_of(isa).f32;
  else
    return table_of(isa).f64;
}

// The distance between neighbouring numbers of type T at x.
template <class T>
long double ulp(long double x) {
  using Limits = std::numeric_limits<T>;
  int exponent = 0;
  std::frexp(x, &exponent);
  return std::ldexp(1.0L, std::max(exponent, Limits::min_exponent) - Limits::digits);
}

// Both ends, and `count` numbers between them, spread evenly over the representable numbers (lo and hi of one sign) or
// over the line.
template <class T>
std::vector<T> spread(T lo, T hi, int count) {
  std::vector<T> x = {lo, hi};
  const Random random(7, "spread");
  for (int i = 0; i < count; ++i) {
    const double u = random.uniform(static_cast<uint64_t>(i));
    if (i % 2 == 0 && lo * hi > 0)
      x.push_back(static_cast<T>(lo * std::pow(static_cast<double>(hi) / lo, u)));
    else
      x.push_back(static_cast<T>(lo + u * (static_cast<double>(hi) - lo)));
  }
  return x;
}

template <class T, class Exact>
void expect_ulps(Isa isa, const char* name, typename VectorMath<T>::Function f, Exact exact, const std::vector<T>& x,
                 double allowed) {
  std::vector<T> y(x.size());
  f(x.data(), y.data(), static_cast<int64_t>(x.size()));
  long double worst = 0;
  T place = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const long double reference = exact(static_cast<long double>(x[i]));
    const long double error = std::fabs(static_cast<long double>(y[i]) - reference) / ulp<T>(reference);
    if (!(error <= worst)) worst = error, place = x[i];
  }
  EXPECT_LE(worst, allowed) << name << " on " << name_of(isa) << " in " << sizeof(T) * 8 << " bits, at " << place;
}

template <class T>
class VectorMathTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(VectorMathTest, Types);

constexpr int samples = 60000;

TYPED_TEST(VectorMathTest, ErrorsStayWithinTheStatedUlps) {
  using T = TypeParam;
  const bool single = sizeof(T) == 4;
  const T low = single ? T(-87.33) : T(-708.39), high = single ? T(88.72) : T(709.78);
  const T low2 = single ? T(-126) : T(-1022), high2 = single ? T(127.49) : T(1023.49);
  const T tiny = single ? T(1e-30) : T(1e-200);
  const auto exponential = [](long double x) { return std::exp(x); };
  const auto power = [](long double x) { return std::exp2(x); };
  for (Isa isa : available_isas()) {
    const VectorMath<T>& f = functions<T>(isa);
    const double exp_ulps = isa == Isa::plain || !single ? 1.2 : 0.9;
    expect_ulps<T>(isa, "exp", f.exp, exponential, spread<T>(low, -tiny, samples), exp_ulps);
    expect_ulps<T>(isa, "exp", f.exp, exponential, spread<T>(tiny, high, samples), exp_ulps);
    expect_ulps<T>(isa, "exp_nonpositive", f.exp_nonpositive, exponential, spread<T>(low, -tiny, samples), exp_ulps);
    const double exp2_ulps = isa == Isa::avx512 && single ? 1.6 : 1.2;
    expect_ulps<T>(isa, "exp2", f.exp2, power, spread<T>(low2, -tiny, samples), exp2_ulps);
    expect_ulps<T>(isa, "exp2", f.exp2, power, spread<T>(tiny, high2, samples), exp2_ulps);
    const auto logarithm = [](long double x) { return std::log(x); };
    expect_ulps<T>(isa, "log", f.log, logarithm,
                   spread<T>(std::numeric_limits<T>::denorm_min(), std::numeric_limits<T>::max(), samples), 0.9);
    expect_ulps<T>(isa, "log", f.log, logarithm, spread<T>(T(0.6), T(1.6), samples), 0.9);
  }
}

// The defining form, in long double; 1 + tanh u would cancel for negative x, erfc-like, so it is written as 2 / (1 +
// exp(-2u)).
long double exact_gelu(long double x) {
  const long double u = std::sqrt(2.0L / std::numbers::pi_v<long double>) * (x + 0.044715L * x * x * x);
  return x / (1 + std::exp(-2 * u));
}

TYPED_TEST(VectorMathTest, GeluStaysWithinTheStatedUlps) {
  using T = TypeParam;
  for (Isa isa : available_isas()) {
    const VectorMath<T>& f = functions<T>(isa);
    const double stated = sizeof(T) == 4 ? 3 : 4;
    expect_ulps<T>(isa, "gelu", f.gelu, exact_gelu, spread<T>(T(1e-30), T(100), samples), stated);
    expect_ulps<T>(isa, "gelu", f.gelu, exact_gelu, spread<T>(T(-1), T(-1e-30), samples), stated);
    // |w| is 3.8 at -2, 11 at -4.
    expect_ulps<T>(isa, "gelu", f.gelu, exact_gelu, spread<T>(T(-2), T(-1), samples), 3 + 3 * 3.8);
    expect_ulps<T>(isa, "gelu", f.gelu, exact_gelu, spread<T>(T(-4), T(-2), samples), 3 + 3 * 11);
  }
}

TYPED_TEST(VectorMathTest, GeluGradientIsTheDerivative) {
  using T = TypeParam;
  const std::vector<T> x = spread<T>(T(-9), T(9), 2000);
  for (Isa isa : available_isas()) {
    std::vector<T> y(x.size());
    functions<T>(isa).gelu_gradient(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      // Fourth-order central difference in long double: error about 1e-4^4 and 1e-19 / 1e-4.
      const long double h = 1e-4L, at = x[i];
      const long double derivative =
          (8 * (exact_gelu(at + h) - exact_gelu(at - h)) - (exact_gelu(at + 2 * h) - exact_gelu(at - 2 * h))) /
          (12 * h);
      ASSERT_NEAR(static_cast<double>(y[i]), static_cast<double>(derivative), sizeof(T) == 4 ? 4e-7 : 5e-14)
          << name_of(isa) << " at " << at;
    }
  }
}

TYPED_TEST(VectorMathTest, SpecialValues) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  const T inf = Limits::infinity(), nan = Limits::quiet_NaN();
  // A NaN whose payload would reach the exponent if it were shifted like a number.
  T odd_nan = nan;
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, &odd_nan, sizeof(T));
  bytes[0] = 0xFF, bytes[1] = 0x03;
  std::memcpy(&odd_nan, bytes, sizeof(T));
  for (Isa isa : available_isas()) {
    SCOPED_TRACE(name_of(isa));
    const VectorMath<T>& f = functions<T>(isa);
    const auto at = [](typename VectorMath<T>::Function function, T x) {
      T y = 0;
      function(&x, &y, 1);
      return y;
    };
    for (auto function : {f.exp, f.exp_nonpositive, f.exp2}) {
      EXPECT_EQ(at(function, 0), T(1));
      EXPECT_EQ(at(function, T(-0.0)), T(1));
      EXPECT_EQ(at(function, Limits::denorm_min()), T(1));
      EXPECT_EQ(at(function, -inf), T(0));
      EXPECT_EQ(at(function, Limits::lowest()), T(0));
      EXPECT_EQ(at(function, sizeof(T) == 4 ? T(-127) : T(-1023)), T(0)) << "no denormal results";
      EXPECT_TRUE(std::isnan(at(function, nan)));
      EXPECT_TRUE(std::isnan(at(function, odd_nan)));
    }
    EXPECT_EQ(at(f.exp, inf), inf);
    EXPECT_EQ(at(f.exp, Limits::max()), inf);
    EXPECT_EQ(at(f.exp, sizeof(T) == 4 ? T(88.73) : T(709.79)), inf);
    EXPECT_LT(at(f.exp, sizeof(T) == 4 ? T(88.72) : T(709.78)), inf);
    EXPECT_GT(at(f.exp, sizeof(T) == 4 ? T(-87.336) : T(-708.396)), T(0));

    EXPECT_EQ(at(f.log, 1), T(0));
    EXPECT_EQ(at(f.log, 0), -inf);
    EXPECT_EQ(at(f.log, inf), inf);
    EXPECT_TRUE(std::isnan(at(f.log, -1)));
    EXPECT_TRUE(std::isnan(at(f.log, -inf)));
    EXPECT_TRUE(std::isnan(at(f.log, nan)));

    EXPECT_EQ(at(f.gelu, 0), T(0));
    EXPECT_EQ(at(f.gelu, inf), inf);
    EXPECT_EQ(at(f.gelu, Limits::max()), Limits::max());
    EXPECT_EQ(at(f.gelu, Limits::lowest()), T(0));
    EXPECT_TRUE(std::isnan(at(f.gelu, nan)));
    EXPECT_EQ(at(f.gelu_gradient, 0), T(0.5));
    EXPECT_EQ(at(f.gelu_gradient, inf), T(1));
    EXPECT_EQ(at(f.gelu_gradient, Limits::max()), T(1));
    EXPECT_EQ(at(f.gelu_gradient, -inf), T(0));
    EXPECT_EQ(at(f.gelu_gradient, Limits::lowest()), T(0));
    EXPECT_TRUE(std::isnan(at(f.gelu_gradient, nan)));
  }
}

// A number's result must not depend on the lane it happens to lie in, nor may a loop write beyond its end.
TYPED_TEST(VectorMathTest, EveryLengthGivesTheSameNumbers) {
  using T = TypeParam;
  const std::vector<T> x = spread<T>(T(-3), T(3), 69);
  for (Isa isa : available_isas()) {
    const VectorMath<T>& f = functions<T>(isa);
    for (auto function : {f.exp, f.exp2, f.log, f.gelu, f.gelu_gradient}) {
      for (size_t count = 0; count < x.size(); ++count) {
        std::vector<T> y(x.size(), T(77));
        function(x.data(), y.data(), static_cast<int64_t>(count));
        for (size_t i = 0; i < count; ++i) {
          T alone = 0;
          function(&x[i], &alone, 1);
          ASSERT_EQ(std::memcmp(&alone, &y[i], sizeof(T)), 0) << name_of(isa) << " count " << count << " index " << i;
        }
        for (size_t i = count; i < x.size(); ++i) ASSERT_EQ(y[i], T(77)) << name_of(isa) << " count " << count;
      }
    }
  }
}

TYPED_TEST(VectorMathTest, SumAndLargestOfLanes) {
  using T = TypeParam;
  for (Isa isa : available_isas()) {
    const VectorMath<T>& f = functions<T>(isa);
    const auto lanes = static_cast<size_t>(f.lanes);
    std::vector<T> x(lanes);
    T sum = 0;
    for (size_t i = 0; i < lanes; ++i) sum += x[i] = static_cast<T>(size_t{1} << i);  // each lane its own bit
    EXPECT_EQ(f.sum(x.data()), sum);
    for (size_t i = 0; i < lanes; ++i) {
      std::vector<T> y(lanes, T(-5));
      y[i] = T(-2);
      EXPECT_EQ(f.max(y.data()), T(-2)) << name_of(isa) << " lane " << i;
    }
  }
}

}  // namespace
}  // namespace sextant
