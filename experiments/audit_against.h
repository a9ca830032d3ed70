// Gradients that came from elsewhere (PyTorch, JAX, one's own code) against ours, by name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/shape.h"
#include "core/tensor.h"

namespace sextant {

struct TensorDifference {
  std::string name;
  Shape shape;
  double error = 0;  // largest |ours - theirs| over the tensor's largest |entry| of both
  int64_t index = 0;
  double ours = 0, theirs = 0;
};

struct GradientComparison {
  std::string theirs, ours;  // where they came from
  DType dtype = DType::f64;
  std::vector<TensorDifference> tensors;            // worst first
  std::vector<std::string> only_ours, only_theirs;  // names without a partner
  double worst() const { return tensors.empty() ? 0.0 : tensors[0].error; }
};

// `path` is a safetensors file with `grad.NAME` for each parameter and, where wanted, `loss` and `logits`. What it is
// compared with:
//   - `ours` names a file that `sextant grads` wrote (or another of the same form): that file;
//   - `ours` names a checkpoint or run folder: its model, on the `tokens` [B, T+1] (integers) that `path` holds;
//   - `ours` is empty: the model that `path` itself holds, weights by name and the configuration under `config` in its
//   metadata, on those tokens.
// Throws Error, naming file and tensor, where one of these is missing or of another shape.
GradientComparison compare_gradients(const std::string& path, const std::string& ours, std::optional<DType> dtype);

}  // namespace sextant
