// What a model is, apart from its weights: written into every checkpoint and manifest as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "core/tensor.h"

namespace sextant {

struct ModelConfig {
  int64_t vocab = 256;
  int64_t layers = 3;
  int64_t width = 64;
  int64_t heads = 4;
  int64_t context = 256;          // training length in tokens
  std::string position = "rope";  // the full SPEC
  bool tied = true;               // the head shares the embedding's weight
  DType dtype = DType::f32;
  std::string data;  // name of the corpus it was trained on
  uint64_t seed = 1;
  double norm_epsilon = 1e-5;

  int64_t head_dim() const { return width / heads; }
  void check() const;  // throws Error: width not divisible by heads, sizes out of range, ...
  std::string json() const;
  // Throws Error naming `where` and the key when one is missing or of the wrong type.
  static ModelConfig from_json(const std::string& text, const std::string& where);
};

}  // namespace sextant
