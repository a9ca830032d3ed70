// Sums, means and running sums. Sums are accumulated in double, in order.
#pragma once

#include "autograd/tape.h"

namespace sextant {

Variable sum(Variable x);                              // -> []
Variable mean(Variable x);                             // -> []
Variable sum(Variable x, int dim, bool keep = false);  // over one dimension
Variable mean(Variable x, int dim, bool keep = false);

// y[t] = initial + sum_{s <= t} x[s] along `dim`, accumulated in double. The result is f64 whatever x is, so that
// differences of far-apart entries keep their digits. `initial` has x's shape without `dim` (f64) or is undefined.
Variable cumulative_sum(Variable x, int dim, const Tensor& initial = {});

}  // namespace sextant
