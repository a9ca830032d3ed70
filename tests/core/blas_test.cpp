// The BLAS wrapper: the record of what was chosen, and the products it makes against plain loops and our own kernels.
#include "core/blas.h"

#include <gtest/gtest.h>
#include <strings.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "core/cpu.h"
#include "core/error.h"
#include "core/kernels.h"

namespace sextant {
namespace {

struct ScopedProducts {
  explicit ScopedProducts(blas::Products wanted) : before(blas::products()) { blas::set_products(wanted); }
  ~ScopedProducts() { blas::set_products(before); }
  blas::Products before;
};

TEST(Blas, TheRecordIsComplete) {
  const blas::BlasChoice& choice = blas::choice();
  EXPECT_FALSE(choice.reason.empty());
  EXPECT_EQ(choice.reason.find('\n'), std::string::npos);
  EXPECT_EQ(choice.available, !choice.core_used.empty());
  if (choice.available) {
    EXPECT_NE(choice.library, "none");
    EXPECT_NE(choice.config.find("OpenBLAS"), std::string::npos);
  }
  EXPECT_EQ(std::getenv("OPENBLAS_NUM_THREADS"), nullptr) << "the variables are set only while the library loads";
}

class BlasDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

[[noreturn]] void report(const char* variable, const char* value) {
  setenv(variable, value, 1);
  try {
    const bool by_blas = blas::products() == blas::Products::blas;
    std::fprintf(stderr, "available=%d products=%s core=%s reason=%s", blas::choice().available,
                 by_blas ? "blas" : "own", blas::choice().core_used.c_str(), blas::choice().reason.c_str());
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    _exit(static_cast<int>(error.status()));
  }
  _exit(0);
}

TEST_F(BlasDeathTest, TheUsersVariablesAreRespected) {
  EXPECT_EXIT(report("SEXTANT_PRODUCTS", "mkl"), testing::ExitedWithCode(2), "mkl.*own, blas");
  EXPECT_EXIT(report("SEXTANT_PRODUCTS", "own"), testing::ExitedWithCode(0), "products=own");
  EXPECT_EXIT(report("SEXTANT_PRODUCTS", "blas"), testing::ExitedWithCode(0),
              "available=1 products=blas|available=0 products=own");
#if defined(__x86_64__)
  EXPECT_EXIT(report("OPENBLAS_CORETYPE", "Nehalem"), testing::ExitedWithCode(0),
              "core=Nehalem .*set by the user|available=0");
#endif
}

// All forms of both operands, with what BLAS cannot express (every second column) falling to our own kernels.
TEST(Blas, ProductsAgreeWithPlainLoops) {
  // OpenBLAS is optional at run time: without it there is nothing to compare. The test scripts install it.
  if (!blas::choice().available) GTEST_SKIP() << blas::choice().reason;
  const ScopedProducts scoped(blas::Products::blas);
  Arena arena;
  std::mt19937_64 engine(3);
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  const auto random = [&](const Shape& shape, DType dtype) {
    Tensor x = empty(arena, shape, dtype);
    for (int64_t i = 0; i < x.elements(); ++i) x.set_flat(i, uniform(engine));
    return x;
  };
  const auto operand = [&](int64_t rows, int64_t columns, DType dtype, int form) {
    if (form == 0) return random({rows, columns + 3}, dtype).slice(1, 2, columns);
    if (form == 1) return random({columns, rows}, dtype).transpose(0, 1);
    return random({rows, columns, 2}, dtype).select(2, 0);
  };
  const auto values = [](const Tensor& x) {
    std::vector<double> all(static_cast<size_t>(x.elements()));
    for (size_t i = 0; i < all.size(); ++i) all[i] = x.flat(static_cast<int64_t>(i));
    return all;
  };
  for (DType dtype : {DType::f32, DType::f64}) {
    const double epsilon = dtype == DType::f32 ? 0x1p-23 : 0x1p-52;
    for (auto [rows, columns, depth] : {std::array<int64_t, 3>{1, 1, 1},
                                        {5, 7, 3},
                                        {1, 40, 30},
                                        {40, 1, 30},
                                        {33, 65, 129},
                                        {300, 70, 20},
                                        {4, 5, 0}}) {
      for (int form = 0; form < 18; ++form) {
        const Tensor a = operand(rows, depth, dtype, form % 3), b = operand(depth, columns, dtype, form / 3 % 3);
        const bool accumulate = form / 9 == 1;
        const Tensor c = random({rows, columns}, dtype), before = converted(arena, c, dtype);
        kernels::matmul(a, b, {c, accumulate});
        const std::vector<double> a_values = values(a), b_values = values(b);
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < columns; ++j) {
            double sum = accumulate ? before.at({i, j}) : 0.0, size = std::fabs(sum);
            for (int64_t p = 0; p < depth; ++p) {
              const double term =
                  a_values[static_cast<size_t>(i * depth + p)] * b_values[static_cast<size_t>(p * columns + j)];
              sum += term;
              size += std::fabs(term);
            }
            ASSERT_LE(std::fabs(c.at({i, j}) - sum), static_cast<double>(depth + 2) * epsilon * size) << form;
          }
        }
      }
    }
  }
}

TEST(Blas, LinearWithBiasAndItsWeightGradientAgreeWithOurOwn) {
  // OpenBLAS is optional at run time: without it there is nothing to compare. The test scripts install it.
  if (!blas::choice().available) GTEST_SKIP() << blas::choice().reason;
  Arena arena;
  std::mt19937_64 engine(4);
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  const auto random = [&](const Shape& shape) {
    Tensor x = empty(arena, shape, DType::f64);
    for (int64_t i = 0; i < x.elements(); ++i) x.set_flat(i, uniform(engine));
    return x;
  };
  const Tensor x = random({120, 50}), w = random({90, 50}), bias = random({90}), dy = random({120, 90});
  Tensor y[2], dw[2];
  for (int i = 0; i < 2; ++i) {
    const ScopedProducts scoped(i == 0 ? blas::Products::own : blas::Products::blas);
    y[i] = empty(arena, {120, 90}, DType::f64);
    dw[i] = empty(arena, {90, 50}, DType::f64);
    kernels::linear(x, w, bias, y[i]);
    kernels::linear_backward_weight(dy, x, 3, {dw[i]});
  }
  for (int64_t i = 0; i < y[0].elements(); ++i) ASSERT_NEAR(y[0].flat(i), y[1].flat(i), 1e-13);
  for (int64_t i = 0; i < dw[0].elements(); ++i) ASSERT_NEAR(dw[0].flat(i), dw[1].flat(i), 1e-13);
}

}  // namespace
}  // namespace sextant
