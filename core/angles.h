// Accumulated angles: prefix sums of token-dependent steps, their cosines and sines, and the gradient of a rotation by
// its angle.
#pragma once

#include <span>

#include "core/kernels.h"
#include "core/tensor.h"

namespace sextant::kernels {

// Phi[b, t] = initial[b] + sum_{s <= t} steps[b, s], in double, reduced to [-pi, pi] at every step: so each step adds
// at most an ulp of pi to the error, however far the angle has turned. steps [B, T, H, P] contiguous; initial [B, H, P]
// f64 or undefined (zero); angles [B, T, H, P] f64.
void accumulate_angles(const Tensor& steps, const Tensor& initial, const Tensor& angles);

// dsteps[b, s] (+)= sum_{t >= s} dangles[b, t], summed in double; contiguous [B, T, H, P].
void accumulate_angles_backward(const Tensor& dangles, const Sink& dsteps);

// The table (c0, s0, c1, s1, ..) that kernels::rotate reads: phasors [B, T, H, 2 P] contiguous, of angles [B, T, H, P]
// in [-pi, pi].
void phasors_of(const Tensor& angles, const Tensor& phasors);

// For y = R(sign Phi) x, pair by pair: dPhi (+)= sign (dy1 y0 - dy0 y1), summed over all turned tensors. y, dy [B, T,
// H, 2 P] with the last dimension contiguous, dangles f64 contiguous.
struct Turned {
  Tensor y, dy;
};
void turn_gradient(std::span<const Turned> turned, double sign, const Sink& dangles);

}  // namespace sextant::kernels
