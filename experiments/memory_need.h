// How much memory training or a long evaluation will take, before it takes it. What a step keeps is measured on small
// batches of short sequences and carried on: it is linear in the sequences and in their length (quadratic with the
// composed operations), whatever the strategy.
#pragma once

#include <cstdint>

#include "experiments/train_options.h"
#include "nn/optimizer.h"
#include "nn/transformer.h"

namespace sextant {

// All in bytes of one rank.
struct MemoryNeed {
  double process = 0;      // the program, the data, the model: resident now
  double activations = 0;  // of a step, or of a piece that is read
  double sums = 0;         // gradients of parts that wait for others
  double cache = 0;        // keys and values of a long evaluation, and tables by position
  double total() const { return process + activations + sums + cache; }
};

// How many ranks share the batch, and the memory of this host.
struct Sharing {
  int ranks = 1, on_this_host = 1;
};

// Throws Error (environment) when weights, gradients and moments of such a model cannot be had: before it is made.
void require_memory_for_model(const ModelConfig& config, const Sharing& sharing);

// Of training the model, whose optimizer exists. Leaves no gradient behind.
MemoryNeed training_need(Transformer& model, const TrainOptions& options, const Sharing& sharing);
// Throws Error (environment), naming the need, what is available and what to lower.
void require_memory(const MemoryNeed& need, Transformer& model, const TrainOptions& options, const Sharing& sharing);

// Of reading sequences of `length` tokens in pieces; throws like require_memory. Nothing is measured, and nothing
// refused, where the length is a few pieces only.
MemoryNeed evaluation_need(Transformer& model, int64_t length, int64_t piece);
void require_memory_for_length(Transformer& model, int64_t length, int64_t piece, const Sharing& sharing);

}  // namespace sextant
