// Softmax and the losses built on it.
#pragma once

#include "autograd/tape.h"

namespace sextant {

Variable softmax(Variable x);  // over the last dimension; a row of -inf gives zeros

// Mean over the tokens of -log softmax(logits)[target], in nats; logits [.., V], one target a row (-1: the row does not
// count), result [].
Variable cross_entropy(Variable logits, std::span<const int32_t> targets);
Variable cross_entropy_composed(Variable logits, std::span<const int32_t> targets);

}  // namespace sextant
