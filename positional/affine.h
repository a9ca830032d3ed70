// The affine lag bias as an operation, for the strategy and for whoever compares with it.
#pragma once

#include "autograd/tape.h"

namespace sextant {

// b [H, lags], b_h(d) = constant_h - softplus(slope_h) d / length_scale; constant, slope [H]. With `either_sign` the
// slope is taken as it is.
Variable affine_bias(Variable constant, Variable slope, int64_t lags, double length_scale, bool either_sign = false);
Variable affine_bias_composed(Variable constant, Variable slope, int64_t lags, double length_scale,
                              bool either_sign = false);

}  // namespace sextant
