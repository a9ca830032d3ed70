#include "nn/checkpoint.h"

#include <charconv>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "core/safetensors.h"

namespace sextant {

namespace {

constexpr const char* format_version = "1";

// "2 (no 'step' in the metadata)" would help nobody: the error names file and key.
int64_t integer_of(const SafetensorsFile& file, const std::string& key) {
  const std::string& text = file.metadata(key);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size() && value >= 0,
          "{}: metadata '{}' is '{}', must be a number of 0 or more", file.path(), key, text);
  return value;
}

ModelConfig config_of(const SafetensorsFile& file) {
  require(file.metadata().contains("config"), "{}: no 'config' in the metadata, so this is no checkpoint of Sextant",
          file.path());
  return ModelConfig::from_json(file.metadata("config"), file.path());
}

// Copies one tensor of the file over `target`, converting its dtype.
void read_into(SafetensorsFile& file, const std::string& name, const Tensor& target) {
  require(file.has(name), "{}: tensor '{}' of shape {} is missing", file.path(), name, target.shape().text());
  const Tensor source = file.tensor(name);
  require(source.shape() == target.shape(), "{}: tensor '{}' has shape {}, the configuration says {}", file.path(),
          name, source.shape().text(), target.shape().text());
  target.copy_from(source);
}

}  // namespace

std::string checkpoint_path(const std::string& path) {
  return std::filesystem::is_directory(path) ? (std::filesystem::path(path) / "checkpoint.safetensors").string() : path;
}

void save_checkpoint(const std::string& path, Transformer& model, AdamW* optimizer, const TrainingState& state) {
  std::vector<NamedTensor> tensors;
  for (const Parameter* parameter : model.parameters()) tensors.push_back({parameter->name, parameter->value});
  for (const PositionConstant& constant : model.constants()) tensors.push_back({constant.name, constant.value});
  Metadata metadata(state.extra.begin(), state.extra.end());
  metadata["format"] = "sextant";
  metadata["format_version"] = format_version;
  metadata["config"] = model.config().json();
  metadata["step"] = std::to_string(state.step);
  metadata["tokens"] = std::to_string(state.tokens);
  if (optimizer != nullptr) {
    for (const AdamW::Moments& moments : optimizer->moments()) {
      tensors.push_back({"optimizer.m." + moments.parameter->name, moments.m});
      tensors.push_back({"optimizer.v." + moments.parameter->name, moments.v});
    }
    metadata["optimizer.steps"] = std::to_string(optimizer->steps());
  }
  write_safetensors(path, tensors, metadata);
}

ModelConfig read_checkpoint_config(const std::string& path) {
  return config_of(SafetensorsFile::open(checkpoint_path(path)));
}

std::unique_ptr<Transformer> load_model(const std::string& path, std::optional<DType> dtype) {
  SafetensorsFile file = SafetensorsFile::open(checkpoint_path(path));
  ModelConfig config = config_of(file);
  if (dtype) config.dtype = *dtype;
  auto model = std::make_unique<Transformer>(config);
  std::set<std::string> known;
  for (const Parameter* parameter : model->parameters()) {
    read_into(file, parameter->name, parameter->value);
    known.insert(parameter->name);
  }
  for (const PositionConstant& constant : model->constants()) {
    read_into(file, constant.name, constant.value);
    known.insert(constant.name);
  }
  for (const std::string& name : file.names())
    require(known.contains(name) || name.starts_with("optimizer."),
            "{}: tensor '{}' belongs to no part of the model its configuration describes", file.path(), name);
  return model;
}

TrainingState load_training_state(const std::string& path, AdamW& optimizer) {
  SafetensorsFile file = SafetensorsFile::open(checkpoint_path(path));
  require(file.metadata().contains("optimizer.steps"), "{}: no optimizer state, so training cannot be resumed from it",
          file.path());
  for (const AdamW::Moments& moments : optimizer.moments()) {
    read_into(file, "optimizer.m." + moments.parameter->name, moments.m);
    read_into(file, "optimizer.v." + moments.parameter->name, moments.v);
  }
  optimizer.set_steps(integer_of(file, "optimizer.steps"));
  TrainingState state;
  state.step = integer_of(file, "step");
  state.tokens = integer_of(file, "tokens");
  for (const auto& [key, value] : file.metadata()) state.extra[key] = value;
  for (const char* own : {"format", "format_version", "config", "step", "tokens", "optimizer.steps"})
    state.extra.erase(own);
  return state;
}

}  // namespace sextant
