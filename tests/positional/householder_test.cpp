// Accumulated Householder reflections: against reflections applied one by one along every route, and orthogonality at
// length.
#include <gtest/gtest.h>

#include "core/parallel.h"
#include "core/reflections.h"
#include "positional/householder.h"
#include "tests/positional/attention_layer.h"

namespace sextant {
namespace {

using namespace testing_layer;

std::vector<std::vector<double>> directions(Layer& layer, const Sequence& s, int64_t b, int64_t h) {
  const int64_t dim = layer.settings.head_dim;
  Parameter *weight = layer.find("blocks.0.position.transport.weight"),
            *bias = layer.find("blocks.0.position.transport.bias");
  std::vector<std::vector<double>> all;
  for (int64_t t = 0; t < s.x.size(1); ++t) {
    std::vector<double> w;
    for (int64_t d = 0; d < dim; ++d) {
      double sum = bias->value.flat(h * dim + d);
      for (int64_t c = 0; c < layer.settings.width; ++c) sum += weight->value.at({h * dim + d, c}) * s.x.at({b, t, c});
      w.push_back(sum);
    }
    all.push_back(w);
  }
  return all;
}

// M_i ... M_{j+1} x
std::vector<double> carried(std::vector<double> x, const std::vector<std::vector<double>>& w, int64_t j, int64_t i) {
  for (int64_t t = j + 1; t <= i; ++t) {
    const std::vector<double>& step = w[static_cast<size_t>(t)];
    const double factor = 2 * inner(step, x) / inner(step, step);
    for (size_t d = 0; d < x.size(); ++d) x[d] -= factor * step[d];
  }
  return x;
}

class Householder : public testing::TestWithParam<std::tuple<int, int, bool>> {};

TEST_P(Householder, EqualsReflectionsOneByOne) {
  const auto [length, dim, values] = GetParam();
  Layer layer(values ? "transport(kind=householder,values=1)" : "transport(kind=householder)", 2, dim, DType::f64);
  layer.shake(0.5);
  Arena arena;
  Tape tape;
  const Sequence s = random_sequence(arena, layer.settings, 1, length);
  const std::array w{directions(layer, s, 0, 0), directions(layer, s, 0, 1)};
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  const auto logit = [&](int64_t b, int64_t h, int64_t i, int64_t j) {
    return scale * inner(row_of(s.q, b, i, h), carried(row_of(s.k, b, j, h), w[static_cast<size_t>(h)], j, i));
  };
  const bool travels = values;
  const auto value = [&](int64_t b, int64_t h, int64_t i, int64_t j, std::vector<double>& row) {
    row = row_of(s.v, b, j, h);
    if (travels) row = carried(row, w[static_cast<size_t>(h)], j, i);
  };
  const Tensor expected = plain_attention(arena, s, logit, value);
  EXPECT_LT(difference(layer.run(tape, s).value(), expected), 1e-12);
  if (length < 100) {
    EXPECT_LT(difference(layer.run(tape, s, true).value(), expected), 1e-12);
  }
}
INSTANTIATE_TEST_SUITE_P(Sizes, Householder,
                         testing::Values(std::tuple{1, 4, false}, std::tuple{30, 6, true}, std::tuple{130, 8, true},
                                         std::tuple{257, 3, false}, std::tuple{65, 36, true}));

// The gradient of a step comes from all later tokens, over the anchors between.
TEST(HouseholderPrefix, BackwardGoesOverAnchors) {
  for (const bool values : {false, true}) {
    Layer layer(values ? "transport(kind=householder,values=1)" : "transport(kind=householder)", 1, 5, DType::f64);
    layer.shake(0.5);
    const GradientCheck check = check_inputs(layer, 300);
    EXPECT_LT(check.worst_error, 1e-7) << values << ": " << check.text();
  }
}

double distance_from_orthogonal(const Tensor& anchors, int64_t index) {
  const int64_t dim = anchors.size(3), stride = anchors.size(4);
  const double* c = anchors.data<double>() + index * dim * stride;
  double worst = 0;
  for (int64_t i = 0; i < dim; ++i)
    for (int64_t j = 0; j < dim; ++j) {
      double sum = i == j ? -1.0 : 0.0;
      for (int64_t n = 0; n < dim; ++n) sum += c[n * stride + i] * c[n * stride + j];
      worst = std::max(worst, std::abs(sum));
    }
  return worst;
}

TEST(HouseholderPrefix, IsOrthogonalAfter65536Steps) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Arena arena;
    const Tensor w = random_tensor(arena, {1, 65536, 1, 16}, dtype, 1);
    const Tensor anchors = empty(arena, kernels::reflection_anchors_shape(w.shape()), DType::f64);
    kernels::accumulate_reflections(w, {}, 0, anchors, arena);
    EXPECT_LT(distance_from_orthogonal(anchors, anchors.size(2) - 1), 2e-15);
    // Norms survive the way there, and back, in the working precision.
    Tape tape;
    const AccumulatedReflections reflections{tape.constant(w), anchors};
    const Tensor x = random_tensor(arena, w.shape(), dtype, 2);
    Features features{tape.constant(x), tape.constant(x), tape.constant(x)};
    reflect(reflections, features, true);
    const Tensor travelled = features.v.value(), returned = reflect_back(reflections, features.v).value();
    double worst_norm = 0;
    for (int64_t t = 65536 - 300; t < 65536; ++t) {
      const auto before = row_of(x, 0, t, 0), after = row_of(travelled, 0, t, 0);
      worst_norm = std::max(worst_norm, std::abs(std::sqrt(inner(after, after) / inner(before, before)) - 1));
    }
    const double rounding = dtype == DType::f32 ? 1e-7 : 1e-15;
    EXPECT_LT(worst_norm, 2 * rounding);
    EXPECT_LT(difference(returned, x), 5 * rounding);
  }
}

TEST(HouseholderPrefix, AgreesWithLongDoubleAfterTenThousandSteps) {
  Arena arena;
  const int64_t length = 10000, dim = 5;
  const Tensor w = random_tensor(arena, {1, length, 1, dim}, DType::f64, 1);
  const Tensor anchors = empty(arena, kernels::reflection_anchors_shape(w.shape()), DType::f64);
  kernels::accumulate_reflections(w, {}, 0, anchors, arena);
  std::array<std::array<long double, 5>, 5> c{};
  for (size_t i = 0; i < 5; ++i) c[i][i] = 1;
  for (int64_t t = 0; t < length; ++t)
    for (size_t column = 0; column < 5; ++column) {
      long double along = 0, square = 0;
      for (size_t d = 0; d < 5; ++d) {
        const long double component = w.flat(t * dim + static_cast<int64_t>(d));
        along += component * c[d][column];
        square += component * component;
      }
      for (size_t d = 0; d < 5; ++d) c[d][column] -= 2 * along / square * w.flat(t * dim + static_cast<int64_t>(d));
    }
  for (int64_t i = 0; i < 5; ++i)
    for (int64_t j = 0; j < 5; ++j)
      EXPECT_NEAR(anchors.at({0, 0, anchors.size(2) - 1, i, j}),
                  static_cast<double>(c[static_cast<size_t>(i)][static_cast<size_t>(j)]), 1e-13);
}

TEST(HouseholderPrefix, AStepWithoutDirectionIsNone) {
  Arena arena;
  Tape tape;
  const Tensor w = zeros(arena, {1, 3, 1, 4}, DType::f64), x = random_tensor(arena, w.shape(), DType::f64, 2);
  const Variable steps = tape.variable(w), q = tape.variable(x);
  Features features{q, q, {}};
  reflect(accumulated_reflections(steps), features, false);
  EXPECT_EQ(difference(features.q.value(), x), 0.0);
  tape.backward(features.q, x);
  EXPECT_EQ(sum_of_squares(steps.gradient()), 0.0);
  EXPECT_EQ(difference(q.gradient(), x), 0.0);
}

TEST(HouseholderPrefix, SameBitsForAnyThreads) {
  Layer layer("transport(kind=householder,values=1)", 3, 8, DType::f32);
  Arena arena;
  const Sequence s = random_sequence(arena, layer.settings, 2, 300);
  const auto run = [&](int count) {
    const int before = threads();
    set_threads(count);
    Tape tape;
    const Variable x = tape.variable(s.x), q = tape.variable(s.q);
    const Variable out = layer.run(tape, x, {q, tape.variable(s.k), tape.variable(s.v)}, s.tokens);
    tape.backward(out, s.v);
    set_threads(before);
    return std::array{converted(arena, out.value(), DType::f64), converted(arena, x.gradient(), DType::f64)};
  };
  const auto one = run(1), three = run(3);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(difference(one[i], three[i]), 0.0);
}

}  // namespace
}  // namespace sextant
