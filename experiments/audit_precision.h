// How far f32 is from f64 on an audit case: the same function, the same inputs (rounded to f32 beforehand, so that
// their rounding does not count), values and gradients compared.
//
// The unit is the ulp of the tensor: the distance between neighbouring f32 numbers at the tensor's largest f64 entry,
// 2^(floor(log2 max|x|) - 23); for a gradient that is zero but for cancellation (below 2^-24 of the largest entry of
// all tensors), the ulp at that largest entry. An entry much smaller than the largest that comes out of cancelling
// terms is right to that unit, but not to its own digits: `cancelled` counts those.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "autograd/gradient_check.h"

namespace sextant {

struct Precision {
  std::vector<double> errors;  // in ulps, of every entry of the output and of all gradients, sorted
  double worst = 0;
  int tensor = -1;  // of the worst: -1 the output, else the number of the input whose gradient it is
  int64_t index = -1;
  double in_f64 = 0, in_f32 = 0;
  int64_t cancelled = 0;   // entries, not zero, of whose own 24 bits 12 or more are wrong
  bool repeatable = true;  // two f32 runs gave the same bits
  double median() const { return errors.empty() ? 0.0 : errors[errors.size() / 2]; }
};

// Nothing, and why in `reason`, where f32 has no such numbers (overflow).
std::optional<Precision> compare_precision(const AuditCase& audit, uint64_t seed, std::string& reason);

// The ulp of f32 at x > 0.
double ulp_f32(double x);

}  // namespace sextant
