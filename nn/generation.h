// Sampling from a model, token by token, with a key-value cache; and the evaluation of long sequences in pieces of
// bounded memory.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "nn/transformer.h"

namespace sextant {

struct SamplingOptions {
  double temperature = 1.0;  // 0: always the most likely token
  int64_t top_k = 0;         // 0: all
  uint64_t seed = 1;
};

// `count` tokens after `prompt` (at least one token). `emit` sees each as it comes and returns false to stop.
std::vector<int32_t> generate(Transformer& model, std::span<const int32_t> prompt, int64_t count,
                              const SamplingOptions& options, const std::function<bool(int32_t)>& emit = {});

// -log p(token t+1 | tokens 0..t) in nats for t = 0 .. size-2, reading the sequence in pieces of `piece` tokens through
// a cache: memory grows with the length only by the cache.
std::vector<double> sequence_losses(Transformer& model, Tape& tape, std::span<const int32_t> tokens,
                                    int64_t piece = 1024);

}  // namespace sextant
