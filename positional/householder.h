// Accumulated Householder reflections as operations on the tape; the term is made by positional/transport.h.
#pragma once

#include "autograd/tape.h"
#include "positional/strategy.h"

namespace sextant {

// The prefix products of w [B, T, H, D] (not normalised), which all operations of a layer share; `before` and `first`
// as in core/reflections.h.
struct AccumulatedReflections {
  Variable w;
  Tensor anchors;
};
AccumulatedReflections accumulated_reflections(Variable w, const Tensor& before = {}, int64_t first = 0);

// q~_i = C_i^T q_i, k~_j = C_j^T k_j, and with `values` v~_j = C_j^T v_j;
// all [B, T, H, D].
void reflect(const AccumulatedReflections& reflections, Features& features, bool values);
// C_i x_i
Variable reflect_back(const AccumulatedReflections& reflections, Variable x);

// The same from elementary operations, one reflection after another: O(T D^2) nodes' worth of memory, for short
// sequences without a cache.
void reflect_composed(Variable w, Features& features, bool values);
Variable reflect_back_composed(Variable w, Variable x);

}  // namespace sextant
