// Checkpoints: one safetensors file with weights, position constants, optimizer moments (prefix "optimizer.") and, in
// its metadata, the configuration and where training stood.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "nn/optimizer.h"
#include "nn/transformer.h"

namespace sextant {

// Beyond the weights, what resuming needs. `extra` is kept word for word (the trainer's own options as JSON).
struct TrainingState {
  int64_t step = 0;    // steps done
  int64_t tokens = 0;  // tokens seen
  std::map<std::string, std::string> extra;
};

// Atomic and durable: the previous file stays whole until the new one is. `optimizer` may be null (weights only).
void save_checkpoint(const std::string& path, Transformer& model, AdamW* optimizer, const TrainingState& state);

// The configuration alone. Throws Error when the file is no checkpoint of ours (foreign, truncated, bit-flipped),
// naming file and key.
ModelConfig read_checkpoint_config(const std::string& path);

// A model with the file's configuration and weights. `path` may be a run folder (its checkpoint.safetensors is meant).
// With `dtype` given the weights are converted to it.
std::unique_ptr<Transformer> load_model(const std::string& path, std::optional<DType> dtype = {});
// Moments and training state into an optimizer over the loaded model's parameters.
TrainingState load_training_state(const std::string& path, AdamW& optimizer);

// The file itself, for a path that names a run folder or a file.
std::string checkpoint_path(const std::string& path);

}  // namespace sextant
