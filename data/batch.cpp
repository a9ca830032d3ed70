#include "data/batch.h"

#include "core/error.h"
#include "core/random.h"

namespace sextant {
namespace {

void require_window(const Corpus& corpus, Split split, int64_t length) {
  require(length >= 1, "a window must have at least 1 token, not {}", length);
  const int64_t size = corpus.size(split);
  require(size > length, "{}: the {} split has {} tokens, a window of {} needs {} (with its last target)",
          corpus.name(), name_of(split), size, length, length + 1);
}

void resize(Batch& batch, int64_t sequences, int64_t length) {
  batch.sequences = sequences;
  batch.length = length;
  batch.inputs.resize(static_cast<size_t>(sequences * length));
  batch.targets.resize(static_cast<size_t>(sequences * length));
}

void read_row(const Corpus& corpus, Split split, int64_t offset, int64_t row, Batch& out) {
  const size_t length = static_cast<size_t>(out.length), begin = static_cast<size_t>(row) * length;
  corpus.read(split, offset, std::span(out.inputs).subspan(begin, length));
  corpus.read(split, offset + 1, std::span(out.targets).subspan(begin, length));
}

}  // namespace

Batches::Batches(const Corpus& corpus, Split split, int64_t batch, int64_t context, uint64_t seed)
    : corpus_(corpus), split_(split), batch_(batch), context_(context), seed_(seed) {
  require(batch >= 1, "a batch must have at least 1 sequence, not {}", batch);
  require_window(corpus, split, context);
}

void Batches::fill(int64_t step, Batch& out) const {
  require(step >= 0, "steps are counted from 0, not {}", step);
  resize(out, batch_, context_);
  const Random random(seed_, "batches");
  const uint64_t places = static_cast<uint64_t>(corpus_.size(split_) - context_);
  for (int64_t b = 0; b < batch_; ++b) {
    const uint64_t index = static_cast<uint64_t>(step) * static_cast<uint64_t>(batch_) + static_cast<uint64_t>(b);
    read_row(corpus_, split_, static_cast<int64_t>(random.below(index, places)), b, out);
  }
}

std::vector<int64_t> evaluation_offsets(const Corpus& corpus, Split split, int64_t length, int64_t windows) {
  require(windows >= 1, "there must be at least 1 window, not {}", windows);
  require_window(corpus, split, length);
  const int64_t last = corpus.size(split) - length - 1;
  std::vector<int64_t> offsets(static_cast<size_t>(windows), 0);
  // last * w / (windows - 1), split into quotient and remainder so that it cannot overflow.
  for (int64_t w = 1; w < windows; ++w)
    offsets[static_cast<size_t>(w)] = last / (windows - 1) * w + last % (windows - 1) * w / (windows - 1);
  return offsets;
}

void read_window(const Corpus& corpus, Split split, int64_t offset, int64_t length, Batch& out) {
  resize(out, 1, length);
  read_row(corpus, split, offset, 0, out);
}

}  // namespace sextant
