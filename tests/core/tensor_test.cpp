// Shapes and tensors: views against index arithmetic, conversions, and what the errors say.
#include "core/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/angles.h"
#include "core/error.h"
#include "core/reflections.h"
#include "core/rotation.h"

namespace sextant {
namespace {

void expect_error(const std::function<void()>& f, const std::vector<std::string>& parts) {
  try {
    f();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::bad_input);
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
}

// Element (i, j, k) holds 100 i + 10 j + k, so that a number says where it came from.
Tensor numbered(Arena& arena, int64_t a, int64_t b, int64_t c, DType dtype = DType::f32) {
  const Tensor x = empty(arena, {a, b, c}, dtype);
  for (int64_t i = 0, flat = 0; i < a; ++i)
    for (int64_t j = 0; j < b; ++j)
      for (int64_t k = 0; k < c; ++k) x.set_flat(flat++, static_cast<double>(100 * i + 10 * j + k));
  return x;
}

TEST(ShapeTest, CountsAndCompares) {
  const Shape shape = {2, 3, 4};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[-1], 4);
  EXPECT_EQ(shape.elements(), 24);
  EXPECT_EQ(shape.rows(), 6);
  EXPECT_EQ(shape.prefix(1), 2);
  EXPECT_EQ(shape.text(), "[2, 3, 4]");
  EXPECT_EQ(Shape().elements(), 1);
  EXPECT_EQ(Shape().rows(), 1);
  EXPECT_EQ(Shape().text(), "[]");
  EXPECT_EQ((Shape{3, 0}).elements(), 0);
  EXPECT_EQ(shape, (Shape{2, 3, 4}));
  EXPECT_FALSE(shape == (Shape{2, 3}));
  EXPECT_FALSE(shape == (Shape{2, 3, 5}));
  EXPECT_FALSE((Shape{1}) == Shape());
}

TEST(ShapeTest, RefusesWhatIsNoShape) {
  expect_error([] { Shape({2, -1}); }, {"[2]", "-1", "0 or more"});
  expect_error([] { Shape({1, 2, 3, 4, 5, 6, 7}); }, {"[1, 2, 3, 4, 5, 6]", "at most 6"});
}

TEST(TensorTest, UndefinedUntilMade) {
  Arena arena;
  EXPECT_FALSE(Tensor().defined());
  EXPECT_TRUE(empty(arena, {0, 3}).defined()) << "an empty tensor is there";
  EXPECT_EQ(empty(arena, {2, 3}, DType::f64).bytes(), 48u);
  EXPECT_EQ(empty(arena, {2, 3}).bytes(), 24u);
}

TEST(TensorTest, TransposeSliceAndSelectFollowTheIndices) {
  Arena arena;
  for (DType dtype : {DType::f32, DType::f64}) {
    const Tensor x = numbered(arena, 3, 4, 5, dtype);
    const Tensor view = x.transpose(0, 2).slice(1, 1, 2).slice(0, 2, 3);  // view(k, j, i) = x(i, j + 1, k + 2)
    EXPECT_EQ(view.shape(), (Shape{3, 2, 3}));
    EXPECT_FALSE(view.contiguous());
    int64_t flat = 0;
    for (int64_t k = 0; k < 3; ++k)
      for (int64_t j = 0; j < 2; ++j)
        for (int64_t i = 0; i < 3; ++i) {
          const auto expected = static_cast<double>(100 * i + 10 * (j + 1) + k + 2);
          EXPECT_EQ(view.at({k, j, i}), expected);
          EXPECT_EQ(view.flat(flat++), expected);
        }
    const Tensor plane = x.select(1, 3);  // plane(i, k) = x(i, 3, k)
    EXPECT_EQ(plane.shape(), (Shape{3, 5}));
    EXPECT_EQ(plane.at({2, 4}), 234);
    EXPECT_EQ(x.select(-1, 1).at({2, 3}), 231);
    EXPECT_EQ(x.select(0, 1).select(0, 2).select(0, 3).item(), 123);
    EXPECT_EQ(x.transpose(-1, -2).at({1, 4, 2}), 124);
    EXPECT_EQ(x.transpose(1, 1).at({1, 2, 3}), 123);
  }
}

TEST(TensorTest, ViewsShareTheirNumbers) {
  Arena arena;
  const Tensor x = numbered(arena, 2, 3, 4);
  x.slice(0, 1, 1).transpose(1, 2).select(1, 2).fill(-1);  // x(1, :, 2)
  for (int64_t j = 0; j < 3; ++j) EXPECT_EQ(x.at({1, j, 2}), -1);
  EXPECT_EQ(x.at({1, 1, 1}), 111);
  EXPECT_EQ(x.at({0, 1, 2}), 12);
  x.transpose(0, 2).set_flat(1 * 6 + 2 * 2 + 0, 5);  // index (1, 2, 0) of the view
  EXPECT_EQ(x.at({0, 2, 1}), 5);
  EXPECT_EQ(x.reshape({6, 4}).at({2, 1}), 5);
}

TEST(TensorTest, ContiguityIgnoresDimensionsOfOne) {
  Arena arena;
  const Tensor x = numbered(arena, 2, 1, 4);
  EXPECT_TRUE(x.transpose(0, 1).contiguous());
  EXPECT_TRUE(x.slice(0, 1, 1).contiguous());
  EXPECT_FALSE(x.slice(2, 0, 3).contiguous());
  EXPECT_TRUE(x.slice(2, 0, 3).slice(0, 0, 1).contiguous());
  EXPECT_TRUE(full(arena, {}, 3).contiguous());
  EXPECT_EQ(full(arena, {}, 3).item(), 3);
}

TEST(TensorTest, CopiesBetweenLayoutsAndTypes) {
  Arena arena;
  const Tensor x = numbered(arena, 3, 4, 5, DType::f64);
  const Tensor turned = x.transpose(0, 1);
  const Tensor dense = contiguous(arena, turned);
  EXPECT_TRUE(dense.contiguous());
  const Tensor single = converted(arena, turned, DType::f32);
  const Tensor target = empty(arena, {3, 4, 5}, DType::f32);
  target.transpose(0, 1).copy_from(single);  // dense into a view
  const Tensor both = empty(arena, {3, 4, 5}, DType::f32);
  both.transpose(0, 1).copy_from(turned);  // view into a view, another type
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 4; ++j)
      for (int64_t k = 0; k < 5; ++k) {
        const double expected = x.at({i, j, k});
        EXPECT_EQ(dense.at({j, i, k}), expected);
        EXPECT_EQ(single.at({j, i, k}), expected);
        EXPECT_EQ(target.at({i, j, k}), expected);
        EXPECT_EQ(both.at({i, j, k}), expected);
      }
  EXPECT_EQ(contiguous(arena, x).data<double>(), x.data<double>()) << "already contiguous: no copy";
  EXPECT_NE(converted(arena, x, DType::f64).data<double>(), x.data<double>()) << "always a copy";
  x.set_flat(0, 0.1);
  EXPECT_EQ(converted(arena, x, DType::f32).flat(0), static_cast<double>(0.1f));
}

TEST(TensorTest, EmptyTensorsDoNothing) {
  Arena arena;
  const Tensor x = zeros(arena, {0, 4});
  EXPECT_TRUE(x.contiguous());
  EXPECT_TRUE(all_finite(x));
  EXPECT_EQ(sum_of_squares(x), 0);
  x.copy_from(full(arena, {0, 4}, 1));
  EXPECT_EQ(x.transpose(0, 1).shape(), (Shape{4, 0}));
  x.transpose(0, 1).fill(3);
  EXPECT_EQ(x.slice(0, 0, 0).elements(), 0);
  EXPECT_EQ(numbered(arena, 2, 2, 2).slice(1, 2, 0).elements(), 0);
}

TEST(TensorTest, FiniteAndSquaresLookAtTheViewOnly) {
  Arena arena;
  const Tensor x = full(arena, {3, 3}, 2);
  EXPECT_EQ(sum_of_squares(x), 36);
  for (double bad : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), std::nan("")}) {
    x.set_flat(4, bad);
    EXPECT_FALSE(all_finite(x));
    EXPECT_FALSE(all_finite(x.transpose(0, 1)));
    EXPECT_TRUE(all_finite(x.slice(0, 0, 1)));
    EXPECT_TRUE(all_finite(x.select(1, 2)));
    EXPECT_EQ(sum_of_squares(x.select(1, 0)), 12);
  }
  const Tensor huge = full(arena, {2}, 1e30);
  const double held = huge.flat(0);
  EXPECT_EQ(sum_of_squares(huge), 2 * held * held) << "squared in double: no overflow";
}

TEST(TensorTest, ErrorsNameBothShapes) {
  Arena arena;
  const Tensor x = numbered(arena, 2, 3, 4);
  expect_error([&] { x.reshape({5, 5}); }, {"[2, 3, 4]", "[5, 5]", "24", "25"});
  expect_error([&] { x.transpose(0, 1).reshape({24}); }, {"[3, 2, 4]", "contiguous"});
  expect_error([&] { x.slice(1, 2, 2); }, {"2:4", "dimension 1", "[2, 3, 4]"});
  expect_error([&] { x.slice(1, -1, 1); }, {"dimension 1", "[2, 3, 4]"});
  expect_error([&] { x.slice(1, 0, -1); }, {"dimension 1", "[2, 3, 4]"});
  expect_error([&] { x.select(0, 2); }, {"dimension 0", "[2, 3, 4]"});
  expect_error([&] { x.select(3, 0); }, {"dimension 3", "[2, 3, 4]"});
  expect_error([&] { x.transpose(0, -4); }, {"dimension -4", "[2, 3, 4]"});
  expect_error([&] { x.at({0, 0}); }, {"2 indices", "[2, 3, 4]"});
  expect_error([&] { x.at({0, 3, 0}); }, {"index 3", "dimension 1", "[2, 3, 4]"});
  expect_error([&] { x.item(); }, {"[2, 3, 4]", "one element"});
  expect_error([&] { x.copy_from(zeros(arena, {2, 3})); }, {"[2, 3]", "[2, 3, 4]"});
  expect_error([&] { from_values(arena, {2, 2}, std::vector<double>{1, 2, 3}); }, {"3 values", "[2, 2]"});
  expect_error([&] { require_shape(x, {2, 3}, "the logits"); }, {"the logits", "[2, 3, 4]", "[2, 3]"});
}

TEST(TensorTest, RowsWithGapsAreRefusedWithTheirStride) {
  Arena arena;
  const Tensor x = numbered(arena, 2, 3, 4);
  EXPECT_NO_THROW(require_contiguous_rows(x, "x"));
  EXPECT_NO_THROW(require_contiguous_rows(x.transpose(0, 1), "x"));
  EXPECT_NO_THROW(require_contiguous_rows(x.slice(2, 1, 2), "x"));
  EXPECT_NO_THROW(require_contiguous_rows(x.transpose(0, 2).slice(2, 0, 1), "x")) << "a row of one number has no gap";
  EXPECT_NO_THROW(require_contiguous_rows(full(arena, {}, 3), "x"));
  expect_error([&] { require_contiguous_rows(x.transpose(0, 2), "the keys"); }, {"the keys", "12"});
}

// These read rows by address: taken for dense, a transposed view would give other numbers without a word.
TEST(TensorTest, KernelsThatReadWholeRowsRefuseRowsWithGaps) {
  Arena arena;
  const auto features = [&](DType dtype = DType::f32) { return full(arena, {2, 4, 4, 4}, 0.5, dtype); };
  const Tensor dense = features(), gaps = features().transpose(1, 3), phasors = full(arena, {4, 4}, 1);
  const auto rotated = [&](const Tensor& x, const Tensor& y) {
    const kernels::Rotation rotation{x, {y}};
    kernels::rotate({&rotation, 1}, phasors, Pairing::interleaved, false);
  };
  EXPECT_NO_THROW(rotated(dense, dense));
  expect_error([&] { rotated(gaps, dense); }, {"rotate", "16"});
  expect_error([&] { rotated(dense, gaps); }, {"rotate", "result", "16"});

  const ChainLayout layout({2}, false);
  const auto chained = [&](const Tensor& x, const Tensor& y) {
    const kernels::ChainAction action{.x = x, .y = {y}, .phasors = phasors, .weights = full(arena, {4, 2}, 1)};
    kernels::apply_chains({&action, 1}, layout);
  };
  EXPECT_NO_THROW(chained(dense, dense));
  expect_error([&] { chained(gaps, dense); }, {"apply_chains", "16"});
  expect_error([&] { chained(dense, gaps); }, {"apply_chains", "result", "16"});

  const auto turned = [&](const Tensor& y, const Tensor& dy) {
    const kernels::Turned one{y, dy};
    kernels::turn_gradient({&one, 1}, 1.0, {full(arena, {2, 4, 4, 2}, 0, DType::f64)});
  };
  EXPECT_NO_THROW(turned(dense, dense));
  expect_error([&] { turned(gaps, dense); }, {"turn_gradient", "16"});
  expect_error([&] { turned(dense, gaps); }, {"turn_gradient", "dy", "16"});

  const Tensor anchors = full(arena, kernels::reflection_anchors_shape(dense.shape()), 0, DType::f64);
  kernels::accumulate_reflections(dense, {}, 0, anchors, arena);
  const auto reflected = [&](const Tensor& w, const Tensor& x, const Tensor& y) {
    const kernels::Reflected one{x, {y}};
    kernels::reflect(w, anchors, {&one, 1}, false, arena);
  };
  EXPECT_NO_THROW(reflected(dense, dense, dense));
  expect_error([&] { reflected(gaps, dense, dense); }, {"reflect", "w", "16"});
  expect_error([&] { reflected(dense, gaps, dense); }, {"reflect", "16"});
  expect_error([&] { reflected(dense, dense, gaps); }, {"reflect", "result", "16"});
  const auto backward = [&](const Tensor& x, const Tensor& dy, const Tensor& dx, const Tensor& dw) {
    const kernels::ReflectedGradient one{x, dy, {dx}};
    kernels::reflect_backward(dense, anchors, {&one, 1}, false, {dw}, arena);
  };
  EXPECT_NO_THROW(backward(dense, dense, features(), features()));
  expect_error([&] { backward(gaps, dense, dense, dense); }, {"reflect_backward", "16"});
  expect_error([&] { backward(dense, gaps, dense, dense); }, {"reflect_backward", "dy", "16"});
  expect_error([&] { backward(dense, dense, gaps, dense); }, {"reflect_backward", "dx", "16"});
  expect_error([&] { backward(dense, dense, dense, gaps); }, {"reflect_backward", "gradient of w", "16"});
}

TEST(TensorTest, WrapLooksOntoOthersMemory) {
  std::vector<float> memory = {1, 2, 3, 4, 5, 6};
  const Tensor x = Tensor::wrap(memory.data(), {2, 3}, DType::f32);
  EXPECT_EQ(x.at({1, 0}), 4);
  x.set_flat(5, 9);
  EXPECT_EQ(memory[5], 9);
  EXPECT_EQ(x.span<float>().size(), 6u);
}

}  // namespace
}  // namespace sextant
