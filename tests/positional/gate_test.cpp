// Cumulative gates: ALiBi as a special case, and a place beside every strategy.
#include <gtest/gtest.h>

#include "core/error.h"
#include "positional/alibi.h"
#include "positional/gate.h"
#include "tests/positional/attention_layer.h"

namespace sextant {
namespace {

using namespace testing_layer;

// The c with log sigmoid(c) = -slope.
double logit_of(double slope) {
  return -std::log(std::expm1(slope));
}

TEST(Gate, ConstantGatesAreAlibi) {
  Layer gate("gate", 4, 4, DType::f64), alibi("alibi", 4, 4, DType::f64);
  const std::vector<double> slopes = alibi_slopes(4);
  gate.find("blocks.0.position.gate.weight")->value.zero();
  for (int64_t h = 0; h < 4; ++h)
    gate.find("blocks.0.position.gate.bias")->value.set_flat(h, logit_of(slopes[static_cast<size_t>(h)]));
  Arena arena;
  Tape tape;
  const Sequence s = random_sequence(arena, gate.settings, 2, 300);
  EXPECT_LT(difference(gate.run(tape, s).value(), alibi.run(tape, s).value()), 1e-13);
  EXPECT_LT(difference(gate.run(tape, s, true).value(), alibi.run(tape, s).value()), 1e-13);
}

TEST(Gate, LogitsGainTheSumOfLogsAlongTheRoute) {
  Layer layer("gate", 2, 4, DType::f64);
  layer.shake(0.5);
  Arena arena;
  Tape tape;
  const Sequence s = random_sequence(arena, layer.settings, 2, 40);
  const Tensor weight = layer.find("blocks.0.position.gate.weight")->value,
               bias = layer.find("blocks.0.position.gate.bias")->value;
  const auto logit = [&](int64_t b, int64_t h, int64_t i, int64_t j) {
    double sum = inner(row_of(s.q, b, i, h), row_of(s.k, b, j, h)) / 2;
    for (int64_t t = j + 1; t <= i; ++t) {
      double x = bias.flat(h);
      for (int64_t c = 0; c < 8; ++c) x += weight.at({h, c}) * s.x.at({b, t, c});
      sum -= std::log(1 + std::exp(-x));
    }
    return sum;
  };
  const auto value = [&](int64_t b, int64_t h, int64_t, int64_t j, std::vector<double>& row) {
    row = row_of(s.v, b, j, h);
  };
  EXPECT_LT(difference(layer.run(tape, s).value(), plain_attention(arena, s, logit, value)), 1e-13);
}

TEST(Gate, StartsWithEveryHeadRemembering) {
  const std::vector<double> lengths = initial_decay_lengths(4, 512);
  EXPECT_DOUBLE_EQ(lengths.front(), 8.0);
  EXPECT_DOUBLE_EQ(lengths.back(), 512.0);
  EXPECT_NEAR(lengths[1] / lengths[0], lengths[2] / lengths[1], 1e-12);
  EXPECT_EQ(initial_decay_lengths(1, 100), (std::vector<double>{100.0}));
  EXPECT_EQ(initial_decay_lengths(2, 4), (std::vector<double>{4.0, 4.0}));
  Layer layer("gate", 4, 2, DType::f64, 512);
  const Tensor bias = layer.find("blocks.0.position.gate.bias")->value;
  for (int64_t h = 0; h < 4; ++h)
    EXPECT_NEAR(std::log(1 / (1 + std::exp(-bias.flat(h)))), -1 / lengths[static_cast<size_t>(h)], 1e-12);
}

TEST(Gate, KeepsItsDigitsInFloatOverALongSequence) {
  // Gates of a hundred thousand tokens ago add up to thousands of nats; neighbours must still differ by their own gate.
  Layer layer("gate", 1, 2, DType::f32), alibi("alibi", 1, 2, DType::f32);
  layer.find("blocks.0.position.gate.weight")->value.zero();
  layer.find("blocks.0.position.gate.bias")->value.fill(logit_of(alibi_slopes(1)[0] * 64));
  Arena arena;
  Tape tape;
  Sequence s = random_sequence(arena, layer.settings, 1, 20000);
  s.q.zero();  // the gates alone
  const Tensor out = layer.run(tape, s).value();
  const double ratio = std::exp(-alibi_slopes(1)[0] * 64);
  for (int64_t i = 19000; i < 20000; i += 37) {
    double expected = 0, weight = 1, sum = 0;
    for (int64_t j = i; j > i - 200; --j, weight *= ratio) {
      expected += weight * s.v.at({0, j, 0, 0});
      sum += weight;
    }
    ASSERT_NEAR(out.at({0, i, 0, 0}), expected / sum, 2e-5);
  }
}

TEST(Gate, KeepsItsDigitsInFloatAcrossADropOfThousands) {
  // Some tokens close the gate by 6,000 nats, the others differ by a little: within a tile, against the composed twin.
  for (const double closing : {60.0, 6000.0, 4e7}) {
    Layer f32("gate", 1, 4, DType::f32), f64("gate", 1, 4, DType::f64);
    for (Layer* layer : {&f32, &f64}) {
      layer->find("blocks.0.position.gate.weight")->value.zero();
      layer->find("blocks.0.position.gate.weight")->value.set_flat(0, -closing);
      layer->find("blocks.0.position.gate.weight")->value.set_flat(1, 1.0);
      layer->find("blocks.0.position.gate.bias")->value.fill(0.5);
    }
    Arena arena;
    Sequence s = random_sequence(arena, f32.settings, 1, 200);
    for (int64_t t = 0; t < 200; ++t) s.x.set_flat(4 * t, t % 64 == 5 || t % 64 == 14 || t % 29 == 28 ? 1.0 : 0.0);
    const auto exact = [&](const Tensor& x) { return converted(arena, x, DType::f64); };
    const Sequence same{exact(s.x), exact(s.q), exact(s.k), exact(s.v), s.tokens};
    Tape tape;
    EXPECT_LT(difference(f32.run(tape, s).value(), f64.run(tape, same, true).value()), 2e-6) << closing;
    EXPECT_LT(difference(f64.run(tape, same).value(), f64.run(tape, same, true).value()), 1e-13) << closing;
    EXPECT_LT(difference(f32.run_cached(arena, s, {3, 60, 1, 1, 100, 35}), f32.run(tape, s).value()), 1e-30) << closing;
  }
}

TEST(Gate, StandsBesideEveryStrategy) {
  Arena arena;
  for (const StrategyInfo& info : strategies())
    for (const std::string& example : info.examples) {
      if (example == "gate" || example.find("gate=1") != std::string::npos) continue;
      Layer layer(example + "+gate", 2, 16, DType::f64), open(example, 2, 16, DType::f64);
      layer.find("blocks.0.position.gate.weight")->value.zero();
      layer.find("blocks.0.position.gate.bias")->value.fill(60.0);
      Tape tape;
      const Sequence s = random_sequence(arena, layer.settings, 1, 70);
      // A gate that is open changes nothing; one that closes leaves each token to itself.
      EXPECT_LT(difference(layer.run(tape, s).value(), open.run(tape, s).value()), 1e-12) << example;
      layer.find("blocks.0.position.gate.bias")->value.fill(-1e6);
      EXPECT_LT(difference(layer.run(tape, s).value(), s.v), 1e-12) << example;
    }
}

}  // namespace
}  // namespace sextant
