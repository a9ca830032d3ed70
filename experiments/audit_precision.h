// How far f32 is from f64 on an audit case: the same function, the same inputs (rounded to f32 beforehand, so that
// their rounding does not count), values and gradients compared.
//
// The unit is the ulp of the tensor: the distance between neighbouring f32 numbers at the tensor's largest f64 entry,
// 2^(floor(log2 max|x|) - 23); for a gradient that is zero but for cancellation (below 2^-24 of the largest entry of
// all tensors), the ulp at that largest entry. An entry much smaller than the largest that comes out of cancelling
// terms is right to that unit, but not to its own digits: `cancelled` counts those.
//
// How many ulps are right depends on the numbers: terms that cancel cost what they cost. So the error is held against
// what the case itself makes of rounding (autograd/rounding.h): each input, value, saved number and gradient of the f64
// computation is moved by up to 2^-24 of its size, some times over, and the same with its composed twin, whose tape
// shows what a fused operation has inside; the largest move of a tensor's entries that comes of it, and half an ulp at
// least, is the error to be expected of that tensor, and `excess` the largest error of f32 over it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "autograd/gradient_check.h"

namespace sextant {

struct PrecisionPlace {
  int tensor = -1;  // -1 the output, else the number of the input whose gradient it is
  int64_t index = -1;
  double in_f64 = 0, in_f32 = 0;
};

struct Precision {
  std::vector<double> errors;  // in ulps, of every entry of the output and of all gradients, sorted
  double worst = 0;            // of them
  PrecisionPlace worst_at;
  double excess = 0;  // largest error of a tensor over the error to be expected of it; 1 is a good f32 code
  PrecisionPlace excess_at;
  int64_t cancelled = 0;   // entries, not zero, of whose own 24 bits 12 or more are wrong
  bool repeatable = true;  // two f32 runs gave the same bits
  double median() const { return errors.empty() ? 0.0 : errors[errors.size() / 2]; }
};

// Nothing, and why in `reason`, where f32 has no such numbers (overflow). `spoiler`, if any, watches the f32 runs.
std::optional<Precision> compare_precision(const AuditCase& audit, uint64_t seed, std::string& reason,
                                           Tape::Witness* spoiler = nullptr);

// The ulp of f32 at x > 0.
double ulp_f32(double x);

}  // namespace sextant
