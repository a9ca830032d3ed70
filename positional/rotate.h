// The rotation of queries and keys as one operation on the tape, and the same composed from elementary operations.
#pragma once

#include "autograd/tape.h"
#include "core/rotation.h"
#include "positional/strategy.h"

namespace sextant {

// q~ = R(angle) q, k~ = R(angle) k; q, k [B, T, H, D], phasors [T, D] as in core/rotation.h. Features may be undefined
// (left alone).
void rotate(Tape& tape, Features& features, const Tensor& phasors, Pairing pairing);
Variable rotate(Tape& tape, Variable x, const Tensor& phasors, Pairing pairing);
Variable rotate_composed(Tape& tape, Variable x, const Tensor& phasors, Pairing pairing);

}  // namespace sextant
