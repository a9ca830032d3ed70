// Where the checks themselves stop telling, measured: finite differences in f64 at saturations, near kinks, by the
// length of their step and beside large constants; derivatives in f32 where terms cancel. For the audit's page.
#pragma once

#include "experiments/page.h"

namespace sextant {

// Of functions that flatten, at growing arguments: the derivative, and how far f32 and central differences are from it,
// relative to it.
Table saturation_limits();
// Of |x| = sqrt(x^2), at distances from its kink that a step of 1e-5 reaches and does not.
Table kink_limits();
// Of x^2 + C: what is left of the difference's digits beside a large C.
Table constant_limits();
// The error of the difference at exp(1) by its step: truncation on one side, rounding on the other.
Plot step_limits();

}  // namespace sextant
