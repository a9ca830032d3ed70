// The logits of single queries, as attention would compute them but for the rounding: plain sums in double, one query
// at a time, of features in any dtype. What diagnostics look at, and tests hold attention against.
#pragma once

#include <cstdint>
#include <vector>

#include "core/attention.h"

namespace sextant {

// scale <q~_i, k~_j> + b_h(i - j) + F_i - F_j for row `row` of the T queries, i = S - T + row, and j = 0 .. i; tile by
// tile where a transport carries the query. `inputs.v` is not read.
std::vector<double> logits_of_query(const AttentionInputs& inputs, int64_t batch, int64_t head, int64_t row);

}  // namespace sextant
