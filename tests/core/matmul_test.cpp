// Products against plain loops in long double, within the rounding error of a chain; and the promises about bits: the
// same for any number of threads, for a row alone or among others, and for sums over leaves along the tree.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "core/blas.h"
#include "core/cpu.h"
#include "core/error.h"
#include "core/kernels.h"
#include "core/parallel.h"
#include "core/tree_sum.h"

namespace sextant {
namespace {

constexpr double canary = 77.0;

struct ScopedIsa {
  explicit ScopedIsa(Isa wanted) : before(isa()) { set_isa(wanted); }
  ~ScopedIsa() { set_isa(before); }
  Isa before;
};
struct ScopedThreads {
  explicit ScopedThreads(int wanted) : before(threads()) { set_threads(wanted); }
  ~ScopedThreads() { set_threads(before); }
  int before;
};

class Products : public testing::Test {
 protected:
  Tensor random(const Shape& shape, DType dtype) {
    Tensor x = empty(arena_, shape, dtype);
    std::uniform_real_distribution<double> uniform(-1.0, 1.0);
    for (int64_t i = 0; i < x.elements(); ++i) x.set_flat(i, uniform(engine_));
    return x;
  }

  // A [rows, columns] window with the memory layout asked for, everything around it filled with the canary.
  enum Layout { dense, padded, transposed, scattered };
  Tensor window(int64_t rows, int64_t columns, DType dtype, Layout layout) {
    Tensor all;
    switch (layout) {
      case dense:
        return full(arena_, {rows, columns}, canary, dtype);
      case padded:
        all = full(arena_, {rows + 2, columns + 5}, canary, dtype);
        return all.slice(0, 1, rows).slice(1, 3, columns);
      case transposed:
        all = full(arena_, {columns, rows + 3}, canary, dtype);
        return all.slice(1, 1, rows).transpose(0, 1);
      case scattered:
        all = full(arena_, {rows, columns, 2}, canary, dtype);
        return all.select(2, 1);
    }
    return all;
  }
  Tensor random_window(int64_t rows, int64_t columns, DType dtype, Layout layout) {
    Tensor x = window(rows, columns, dtype, layout);
    x.copy_from(random({rows, columns}, dtype));
    return x;
  }
  int64_t below(int64_t limit) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(limit)); }

  Arena arena_;
  std::mt19937_64 engine_{20240607};
};

double epsilon(DType dtype) {
  return dtype == DType::f32 ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon();
}

std::vector<double> values_of(const Tensor& x) {
  std::vector<double> values(static_cast<size_t>(x.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = x.flat(static_cast<int64_t>(i));
  return values;
}

// |c - (init + a b)| <= (K + 2) eps (|init| + |a| |b|): each of the K steps rounds once or twice (eps is two units of
// rounding). Wide is a type in which the plain loop's own error does not count.
template <class Wide>
void expect_product_in(const Tensor& a, const Tensor& b, const Tensor* init, const Tensor& c) {
  const auto rows = static_cast<size_t>(c.size(0)), columns = static_cast<size_t>(c.size(1)),
             depth = static_cast<size_t>(a.size(1));
  const std::vector<double> a_values = values_of(a), b_values = values_of(b), c_values = values_of(c);
  const std::vector<double> init_values = init == nullptr ? std::vector<double>(rows * columns) : values_of(*init);
  const Wide bound = static_cast<Wide>(depth + 2) * static_cast<Wide>(epsilon(c.dtype()));
  std::vector<Wide> sum(columns), size(columns);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      sum[j] = static_cast<Wide>(init_values[i * columns + j]);
      size[j] = std::fabs(sum[j]);
    }
    for (size_t p = 0; p < depth; ++p) {
      for (size_t j = 0; j < columns; ++j) {
        const Wide term = static_cast<Wide>(a_values[i * depth + p]) * static_cast<Wide>(b_values[p * columns + j]);
        sum[j] += term;
        size[j] += std::fabs(term);
      }
    }
    for (size_t j = 0; j < columns; ++j) {
      ASSERT_LE(std::fabs(static_cast<Wide>(c_values[i * columns + j]) - sum[j]), bound * size[j])
          << "at (" << i << ", " << j << ") of " << c.shape().text() << ", K = " << depth;
    }
  }
}

void expect_product(const Tensor& a, const Tensor& b, const Tensor* init, const Tensor& c) {
  if (c.dtype() == DType::f32) {
    expect_product_in<double>(a, b, init, c);
  } else {
    expect_product_in<long double>(a, b, init, c);
  }
}

void expect_same_bits(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.shape(), b.shape());
  for (int64_t i = 0; i < a.elements(); ++i) {
    const double x = a.flat(i), y = b.flat(i);
    ASSERT_EQ(std::memcmp(&x, &y, sizeof x), 0)
        << "element " << i << " of " << a.shape().text() << ": " << x << " and " << y;
  }
}

Tensor copy(Arena& arena, const Tensor& x) {
  return converted(arena, x, x.dtype());
}

TEST_F(Products, AllLayoutsAndSizesOnEveryIsa) {
  const std::vector<int64_t> sizes = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  11, 13, 15, 16, 17,
                                      23, 24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65, 66, 95, 97};
  for (Isa each : available_isas()) {
    const ScopedIsa scoped(each);
    for (DType dtype : {DType::f32, DType::f64}) {
      for (int repeat = 0; repeat < 250; ++repeat) {
        arena_.reset();
        const auto pick = [&] { return sizes[static_cast<size_t>(below(static_cast<int64_t>(sizes.size())))]; };
        const int64_t rows = pick(), columns = pick(), depth = pick();
        const auto layout = [&] { return static_cast<Layout>(below(4)); };
        const Tensor a = random_window(rows, depth, dtype, layout()),
                     b = random_window(depth, columns, dtype, layout());
        const Layout c_layout = layout();
        const Tensor c = window(rows, columns, dtype, c_layout);
        const bool accumulate = repeat % 2 == 1;
        if (accumulate) {
          c.copy_from(random({rows, columns}, dtype));
        } else {
          c.fill(std::numeric_limits<double>::quiet_NaN());  // what is overwritten must not be read
        }
        const Tensor init = copy(arena_, c);
        kernels::matmul(a, b, {c, accumulate});
        SCOPED_TRACE(testing::Message() << name_of(each) << " " << name_of(dtype) << " layout of c " << c_layout);
        expect_product(a, b, accumulate ? &init : nullptr, c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Products, NothingAroundTheResultIsTouched) {
  for (Isa each : available_isas()) {
    const ScopedIsa scoped(each);
    for (DType dtype : {DType::f32, DType::f64}) {
      for (int64_t columns = 1; columns <= 80; ++columns) {
        arena_.reset();
        const int64_t rows = 1 + below(30), depth = 1 + below(9);
        const Tensor all = full(arena_, {rows + 2, columns + 2}, canary, dtype);
        kernels::matmul(random({rows, depth}, dtype), random({depth, columns}, dtype),
                        {all.slice(0, 1, rows).slice(1, 1, columns)});
        for (int64_t j = 0; j < columns + 2; ++j) {
          ASSERT_EQ(all.at({0, j}), canary);
          ASSERT_EQ(all.at({rows + 1, j}), canary);
        }
        for (int64_t i = 0; i < rows + 2; ++i) {
          ASSERT_EQ(all.at({i, 0}), canary);
          ASSERT_EQ(all.at({i, columns + 1}), canary);
        }
      }
    }
  }
}

// Larger than every block: depth over the cache block, rows over a task, columns over a task, B packed in several
// pieces.
TEST_F(Products, LargerThanTheBlocks) {
  for (auto [rows, columns, depth] :
       {std::array<int64_t, 3>{130, 300, 1000}, {200, 70, 5000}, {97, 1300, 900}, {1, 600, 800}}) {
    for (Layout layout : {dense, transposed}) {
      arena_.reset();
      const Tensor a = random({rows, depth}, DType::f32), b = random_window(depth, columns, DType::f32, layout);
      const Tensor c = empty(arena_, {rows, columns});
      kernels::matmul(a, b, {c});
      for (int64_t i : {int64_t{0}, rows / 2, rows - 1}) {  // all rows would take too long
        expect_product(a.slice(0, i, 1), b, nullptr, c.slice(0, i, 1));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Products, BatchesOfAnyStrides) {
  const Tensor a = random({3, 5, 2, 4}, DType::f64).transpose(0, 2),
               b = random({2, 3, 5, 4}, DType::f64).transpose(1, 2);
  ASSERT_EQ(a.shape(), (Shape{2, 5, 3, 4}));
  const Tensor b_last = b.transpose(-1, -2);  // [2, 5, 4, 3]
  const Tensor c = empty(arena_, {2, 5, 3, 3}, DType::f64);
  kernels::matmul(a, b_last, {c});
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 5; ++j) {
      expect_product(a.select(0, i).select(0, j), b_last.select(0, i).select(0, j), nullptr,
                     c.select(0, i).select(0, j));
    }
  }
}

TEST_F(Products, InfinityAndNanPassThrough) {
  const Tensor a = from_values(arena_, {2, 2}, std::vector<double>{INFINITY, 1.0, 0.0, 1.0});
  const Tensor b = from_values(arena_, {2, 2}, std::vector<double>{1.0, 0.0, 2.0, INFINITY});
  const Tensor c = empty(arena_, {2, 2});
  kernels::matmul(a, b, {c});
  EXPECT_EQ(c.at({0, 0}), INFINITY);
  EXPECT_TRUE(std::isnan(c.at({0, 1})));
  EXPECT_EQ(c.at({1, 0}), 2.0);
  EXPECT_EQ(c.at({1, 1}), INFINITY);
}

// AVX2 and AVX-512 run the same chains of fused multiply-adds; the plain machine rounds the product too.
TEST_F(Products, IsasAgree) {
  const Tensor a = random({37, 450}, DType::f32), b = random({450, 83}, DType::f32);
  std::vector<Tensor> results;
  for (Isa each : available_isas()) {
    const ScopedIsa scoped(each);
    results.push_back(empty(arena_, {37, 83}));
    kernels::matmul(a, b, {results.back()});
    expect_product(a, b, nullptr, results.back());
  }
  for (size_t i = 2; i < results.size(); ++i) expect_same_bits(results[1], results[i]);
}

TEST_F(Products, LinearIsTheProductPlusBiasAndItsGelu) {
  for (Isa each : available_isas()) {
    const ScopedIsa scoped(each);
    for (DType dtype : {DType::f32, DType::f64}) {
      for (auto [rows, outputs, inputs] :
           {std::array<int64_t, 3>{1, 1, 1}, {5, 67, 33}, {100, 300, 64}, {250, 192, 64}, {3, 7, 0}}) {
        const Tensor x = random({rows, inputs}, dtype), w = random({outputs, inputs}, dtype),
                     bias = random({outputs}, dtype);
        const Tensor y = empty(arena_, {rows, outputs}, dtype), activated = empty(arena_, {rows, outputs}, dtype);
        kernels::linear(x, w, bias, y, activated);
        const Tensor init = empty(arena_, {rows, outputs}, dtype);
        for (int64_t i = 0; i < rows; ++i) init.select(0, i).copy_from(bias);
        expect_product(x, w.transpose(0, 1), &init, y);
        for (int64_t i = 0; i < y.elements(); ++i) {
          const long double v = static_cast<long double>(y.flat(i));
          const long double expected =
              0.5L * v * (1.0L + std::tanh(std::sqrt(2.0L / std::acos(-1.0L)) * (v + 0.044715L * v * v * v)));
          ASSERT_NEAR(activated.flat(i), static_cast<double>(expected),
                      8 * epsilon(dtype) * (0.01 + std::fabs(y.flat(i))));
        }
        const Tensor without = empty(arena_, {rows, outputs}, dtype);
        kernels::linear(x, w, {}, without);
        expect_product(x, w.transpose(0, 1), nullptr, without);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Products, LinearBackward) {
  for (Isa each : available_isas()) {
    const ScopedIsa scoped(each);
    for (DType dtype : {DType::f32, DType::f64}) {
      for (auto [leaves, leaf_rows, outputs, inputs] : {std::array<int64_t, 4>{1, 1, 1, 1},
                                                        {3, 5, 67, 33},
                                                        {8, 16, 192, 64},
                                                        {5, 7, 130, 200},
                                                        {2, 65, 1700, 70},
                                                        {3, 5, 130, 300},
                                                        {2, 7, 200, 800},
                                                        {40, 1, 3, 5},
                                                        {2, 0, 4, 4}}) {
        const int64_t rows = leaves * leaf_rows;
        const Tensor x = random({rows, inputs}, dtype), w = random({outputs, inputs}, dtype),
                     dy = random({rows, outputs}, dtype);
        for (bool accumulate : {false, true}) {
          const Tensor dx = random({rows, inputs}, dtype), dw = random({outputs, inputs}, dtype),
                       db = random({1, outputs}, dtype);
          const Tensor dx0 = copy(arena_, dx), dw0 = copy(arena_, dw), db0 = copy(arena_, db);
          kernels::linear_backward_input(dy, w, {dx, accumulate});
          kernels::linear_backward_weight(dy, x, leaves, {dw, accumulate});
          kernels::column_sum(dy, leaves, {db.reshape({outputs}), accumulate});
          expect_product(dy, w, accumulate ? &dx0 : nullptr, dx);
          expect_product(dy.transpose(0, 1), x, accumulate ? &dw0 : nullptr, dw);
          expect_product(full(arena_, {1, rows}, 1.0, dtype), dy, accumulate ? &db0 : nullptr, db);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// x and dy as parts of the columns of wider matrices: their rows lie far apart, though they are short themselves.
TEST_F(Products, AWeightGradientFromPartsOfWiderMatrices) {
  for (Isa each : available_isas()) {
    const ScopedIsa scoped(each);
    for (DType dtype : {DType::f32, DType::f64}) {
      const Tensor x = random({4 * 9, 300}, dtype).slice(1, 3, 16), dy = random({4 * 9, 530}, dtype).slice(1, 7, 200);
      const Tensor dw = empty(arena_, {200, 16}, dtype);
      kernels::linear_backward_weight(dy, x, 4, {dw});
      expect_product(dy.transpose(0, 1), x, nullptr, dw);
      const Tensor columns_of_dy = random({200, 4 * 9}, dtype).transpose(0, 1);
      EXPECT_THROW(kernels::linear_backward_weight(columns_of_dy, x, 4, {dw}), Error);
    }
  }
}

// A leaf's column is summed in double and rounded once: large terms that cancel leave the small one. Leaves are added
// in f32, where 1e8 swallows the 1.
TEST_F(Products, ColumnSumIsInDoubleWithinALeaf) {
  const Tensor dy = from_values(arena_, {4, 1}, std::vector<double>{1e8, 1.0, -1e8, 0.25});
  const Tensor sum = empty(arena_, {1});
  for (auto [leaves, expected] : {std::pair<int64_t, double>{1, 1.25}, {2, 0}, {4, 0}}) {
    kernels::column_sum(dy, leaves, {sum});
    EXPECT_EQ(sum.item(), expected) << leaves;
  }
}

// Everything a training step multiplies, once with each number of threads.
TEST_F(Products, AnyNumberOfThreadsGivesTheSameBits) {
  const int64_t rows = 6 * 50, inputs = 800, outputs = 330;
  const Tensor x = random({rows, inputs}, DType::f32), w = random({outputs, inputs}, DType::f32),
               bias = random({outputs}, DType::f32), dy = random({rows, outputs}, DType::f32),
               batch_a = random({12, 40, 30}, DType::f32), batch_b = random({12, 30, 20}, DType::f32);
  std::vector<std::vector<Tensor>> results;
  for (int count : {1, 2, 3}) {
    const ScopedThreads scoped(count);
    const Tensor y = empty(arena_, {rows, outputs}), g = empty(arena_, {rows, outputs}),
                 dx = empty(arena_, {rows, inputs}), dw = empty(arena_, {outputs, inputs}),
                 small = empty(arena_, {outputs, 16}), db = empty(arena_, {outputs}), c = empty(arena_, {12, 40, 20});
    kernels::linear(x, w, bias, y, g);
    kernels::linear_backward_input(dy, w, {dx});
    kernels::linear_backward_weight(dy, x, 6, {dw});
    kernels::linear_backward_weight(dy, x.slice(1, 3, 16), 6, {small});
    kernels::column_sum(dy, 6, {db});
    kernels::matmul(batch_a, batch_b, {c});
    results.push_back({y, g, dx, dw, small, db, c});
  }
  for (size_t i = 1; i < results.size(); ++i) {
    for (size_t j = 0; j < results[0].size(); ++j) expect_same_bits(results[0][j], results[i][j]);
  }
}

// Generation with a cache computes one row at a time and must agree with the full pass bit for bit.
TEST_F(Products, ARowAloneHasTheSameBitsAsAmongOthers) {
  for (Isa each : available_isas()) {
    const ScopedIsa scoped(each);
    for (DType dtype : {DType::f32, DType::f64}) {
      for (auto [rows, outputs, inputs] :
           {std::array<int64_t, 3>{131, 200, 64}, {131, 70, 1700}, {7, 65, 1000}, {150, 16, 400}, {30, 9, 17}}) {
        arena_.reset();
        const Tensor x = random({rows, inputs}, dtype), w = random({outputs, inputs}, dtype),
                     bias = random({outputs}, dtype);
        const Tensor y = empty(arena_, {rows, outputs}, dtype), g = empty(arena_, {rows, outputs}, dtype);
        kernels::linear(x, w, bias, y, g);
        for (int64_t first = 0, count = 1; first < rows; first += count, ++count) {
          count = std::min(count, rows - first);
          const Tensor part = empty(arena_, {count, outputs}, dtype), part_g = empty(arena_, {count, outputs}, dtype);
          kernels::linear(x.slice(0, first, count), w, bias, part, part_g);
          expect_same_bits(y.slice(0, first, count), part);
          expect_same_bits(g.slice(0, first, count), part_g);
          if (HasFatalFailure()) return;
        }
        // The same for some columns alone.
        const int64_t from = outputs / 3, width = outputs / 2;
        const Tensor columns = empty(arena_, {rows, width}, dtype);
        kernels::linear(x, w.slice(0, from, width), bias.slice(0, from, width), columns);
        expect_same_bits(y.slice(1, from, width), columns);
      }
    }
  }
}

// The definition of the tree, by recursion.
float tree(const std::vector<float>& values, size_t begin, size_t end) {
  if (end - begin == 1) return values[begin];
  const size_t middle = begin + (end - begin + 1) / 2;
  return tree(values, begin, middle) + tree(values, middle, end);
}

TEST(TreeSum, BothFormsFollowTheDefinition) {
  std::mt19937 engine(7);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  int orders_differ = 0;
  for (int64_t leaves = 1; leaves <= 70; ++leaves) {
    std::vector<float> values(static_cast<size_t>(leaves));
    for (float& value : values) value = std::exp(5 * uniform(engine)) * uniform(engine);
    const float expected = tree(values, 0, values.size());
    std::vector<float> slots(static_cast<size_t>(tree_slots(leaves)), NAN), rows = values;
    tree_sum(
        0, leaves, 1, slots.data(), [&](int64_t i, float* out) { *out = values[static_cast<size_t>(i)]; },
        [](int64_t, const float* from, float* into) { *into += *from; });
    tree_sum_rows<float>(leaves, 1, rows.data(), 1);
    std::vector<double> in_double(values.begin(), values.end());
    tree_sum_rows<float>(leaves, 1, in_double.data(), 1);
    EXPECT_EQ(in_double[0], static_cast<double>(expected)) << leaves;
    EXPECT_EQ(slots[0], expected) << leaves;
    EXPECT_EQ(rows[0], expected) << leaves;
    float straight = 0;
    for (float value : values) straight += value;
    orders_differ += straight != expected;
    // Subtrees, then their sums.
    for (int64_t wanted : {1, 2, 3, 7, 100}) {
      const int64_t pieces = tree_pieces(leaves, wanted);
      std::vector<float> sums;
      int64_t next = 0;
      for (int64_t p = 0; p < pieces; ++p) {
        const TreePiece piece = tree_piece(leaves, pieces, p);
        EXPECT_EQ(piece.first, next);
        EXPECT_GE(piece.leaves, 1);
        next += piece.leaves;
        std::vector<float> part(values.begin() + piece.first, values.begin() + next);
        tree_sum_rows<float>(piece.leaves, 1, part.data(), 1);
        sums.push_back(part[0]);
      }
      EXPECT_EQ(next, leaves);
      tree_sum_rows<float>(pieces, 1, sums.data(), 1);
      EXPECT_EQ(sums[0], expected) << leaves << " in " << pieces;
    }
  }
  EXPECT_GT(orders_differ, 30);  // the values do tell one order from another
}

// All leaves are the first half plus the second, bit for bit: two machines with half the batch each get the same
// gradient.
TEST_F(Products, LeavesAddUpAlongTheTree) {
  for (Isa each : available_isas()) {
    const ScopedIsa scoped(each);
    for (auto [outputs, inputs] : {std::pair<int64_t, int64_t>{64, 64}, {200, 260}, {5, 3}}) {
      for (int64_t leaves : {2, 3, 6, 8, 11}) {
        arena_.reset();
        const int64_t leaf_rows = 19;
        const Tensor x = random({leaves * leaf_rows, inputs}, DType::f32),
                     dy = random({leaves * leaf_rows, outputs}, DType::f32);
        const Tensor dw = empty(arena_, {outputs, inputs});
        kernels::linear_backward_weight(dy, x, leaves, {dw});
        const int64_t half = (leaves + 1) / 2;
        const Tensor left = empty(arena_, {outputs, inputs}), right = empty(arena_, {outputs, inputs});
        kernels::linear_backward_weight(dy.slice(0, 0, half * leaf_rows), x.slice(0, 0, half * leaf_rows), half,
                                        {left});
        const int64_t rest = (leaves - half) * leaf_rows;
        kernels::linear_backward_weight(dy.slice(0, half * leaf_rows, rest), x.slice(0, half * leaf_rows, rest),
                                        leaves - half, {right});
        for (int64_t i = 0; i < dw.elements(); ++i)
          left.span<float>()[static_cast<size_t>(i)] += right.span<float>()[static_cast<size_t>(i)];
        expect_same_bits(dw, left);

        const Tensor db = empty(arena_, {outputs}), db_left = empty(arena_, {outputs}),
                     db_right = empty(arena_, {outputs});
        kernels::column_sum(dy, leaves, {db});
        kernels::column_sum(dy.slice(0, 0, half * leaf_rows), half, {db_left});
        kernels::column_sum(dy.slice(0, half * leaf_rows, rest), leaves - half, {db_right});
        for (size_t i = 0; i < static_cast<size_t>(outputs); ++i)
          ASSERT_EQ(db.span<float>()[i], db_left.span<float>()[i] + db_right.span<float>()[i]);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Products, WhatDoesNotFitIsRefused) {
  const Tensor a = random({2, 3}, DType::f32), b = random({4, 5}, DType::f32), c = empty(arena_, {2, 5});
  EXPECT_THROW(kernels::matmul(a, b, {c}), Error);
  EXPECT_THROW(kernels::matmul(a, random({3, 5}, DType::f64), {c}), Error);
  EXPECT_THROW(kernels::linear(a, random({5, 4}, DType::f32), {}, c), Error);
  EXPECT_THROW(kernels::linear(a, random({5, 3}, DType::f32), random({4}, DType::f32), c), Error);
  EXPECT_THROW(kernels::linear_backward_input(c, random({4, 3}, DType::f32), {a}), Error);
  EXPECT_THROW(kernels::linear_backward_weight(c, a, 3, {empty(arena_, {5, 3})}), Error);
  EXPECT_THROW(kernels::linear_backward_weight(c, a, 0, {empty(arena_, {5, 3})}), Error);
  EXPECT_THROW(kernels::column_sum(c, 4, {empty(arena_, {5})}), Error);
  EXPECT_NO_THROW(kernels::linear_backward_weight(c, a, 2, {empty(arena_, {5, 3})}));
}

}  // namespace
}  // namespace sextant
