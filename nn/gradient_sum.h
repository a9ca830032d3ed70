// The gradient of a batch that is worked off in parts, summed along the tree of core/tree_sum.h: the parts of a rank
// one after another (gradient accumulation), then the ranks (data parallelism). The bits are those of the whole batch
// at once, because every part is a subtree.
//
//   GradientSum sum(ranks, sequences_of_this_rank, parts);
//   for (const GradientSum::Part& part : sum.parts()) {
//     BatchPart share{.counted = ...};
//     Variable loss = model.loss(tape, tokens of part.sequences, ..., &share);
//     sum.begin(part, {share.nats});
//     tape.backward(loss, sum);          // the last one leaves the sums in the parameters
//   }
//   sum.numbers()[0]                     // nats of the whole batch
//
// Contributions stand one after another in buckets; while the last part's backward goes on, a thread sums the buckets
// that are full over the ranks.
#pragma once

#include <condition_variable>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "autograd/tape.h"
#include "core/communicator.h"
#include "core/tree_sum.h"

namespace sextant {

class GradientSum : public Tape::BatchSum {
 public:
  struct Part {
    TreePiece sequences;  // of this rank's
    int merges;           // with how many sums of parts before it this one's is added, one after another
    bool last;
  };

  // `parts` parts or more, of ceil(sequences / parts) sequences at most. `ranks` must outlive this.
  GradientSum(Communicator& ranks, int64_t sequences, int64_t parts);
  ~GradientSum() override;
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

  const std::vector<Part>& parts() const { return parts_; }
  // Before a part's backward. `numbers` are summed in the same way; always as many.
  void begin(const Part& part, std::span<const double> numbers);
  std::span<const double> numbers();  // of the batch, after the last part

  Tensor next(const Shape& shape, DType dtype) override;
  void written() override;
  bool finish() override;
  Tensor total(size_t contribution) override { return at(contribution + 1, 0); }

  size_t bytes() const { return memory_.used(); }
  double waited_seconds() const { return waited_; }  // for other ranks, after backward; since the start

 private:
  struct Slot {
    size_t bucket;
    int64_t offset;
    Shape shape;
  };
  struct Bucket {
    DType dtype;
    int64_t capacity, used;
    std::vector<Tensor> levels;  // [capacity] each: [0] the sum in the end; those above wait for their partner
  };
  void plan(TreePiece sequences, int64_t parts);
  Tensor at(size_t slot, size_t level);
  Tensor level_of(Bucket& bucket, size_t level);
  void add_slot(const Shape& shape, DType dtype);
  void merge(Bucket& bucket, size_t level);  // levels[level - 1] += levels[level]
  void complete();                           // the last part has written the next bucket
  void communicate();                        // what the thread does
  void wait_for_ranks();

  Communicator& ranks_;
  std::vector<Part> parts_;
  Part part_{};
  Arena memory_;
  std::vector<Slot> slots_;  // the first part lays them out
  bool laid_out_ = false;
  std::vector<Bucket> buckets_;
  size_t level_ = 0, position_ = 0, complete_ = 0;

  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Tensor> ready_;  // the buckets of this batch that may be summed over the ranks
  size_t summed_ = 0;          // how many of them are
  bool stop_ = false;
  double waited_ = 0;
};

}  // namespace sextant
