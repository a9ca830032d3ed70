// Softmax and the losses built on it.
#pragma once

#include "autograd/tape.h"

namespace sextant {

Variable softmax(Variable x);  // over the last dimension; a row of -inf gives zeros

// Mean over the tokens of -log softmax(logits)[target], in nats; logits [.., V], one target a row (-1: the row does not
// count), result []. With `part` the logits are those of a part of a batch: the mean is over the tokens of all of it,
// to which this part's loss is a summand.
struct BatchPart {
  int64_t counted;  // targets that count in the whole batch
  double nats = 0;  // written: the sum of this part's losses, by leaves along the tree (fused form)
};
Variable cross_entropy(Variable logits, std::span<const int32_t> targets, BatchPart* part = nullptr);
Variable cross_entropy_composed(Variable logits, std::span<const int32_t> targets, BatchPart* part = nullptr);

}  // namespace sextant
