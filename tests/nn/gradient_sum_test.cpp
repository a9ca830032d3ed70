// A batch worked off in parts, by one rank or several, has the gradients of the whole batch to the last bit: for every
// strategy, for batches that are and are not powers of two, and for parameters that are used twice.
#include "nn/gradient_sum.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/elementwise.h"
#include "autograd/reductions.h"
#include "core/random.h"
#include "nn/transformer.h"
#include "tests/core/thread_ranks.h"

namespace sextant {
namespace {

constexpr int64_t vocabulary = 11, length = 70;

std::vector<std::string> specs() {
  std::vector<std::string> all{"rope+affine+gate", "transport(kind=learned,values=1)+alibi", "pj-bias+rope+alibi"};
  for (const StrategyInfo& info : strategies()) all.insert(all.end(), info.examples.begin(), info.examples.end());
  return all;
}

ModelConfig config_of(const std::string& spec, bool tied = true) {
  ModelConfig config;
  config.vocab = vocabulary;
  config.layers = 2;
  config.width = 16;
  config.heads = 2;
  config.context = length;
  config.position = spec;
  config.tied = tied;
  return config;
}

std::vector<int32_t> tokens_of(int64_t sequences, const char* stream) {
  std::vector<int32_t> tokens;
  for (int64_t t = 0; t < sequences * length; ++t)
    tokens.push_back(static_cast<int32_t>(Random(3, stream).below(static_cast<uint64_t>(t), vocabulary)));
  return tokens;
}

// All gradients as bytes, and the loss.
struct Result {
  double nats = 0;
  std::string bytes;
};
std::string gradient_bytes(Transformer& model) {
  std::string bytes;
  for (Parameter* parameter : model.parameters()) {
    if (!parameter->has_gradient) parameter->gradient.zero();
    bytes.append(reinterpret_cast<const char*>(parameter->gradient.span<float>().data()), parameter->gradient.bytes());
    parameter->has_gradient = false;
  }
  return bytes;
}

Result whole(const ModelConfig& config, int64_t sequences) {
  Transformer model(config);
  Tape tape;
  BatchPart all{.counted = sequences * length};
  const Variable loss = model.loss(tape, tokens_of(sequences, "x"), tokens_of(sequences, "y"), sequences, length, &all);
  tape.backward(loss);
  return {all.nats, gradient_bytes(model)};
}

// `steps` times, so that the layout of the first is used again.
Result in_parts(const ModelConfig& config, int64_t sequences, int64_t parts, Communicator& ranks = alone(),
                int steps = 2) {
  Transformer model(config);
  Tape tape;
  const int64_t own = sequences / ranks.size();
  const std::vector<int32_t> x = tokens_of(sequences, "x"), y = tokens_of(sequences, "y");
  GradientSum sum(ranks, own, parts);
  Result result;
  for (int step = 0; step < steps; ++step) {
    for (const GradientSum::Part& part : sum.parts()) {
      tape.reset();
      const auto piece = [&](const std::vector<int32_t>& all) {
        return std::span(all).subspan(static_cast<size_t>((ranks.rank() * own + part.sequences.first) * length),
                                      static_cast<size_t>(part.sequences.leaves * length));
      };
      BatchPart share{.counted = sequences * length};
      const Variable loss = model.loss(tape, piece(x), piece(y), part.sequences.leaves, length, &share);
      sum.begin(part, std::array{share.nats});
      tape.backward(loss, sum);
    }
    result = {sum.numbers()[0], gradient_bytes(model)};
  }
  return result;
}

void expect_same(const Result& a, const Result& b, const std::string& what) {
  EXPECT_EQ(a.nats, b.nats) << what;
  ASSERT_EQ(a.bytes.size(), b.bytes.size()) << what;
  EXPECT_TRUE(a.bytes == b.bytes) << what << ": gradients differ";
}

class GradientSumOf : public testing::TestWithParam<std::string> {};

TEST_P(GradientSumOf, PartsGiveTheBitsOfTheWhole) {
  const ModelConfig config = config_of(GetParam());
  const Result expected = whole(config, 6);
  for (int64_t parts : {1, 2, 3, 6})
    expect_same(expected, in_parts(config, 6, parts), std::to_string(parts) + " parts");
}

INSTANTIATE_TEST_SUITE_P(Strategies, GradientSumOf, testing::ValuesIn(specs()), [](const auto& instance) {
  std::string name = std::to_string(instance.index) + "_" + instance.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

TEST(GradientSum, RanksGiveTheBitsOfOneProcess) {
  for (const bool tied : {true, false}) {
    const ModelConfig config = config_of("pj-bias+rope+affine", tied);
    for (const auto& [sequences, ranks, parts] :
         std::vector<std::array<int64_t, 3>>{{8, 2, 1}, {8, 4, 2}, {8, 8, 1}, {12, 4, 2}, {6, 2, 3}, {2, 2, 1}}) {
      const Result expected = whole(config, sequences);
      test::ThreadRanks::run(static_cast<int>(ranks), [&](Communicator& own) {
        expect_same(expected, in_parts(config, sequences, parts, own),
                    fmt::format("{} sequences, {} ranks of {} parts, tied {}", sequences, ranks, parts, tied));
      });
    }
  }
}

TEST(GradientSum, PartsAreSubtreesOfAtMostTheirShare) {
  for (int64_t sequences = 1; sequences <= 40; ++sequences)
    for (int64_t parts = 1; parts <= sequences; ++parts) {
      GradientSum sum(alone(), sequences, parts);
      int64_t next = 0;
      for (const GradientSum::Part& part : sum.parts()) {
        EXPECT_EQ(part.sequences.first, next);
        EXPECT_LE(part.sequences.leaves, (sequences + parts - 1) / parts);
        next += part.sequences.leaves;
        EXPECT_EQ(part.last, next == sequences);
      }
      EXPECT_EQ(next, sequences);
    }
  EXPECT_THROW(GradientSum(alone(), 4, 5), Error);
}

// loss = sum over the batch of w x, twice, with w = exp(p): what lies behind the batch runs once, on the sum.
TEST(GradientSum, WhatDoesNotDependOnTheBatchRunsOnce) {
  Arena arena;
  Parameter p{"p", full(arena, {1}, 0.5), empty(arena, {1}), false, false};
  GradientSum sum(alone(), 2, 2);
  for (const GradientSum::Part& part : sum.parts()) {
    Tape tape;
    const Variable w = exp(tape.parameter(p)), x = tape.constant(full(tape.arena(), {1}, part.last ? 3.0 : 2.0));
    const Variable loss = add(sextant::sum(multiply(w, x)), sextant::sum(multiply(w, x)));
    sum.begin(part, std::array{1.0});
    EXPECT_EQ(p.has_gradient, false);
    tape.backward(loss, sum);
  }
  EXPECT_TRUE(p.has_gradient);
  EXPECT_EQ(sum.numbers()[0], 2.0);
  EXPECT_NEAR(p.gradient.item(), 2 * 5 * std::exp(0.5), 1e-5);
}

TEST(GradientSum, PartsThatRecordOtherOperationsAreRefused) {
  Arena arena;
  Parameter p{"p", full(arena, {1}, 0.5), empty(arena, {1}), false, false};
  GradientSum sum(alone(), 2, 2);
  Tape tape;
  const Variable x = tape.constant(full(tape.arena(), {1}, 2.0));
  sum.begin(sum.parts()[0], std::array{1.0});
  tape.backward(sextant::sum(multiply(tape.parameter(p), x)), sum);
  sum.begin(sum.parts()[1], std::array{1.0});
  const Variable twice = add(multiply(tape.parameter(p), x), multiply(tape.parameter(p), x));
  EXPECT_THROW(tape.backward(sextant::sum(twice), sum), Error);
}

}  // namespace
}  // namespace sextant
