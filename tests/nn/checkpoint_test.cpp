// Checkpoints: what goes in comes out to the bit, training resumed is training not stopped, and what is no checkpoint
// of ours is refused by name.
#include "nn/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/random.h"
#include "core/safetensors.h"

namespace sextant {
namespace {

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest()
      : folder_(std::filesystem::temp_directory_path() / ("sextant-checkpoint-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~CheckpointTest() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  static ModelConfig config() {
    ModelConfig config;
    config.vocab = 19;
    config.layers = 2;
    config.width = 16;
    config.heads = 2;
    config.context = 10;
    return config;
  }
  static void train(Transformer& model, AdamW& optimizer, int64_t from, int64_t to) {
    Tape tape;
    for (int64_t step = from; step < to; ++step) {
      std::vector<int32_t> tokens, targets;
      for (uint64_t i = 0; i < 20; ++i) {
        tokens.push_back(static_cast<int32_t>(Random(static_cast<uint64_t>(step), "tokens").below(i, 19)));
        targets.push_back(static_cast<int32_t>(Random(static_cast<uint64_t>(step), "targets").below(i, 19)));
      }
      tape.backward(model.loss(tape, tokens, targets, 2, 10));
      tape.reset();
      optimizer.step(1e-2);
    }
  }
  static std::string message(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::bad_input);
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path folder_;
};

TEST_F(CheckpointTest, ResumedTrainingEndsWithTheSameBits) {
  Transformer straight(config());
  AdamW straight_optimizer(straight.parameters(), {});
  train(straight, straight_optimizer, 0, 6);
  save_checkpoint(path("straight.safetensors"), straight, &straight_optimizer, {6, 120, {}});

  Transformer first(config());
  AdamW first_optimizer(first.parameters(), {});
  train(first, first_optimizer, 0, 3);
  save_checkpoint(path("half.safetensors"), first, &first_optimizer, {3, 60, {{"trainer", "{}"}}});
  const auto second = load_model(path("half.safetensors"));
  AdamW second_optimizer(second->parameters(), {});
  const TrainingState state = load_training_state(path("half.safetensors"), second_optimizer);
  EXPECT_EQ(state.step, 3);
  EXPECT_EQ(state.tokens, 60);
  EXPECT_EQ(state.extra, (std::map<std::string, std::string>{{"trainer", "{}"}}));
  train(*second, second_optimizer, 3, 6);
  save_checkpoint(path("resumed.safetensors"), *second, &second_optimizer, {6, 120, {}});

  const MappedFile a(path("straight.safetensors")), b(path("resumed.safetensors"));
  ASSERT_EQ(a.bytes().size(), b.bytes().size());
  EXPECT_EQ(std::memcmp(a.bytes().data(), b.bytes().data(), a.bytes().size()), 0);
}

TEST_F(CheckpointTest, WeightsCanBeReadInTheOtherPrecision) {
  Transformer model(config());
  save_checkpoint(path("a.safetensors"), model, nullptr, {});
  const auto wide = load_model(path("a.safetensors"), DType::f64);
  EXPECT_EQ(wide->config().dtype, DType::f64);
  EXPECT_EQ(wide->parameters()[3]->value.flat(5), model.parameters()[3]->value.flat(5));
  AdamW optimizer(wide->parameters(), {});
  EXPECT_NE(message([&] { load_training_state(path("a.safetensors"), optimizer); }).find("no optimizer state"),
            std::string::npos);
}

TEST_F(CheckpointTest, ForeignAndMismatchedFilesAreRefusedByNameAndKey) {
  Arena arena;
  const std::vector<NamedTensor> tensors{{"weight", zeros(arena, {2, 2})}};
  write_safetensors(path("foreign.safetensors"), tensors);
  EXPECT_NE(message([&] { load_model(path("foreign.safetensors")); }).find("foreign.safetensors: no 'config'"),
            std::string::npos);
  write_safetensors(path("bad.safetensors"), tensors, {{"config", "{\"vocab\": \"many\"}"}});
  EXPECT_NE(message([&] { load_model(path("bad.safetensors")); }).find("'vocab'"), std::string::npos);
  write_safetensors(path("lacks.safetensors"), tensors, {{"config", config().json()}});
  EXPECT_NE(message([&] { load_model(path("lacks.safetensors")); }).find("tok_embed.weight"), std::string::npos);

  Transformer model(config());
  std::vector<NamedTensor> all;
  for (const Parameter* parameter : model.parameters()) all.push_back({parameter->name, parameter->value});
  all.push_back({"stranger", zeros(arena, {1})});
  write_safetensors(path("more.safetensors"), all, {{"config", config().json()}});
  EXPECT_NE(message([&] { load_model(path("more.safetensors")); }).find("stranger"), std::string::npos);
  all.pop_back();
  all[0].tensor = zeros(arena, {18, 16});
  write_safetensors(path("shape.safetensors"), all, {{"config", config().json()}});
  EXPECT_NE(message([&] { load_model(path("shape.safetensors")); }).find("[18, 16]"), std::string::npos);
  EXPECT_NE(message([&] { load_model(path("absent.safetensors")); }).find("absent.safetensors"), std::string::npos);
}

TEST_F(CheckpointTest, ConfigurationOfOtherTypesIsRefusedByItsKey) {
  for (const auto& [key, value] : std::initializer_list<std::pair<std::string, std::string>>{
           {"vocab", "1e300"}, {"layers", "1.5"}, {"heads", "true"}, {"seed", "-1"}, {"tied", "1"}, {"data", "null"}}) {
    nlohmann::json json = nlohmann::json::parse(config().json());
    json[key] = nlohmann::json::parse(value);
    const std::string said = message([&] { ModelConfig::from_json(json.dump(), "here"); });
    EXPECT_NE(said.find("here: the configuration's '" + key + "' is"), std::string::npos) << key << ": " << said;
  }
}

TEST_F(CheckpointTest, ConfigurationSurvivesTheRoundTrip) {
  ModelConfig before = config();
  before.position = "rope(base=500)+alibi";
  before.tied = false;
  before.dtype = DType::f64;
  before.data = "some \"name\"";
  const ModelConfig after = ModelConfig::from_json(before.json(), "here");
  EXPECT_EQ(after.json(), before.json());
  EXPECT_EQ(after.position, before.position);
  EXPECT_FALSE(after.tied);
}

}  // namespace
}  // namespace sextant
