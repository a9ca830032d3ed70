// The model as a whole: the composed twin, finite differences, the cache, the leaves of its sums, names and counts.
#include "nn/transformer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "autograd/gradient_check.h"
#include "core/error.h"
#include "core/parallel.h"
#include "nn/generation.h"

namespace sextant {
namespace {

ModelConfig small(const std::string& position, DType dtype = DType::f64) {
  ModelConfig config;
  config.vocab = 17;
  config.layers = 2;
  config.width = 16;
  config.heads = 2;
  config.context = 12;
  config.position = position;
  config.dtype = dtype;
  return config;
}

std::vector<int32_t> tokens_of(int64_t count, int64_t vocabulary, const char* stream = "test tokens") {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(
        static_cast<int32_t>(Random(3, stream).below(static_cast<uint64_t>(i), static_cast<uint64_t>(vocabulary))));
  return tokens;
}

// Larger weights than a fresh model's, so that no part of it is close to doing nothing.
void enlarge(Transformer& model) {
  for (Parameter* parameter : model.parameters())
    for (int64_t i = 0; i < parameter->value.elements(); ++i)
      parameter->value.set_flat(
          i, parameter->value.flat(i) + 0.2 * Random(5, parameter->name).normal(static_cast<uint64_t>(i)));
}

class PositionTest : public testing::TestWithParam<const char*> {};

TEST_P(PositionTest, LossGradientsAgreeWithFiniteDifferencesAndTheComposedTwin) {
  Transformer model(small(GetParam()));
  enlarge(model);
  const auto tokens = tokens_of(2 * 12, 17), targets = tokens_of(2 * 12, 17, "targets");
  Tape tape;
  const auto run = [&] {
    const Variable loss = model.loss(tape, tokens, targets, 2, 12);
    const double value = loss.value().item();
    if (tape.recording()) tape.backward(loss);
    tape.reset();
    return value;
  };
  const double loss = run();
  double worst = 0;
  Arena arena;
  std::vector<Tensor> fused;
  for (Parameter* parameter : model.parameters()) {
    fused.push_back(converted(arena, parameter->gradient, DType::f64));
    parameter->has_gradient = false;
  }
  // Three entries of every parameter.
  size_t which = 0;
  for (Parameter* parameter : model.parameters()) {
    for (int64_t n = 0; n < 3; ++n) {
      const int64_t entry = static_cast<int64_t>(
          Random(1, parameter->name)
              .below(static_cast<uint64_t>(n), static_cast<uint64_t>(parameter->value.elements())));
      const double value = parameter->value.flat(entry), h = 1e-4;
      const auto at = [&](double offset) {
        const NoGrad guard(tape);
        parameter->value.set_flat(entry, value + offset);
        return run();
      };
      const double numeric = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      parameter->value.set_flat(entry, value);
      worst = std::max(worst, std::abs(numeric - fused[which].flat(entry)));
    }
    ++which;
  }
  EXPECT_LT(worst, 1e-9);

  model.set_composed(true);
  EXPECT_NEAR(run(), loss, 1e-12);
  which = 0;
  for (Parameter* parameter : model.parameters()) {
    for (int64_t i = 0; i < parameter->value.elements(); ++i)
      ASSERT_NEAR(parameter->gradient.flat(i), fused[which].flat(i), 1e-11) << parameter->name << " " << i;
    ++which;
  }
}

TEST_P(PositionTest, CachedPiecesGiveTheBitsOfTheWholePass) {
  for (DType dtype : {DType::f32, DType::f64}) {
    Transformer model(small(GetParam(), dtype));
    enlarge(model);
    const int64_t length = 150;  // beyond the context, and over two tiles
    const auto tokens = tokens_of(length, 17);
    Tape tape;
    const NoGrad guard(tape);
    const Tensor whole = model.logits(tape, tokens, 1, length).value();
    for (const std::vector<int64_t>& pieces :
         {std::vector<int64_t>{100, 1, 1, 48}, std::vector<int64_t>(150, 1), std::vector<int64_t>{150}}) {
      Cache cache = model.new_cache(1, length, length);
      int64_t first = 0;
      for (int64_t piece : pieces) {
        const Tensor part =
            model
                .extend(tape, cache, std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(piece)),
                        piece)
                .value();
        for (int64_t t = 0; t < piece; ++t)
          for (int64_t v = 0; v < 17; ++v)
            ASSERT_EQ(part.at({0, t, v}), whole.at({0, first + t, v}))
                << GetParam() << " " << name_of(dtype) << " position " << first + t;
        first += piece;
      }
    }
  }
}

TEST_P(PositionTest, SameGradientBitsForAnyNumberOfThreads) {
  const auto tokens = tokens_of(4 * 100, 17), targets = tokens_of(4 * 100, 17, "targets");
  std::vector<std::vector<float>> bits;
  const int before = threads();
  for (int count : {1, 2, 3}) {
    set_threads(count);
    ModelConfig config = small(GetParam(), DType::f32);
    config.context = 100;
    Transformer model(config);
    Tape tape;
    tape.backward(model.loss(tape, tokens, targets, 4, 100));
    std::vector<float>& all = bits.emplace_back();
    for (Parameter* parameter : model.parameters())
      all.insert(all.end(), parameter->gradient.span<float>().begin(), parameter->gradient.span<float>().end());
  }
  set_threads(before);
  EXPECT_EQ(std::memcmp(bits[0].data(), bits[1].data(), bits[0].size() * 4), 0);
  EXPECT_EQ(std::memcmp(bits[0].data(), bits[2].data(), bits[0].size() * 4), 0);
}

INSTANTIATE_TEST_SUITE_P(Specs, PositionTest, testing::Values("none", "rope", "alibi", "rope+alibi"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name)
                             if (c == '+') c = '_';
                           return name;
                         });

TEST(TransformerTest, TheBatchIsSummedAlongATreeOfSequences) {
  // The gradient of four sequences is (first two) + (last two). For matrices to the last bit; sums that are kept in
  // double to their end (biases, gains, embeddings) are rounded once, so that adding two rounded halves may differ by
  // one rounding.
  ModelConfig config = small("rope", DType::f32);
  config.tied = false;  // a tied weight adds its two uses within each part, in another order
  const auto tokens = tokens_of(4 * 12, 17), targets = tokens_of(4 * 12, 17, "targets");
  const auto gradients = [&](int64_t first, int64_t count) {
    Transformer model(config);
    Tape tape;
    const auto part = [&](const std::vector<int32_t>& all) {
      return std::span(all).subspan(static_cast<size_t>(first * 12), static_cast<size_t>(count * 12));
    };
    const Variable loss = model.loss(tape, part(tokens), part(targets), count, 12);
    // The mean over all four sequences, so that the parts' gradients are those of the whole.
    Tensor weight = tape.empty({}, DType::f32);
    weight.fill(static_cast<double>(count) / 4);
    tape.backward(loss, weight);
    std::map<std::string, std::vector<float>> all;
    for (Parameter* parameter : model.parameters()) {
      const auto values = parameter->gradient.span<float>();
      all[parameter->name].assign(values.begin(), values.end());
    }
    return all;
  };
  auto whole = gradients(0, 4), first = gradients(0, 2), second = gradients(2, 2);
  for (const auto& [name, values] : whole) {
    const bool matrix =
        name.ends_with(".weight") && name.find("norm") == std::string::npos && name != "tok_embed.weight";
    for (size_t i = 0; i < values.size(); ++i) {
      const float sum = first[name][i] + second[name][i];
      if (matrix)
        ASSERT_EQ(values[i], sum) << name << " " << i;
      else
        ASSERT_NEAR(values[i], sum, 2e-7F * (std::abs(first[name][i]) + std::abs(second[name][i]))) << name << " " << i;
    }
  }
}

TEST(TransformerTest, BaseModelHasThePapersSizeAndTheContractsNames) {
  Transformer model{ModelConfig{}};
  EXPECT_EQ(model.parameter_count(), 256 * 64 + 3 * (12 * 64 * 64 + 13 * 64) + 2 * 64);
  std::vector<std::string> names;
  for (const Parameter* parameter : model.parameters())
    names.push_back(parameter->name + parameter->value.shape().text());
  for (const char* expected :
       {"tok_embed.weight[256, 64]", "blocks.0.norm1.weight[64]", "blocks.2.attn.qkv.weight[192, 64]",
        "blocks.2.attn.qkv.bias[192]", "blocks.1.attn.out.weight[64, 64]", "blocks.0.mlp.up.weight[256, 64]",
        "blocks.0.mlp.down.weight[64, 256]", "norm_f.bias[64]"})
    EXPECT_NE(std::find(names.begin(), names.end(), expected), names.end()) << expected;
  EXPECT_EQ(
      std::count_if(names.begin(), names.end(), [](const std::string& name) { return name.starts_with("lm_head"); }),
      0);
}

TEST(TransformerTest, AFreshModelPredictsNearlyUniformly) {
  Transformer model{ModelConfig{}};
  Tape tape;
  const auto tokens = tokens_of(2 * 64, 256), targets = tokens_of(2 * 64, 256, "targets");
  EXPECT_NEAR(model.loss(tape, tokens, targets, 2, 64).value().item(), std::log(256.0), 0.15);
}

TEST(TransformerTest, BadConfigurationsSayWhatWouldBeRight) {
  const auto message = [](auto change) -> std::string {
    ModelConfig config;
    change(config);
    try {
      Transformer model(config);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(message([](ModelConfig& c) { c.heads = 5; }).find("divisible"), std::string::npos);
  EXPECT_NE(message([](ModelConfig& c) { c.width = 60, c.heads = 4; }).find("even"),
            std::string::npos);  // head dimension 15 with RoPE
  EXPECT_NE(message([](ModelConfig& c) { c.position = "rop"; }).find("rope"), std::string::npos);
  EXPECT_NE(message([](ModelConfig& c) { c.layers = 0; }).find("layers"), std::string::npos);
  Transformer model{ModelConfig{}};
  Tape tape;
  EXPECT_THROW(model.logits(tape, std::vector<int32_t>{1, 256}, 1, 2), Error);
  EXPECT_THROW(model.logits(tape, std::vector<int32_t>{1, -2}, 1, 2), Error);
  EXPECT_THROW(model.logits(tape, std::vector<int32_t>{1, 2, 3}, 1, 2), Error);
}

}  // namespace
}  // namespace sextant
