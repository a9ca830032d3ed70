// Training batches and evaluation windows: which tokens a step sees is a function of (seed, step) alone.
#pragma once

#include <cstdint>
#include <vector>

#include "data/corpus.h"

namespace sextant {

// targets[b, t] is the token that follows inputs[b, t].
struct Batch {
  std::vector<int32_t> inputs, targets;  // [sequences, length], row-major
  int64_t sequences = 0, length = 0;
};

class Batches {
 public:
  // `batch` windows of `context` + 1 tokens a step, uniform over all places where such a window fits into the split.
  // The corpus must outlive this. Throws Error when no window fits, naming the context and the tokens there are.
  Batches(const Corpus& corpus, Split split, int64_t batch, int64_t context, uint64_t seed);

  // The batch of a step, by Random(seed, "batches"); allocates only when `out` has not yet had this size.
  void fill(int64_t step, Batch& out) const;

 private:
  const Corpus& corpus_;
  Split split_;
  int64_t batch_, context_;
  uint64_t seed_;
};

// Offsets of `windows` windows of `length` + 1 tokens, evenly spaced over the split: the first starts at its first
// token and the last ends at its last one (a single one starts at the first). They overlap when the split is shorter
// than all of them together. Throws Error when no window fits.
std::vector<int64_t> evaluation_offsets(const Corpus& corpus, Split split, int64_t length, int64_t windows);

// inputs and targets [1, length] of the window at `offset`.
void read_window(const Corpus& corpus, Split split, int64_t offset, int64_t length, Batch& out);

}  // namespace sextant
