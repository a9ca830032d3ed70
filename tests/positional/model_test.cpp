// Every strategy inside a model: reading a sequence in pieces through the cache gives the logits of the full pass,
// within and beyond the training length, and the composed twins give the loss of the hand-written operations.
#include <gtest/gtest.h>

#include <cmath>

#include "nn/transformer.h"

namespace sextant {
namespace {

constexpr int64_t vocabulary = 11, context = 24;

std::vector<std::string> specs() {
  std::vector<std::string> all{"rope(scaling=dynamic-ntk)+affine", "rope+affine+gate",
                               "transport(kind=learned,values=1)+alibi", "pj-bias+rope"};
  for (const StrategyInfo& info : strategies()) all.insert(all.end(), info.examples.begin(), info.examples.end());
  return all;
}

ModelConfig config_of(const std::string& spec, DType dtype) {
  ModelConfig config;
  config.vocab = vocabulary;
  config.layers = 2;
  config.width = 16;
  config.heads = 2;
  config.context = context;
  config.position = spec;
  config.dtype = dtype;
  return config;
}

std::vector<int32_t> tokens_of(int64_t length) {
  std::vector<int32_t> tokens;
  for (int64_t t = 0; t < length; ++t)
    tokens.push_back(static_cast<int32_t>(Random(3, "tokens").below(static_cast<uint64_t>(t), vocabulary)));
  return tokens;
}

class InAModel : public testing::TestWithParam<std::string> {};

TEST_P(InAModel, PiecesThroughTheCacheGiveTheFullPass) {
  for (const int64_t length : {context, 3 * context + 1}) {  // the second one crosses a tile of 64
    Transformer model(config_of(GetParam(), DType::f64));
    const std::vector<int32_t> tokens = tokens_of(length);
    Tape tape;
    NoGrad none(tape);
    const Tensor whole = model.logits(tape, tokens, 1, length).value();
    Cache cache = model.new_cache(1, length, length);
    for (int64_t first = 0, count = 0; first < length; first += count) {
      count = std::min<int64_t>(first == 0 ? 5 : first < 12 ? 1 : 17, length - first);
      const Tensor piece =
          model
              .extend(tape, cache, std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                      count)
              .value();
      for (int64_t i = 0; i < count * vocabulary; ++i)
        ASSERT_NEAR(piece.flat(i), whole.flat(first * vocabulary + i), 1e-10) << "token " << first + i / vocabulary;
    }
    EXPECT_EQ(cache.length(), length);
  }
}

TEST_P(InAModel, ComposedTwinsGiveTheSameLossAndGradients) {
  Transformer model(config_of(GetParam(), DType::f64));
  const std::vector<int32_t> tokens = tokens_of(2 * context), targets = tokens_of(2 * context);
  std::vector<double> values[2];
  for (const bool composed : {false, true}) {
    model.set_composed(composed);
    Tape tape;
    const Variable loss = model.loss(tape, tokens, targets, 2, context);
    for (Parameter* parameter : model.parameters()) parameter->has_gradient = false;
    tape.backward(loss);
    values[composed].push_back(loss.value().item());
    for (Parameter* parameter : model.parameters())
      for (int64_t i = 0; i < parameter->value.elements(); ++i)
        values[composed].push_back(parameter->has_gradient ? parameter->gradient.flat(i) : 0.0);
  }
  ASSERT_EQ(values[0].size(), values[1].size());
  for (size_t i = 0; i < values[0].size(); ++i) ASSERT_NEAR(values[0][i], values[1][i], 1e-11) << "entry " << i;
}

INSTANTIATE_TEST_SUITE_P(Strategies, InAModel, testing::ValuesIn(specs()), [](const auto& instance) {
  std::string name = std::to_string(instance.index) + "_" + instance.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

TEST(DynamicNtk, KeysHoldUpToTheTrainingLengthOnly) {
  Transformer model(config_of("rope(scaling=dynamic-ntk)", DType::f32));
  EXPECT_TRUE(model.cache_holds(context));
  EXPECT_FALSE(model.cache_holds(context + 1));
  EXPECT_TRUE(Transformer(config_of("rope(scaling=yarn,factor=4)", DType::f32)).cache_holds(100 * context));
}

}  // namespace
}  // namespace sextant
