// PaTH by tiles: against the product of steps taken one by one along every route, forward and backward, with and
// without a gate.
#include <gtest/gtest.h>

#include "autograd/gradient_check.h"
#include "core/error.h"
#include "core/parallel.h"
#include "positional/path.h"
#include "positional/path_block.h"
#include "tests/positional/attention_layer.h"

namespace sextant {
namespace {

using namespace testing_layer;

struct Steps {
  std::vector<std::vector<double>> w;  // [T][D], unit
  std::vector<double> beta, log_gate;
};

double sigmoid_of(double x) {
  return 1 / (1 + std::exp(-x));
}

double projected(Layer& layer, const Sequence& s, const std::string& weight, const std::string& bias, int64_t b,
                 int64_t t, int64_t row) {
  const Tensor w = layer.find("blocks.0.position." + weight)->value;
  double sum = layer.find("blocks.0.position." + bias)->value.flat(row);
  for (int64_t c = 0; c < w.size(1); ++c) sum += w.at({row, c}) * s.x.at({b, t, c});
  return sum;
}

Steps steps_of(Layer& layer, const Sequence& s, int64_t b, int64_t h, bool gate) {
  Steps steps;
  const int64_t dim = layer.settings.head_dim;
  for (int64_t t = 0; t < s.x.size(1); ++t) {
    std::vector<double> w;
    for (int64_t d = 0; d < dim; ++d)
      w.push_back(projected(layer, s, "transport.weight", "transport.bias", b, t, h * dim + d));
    const double norm = std::sqrt(inner(w, w));
    for (double& component : w) component /= norm;
    steps.w.push_back(w);
    steps.beta.push_back(2 * sigmoid_of(projected(layer, s, "transport.beta_weight", "transport.beta_bias", b, t, h)));
    steps.log_gate.push_back(gate ? std::log(sigmoid_of(projected(layer, s, "gate.weight", "gate.bias", b, t, h)))
                                  : 0.0);
  }
  return steps;
}

// q_i^T H_i ... H_{j+1} k_j, from the key on
double route_score(const Steps& steps, const std::vector<double>& q, std::vector<double> k, int64_t i, int64_t j) {
  for (int64_t t = j + 1; t <= i; ++t) {
    const auto& w = steps.w[static_cast<size_t>(t)];
    const double factor = steps.beta[static_cast<size_t>(t)] * inner(w, k);
    for (size_t d = 0; d < k.size(); ++d) k[d] -= factor * w[d];
  }
  return inner(q, k);
}

Tensor sequential(Arena& arena, Layer& layer, const Sequence& s, bool gate) {
  std::vector<Steps> steps;
  for (int64_t b = 0; b < s.q.size(0); ++b)
    for (int64_t h = 0; h < s.q.size(2); ++h) steps.push_back(steps_of(layer, s, b, h, gate));
  const auto logit = [&](int64_t b, int64_t h, int64_t i, int64_t j) {
    const Steps& own = steps[static_cast<size_t>(b * s.q.size(2) + h)];
    double gates = 0;
    for (int64_t t = j + 1; t <= i; ++t) gates += own.log_gate[static_cast<size_t>(t)];
    return route_score(own, row_of(s.q, b, i, h), row_of(s.k, b, j, h), i, j) /
               std::sqrt(static_cast<double>(s.q.size(3))) +
           gates;
  };
  const auto value = [&](int64_t b, int64_t h, int64_t, int64_t j, std::vector<double>& row) {
    row = row_of(s.v, b, j, h);
  };
  return plain_attention(arena, s, logit, value);
}

class PathLength : public testing::TestWithParam<int> {};

TEST_P(PathLength, EqualsTheSequentialProduct) {
  for (const bool gate : {false, true})
    for (const double beta : {-18.0, 0.0, 18.0}) {  // beta = 2 sigmoid: near 0, 1 and 2
      Layer layer(gate ? "transport(kind=path,gate=1)" : "transport(kind=path)", 2, 6, DType::f64);
      layer.shake(0.3);
      layer.find("blocks.0.position.transport.beta_bias")->value.fill(beta);
      Arena arena;
      Tape tape;
      const Sequence s = random_sequence(arena, layer.settings, 1, GetParam());
      EXPECT_LT(difference(layer.run(tape, s).value(), sequential(arena, layer, s, gate)), 1e-12)
          << "gate " << gate << ", beta " << 2 * sigmoid_of(beta);
    }
}
INSTANTIATE_TEST_SUITE_P(Sizes, PathLength, testing::Values(1, 2, 17, 63, 64, 65, 128, 150, 201));

TEST(Path, BackwardWithGateAtLengthsThatAreNoMultiple) {
  for (const double beta : {-18.0, 0.0, 18.0}) {
    Layer layer("transport(kind=path,gate=1)", 1, 4, DType::f64);
    layer.shake(0.4);
    layer.find("blocks.0.position.transport.beta_bias")->value.fill(beta);
    Arena arena;
    const Sequence s = random_sequence(arena, layer.settings, 1, 140);
    const auto f = [&](bool composed) {
      return [&layer, &s, composed](Tape&, std::span<const Variable> x) {
        return layer.run(x[0].tape(), x[0], {x[1], x[2], x[3]}, s.tokens, composed);
      };
    };
    const std::array inputs{s.x, s.q, s.k, s.v};
    EXPECT_LT(worst_difference(f(false), f(true), inputs), 1e-10) << beta;
    const GradientCheck check = check_directional(f(false), inputs, 3);
    EXPECT_LT(check.worst_error, 1e-7) << check.text();
    EXPECT_TRUE(check.repeatable);
  }
}

// The product of a tile serves the queries of all later tiles: what they give to its gradient adds up. Steps that keep
// most of what they carry, so that it shows.
TEST(Path, BackwardAddsUpOverTheQueriesOfSeveralTiles) {
  for (const double beta : {-5.0, 18.0}) {
    Layer layer("transport(kind=path)", 1, 4, DType::f64);
    layer.shake(0.4);
    layer.find("blocks.0.position.transport.beta_bias")->value.fill(beta);
    const GradientCheck check = check_inputs(layer, 270);
    EXPECT_LT(check.worst_error, 1e-7) << beta << ": " << check.text();
  }
}

TEST(Path, ParameterGradientsEqualTheComposedOnes) {
  Layer layer("transport(kind=path)", 2, 4, DType::f64);
  layer.shake(0.4);
  Arena arena;
  const Sequence s = random_sequence(arena, layer.settings, 2, 75);
  const auto gradients = [&](bool composed) {
    for (Parameter* parameter : layer.position->parameters()) parameter->has_gradient = false;
    Tape tape;
    tape.backward(layer.run(tape, s, composed), s.v);
    std::vector<Tensor> all;
    for (Parameter* parameter : layer.position->parameters())
      all.push_back(converted(arena, parameter->gradient, DType::f64));
    return all;
  };
  const auto tiled = gradients(false), composed = gradients(true);
  ASSERT_EQ(tiled.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_LT(difference(tiled[i], composed[i]), 1e-11) << i;
}

TEST(Path, StepsWithoutStrengthLeaveAttentionAlone) {
  Layer layer("transport(kind=path)", 2, 8, DType::f64), none("none", 2, 8, DType::f64);
  layer.find("blocks.0.position.transport.beta_bias")->value.fill(-800);
  layer.find("blocks.0.position.transport.beta_weight")->value.zero();
  Arena arena;
  Tape tape;
  const Sequence s = random_sequence(arena, layer.settings, 1, 200);
  EXPECT_LT(difference(layer.run(tape, s).value(), none.run(tape, s).value()), 1e-14);
}

TEST(Path, InverseOfARepeatedStrongStep) {
  // w the same each time, beta = 2: H H = I, so M must alternate; the matrix is as badly conditioned as it gets.
  Arena arena;
  const int64_t n = 64;
  const Tensor w = zeros(arena, {n, 3}, DType::f64), beta = full(arena, {n}, 2.0, DType::f64);
  for (int64_t i = 0; i < n; ++i) w.set_flat(3 * i + 1, 1.0);
  const PathWork& work = path_work(n, 3, DType::f64);
  path_inverse(w, beta, work);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const double expected = j > i ? 0.0 : i == j ? 2.0 : 4.0 * ((i - j) % 2 == 0 ? 1.0 : -1.0);
      ASSERT_NEAR(work.m.at({i, j}), expected, 1e-12) << i << ' ' << j;
    }
}

TEST(Path, SameBitsForAnyThreads) {
  Layer layer("transport(kind=path)", 3, 8, DType::f32);
  layer.shake(0.2);
  Arena arena;
  const Sequence s = random_sequence(arena, layer.settings, 2, 300);
  const auto run = [&](int count) {
    const int before = threads();
    set_threads(count);
    Tape tape;
    const Variable x = tape.variable(s.x);
    const Variable out = layer.run(tape, x, {tape.variable(s.q), tape.variable(s.k), tape.variable(s.v)}, s.tokens);
    tape.backward(out, s.v);
    set_threads(before);
    return std::array{converted(arena, out.value(), DType::f64), converted(arena, x.gradient(), DType::f64)};
  };
  const auto one = run(1), three = run(3);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(difference(one[i], three[i]), 0.0);
}

// What the tape holds after forward and backward, less the outputs every strategy has.
size_t peak_bytes(const char* spec, int64_t length) {
  Layer layer(spec, 1, 16, DType::f32);
  Arena arena;
  const Sequence s = random_sequence(arena, layer.settings, 1, length);
  Tape tape;
  const Variable out =
      layer.run(tape, tape.variable(s.x), {tape.variable(s.q), tape.variable(s.k), tape.variable(s.v)}, s.tokens);
  tape.backward(out, s.v);
  return tape.arena().peak();
}

TEST(Path, MemoryGrowsWithTheLengthAndRunsAt16384) {
  const double small = static_cast<double>(peak_bytes("transport(kind=path)", 4096));
  const double large = static_cast<double>(peak_bytes("transport(kind=path)", 16384));
  EXPECT_LT(large, 4.2 * small);
  EXPECT_LT(large, 16384 * 16 * 4 * 30.0);  // some tens of [T, D] tensors
}

TEST(Path, FloatFollowsDoubleOverManyTiles) {
  Layer narrow("transport(kind=path)", 1, 16, DType::f32), wide("transport(kind=path)", 1, 16, DType::f64);
  for (Parameter* parameter : wide.position->parameters())
    parameter->value.copy_from(narrow.find(parameter->name)->value);
  Arena arena;
  const Sequence s = random_sequence(arena, narrow.settings, 1, 3000);
  const auto widened = [&](const Tensor& x) { return converted(arena, x, DType::f64); };
  const Sequence same{widened(s.x), widened(s.q), widened(s.k), widened(s.v), s.tokens};
  Tape tape;
  EXPECT_LT(difference(narrow.run(tape, s).value(), wide.run(tape, same).value()), 1e-5);
}

// Steps of earlier calls are no variables any more: rather no gradient than a wrong one.
TEST(Path, HasNoGradientThroughACache) {
  Layer layer("transport(kind=path)", 2, 4, DType::f64);
  Arena arena;
  const Sequence s = random_sequence(arena, layer.settings, 1, 9);
  const auto read = [&](Tape& tape) {
    Position::State state = layer.position->new_state(1);
    Features features{tape.constant(s.q), tape.constant(s.k), tape.constant(s.v)};
    layer.position->transform({&tape, tape.constant(s.x), s.tokens, 1, 9, 0, 9, false, nullptr}, features, &state);
  };
  Tape tape;
  try {
    read(tape);
    ADD_FAILURE() << "the weights want a gradient";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("NoGrad"), std::string::npos) << error.what();
  }
  Tape quiet;
  const NoGrad none(quiet);
  EXPECT_NO_THROW(read(quiet));
}

}  // namespace
}  // namespace sextant
