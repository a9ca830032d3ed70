// Rotations of pairs by accumulated angles, as operations on the tape: the SO(2) blocks of accumulated transport.
//
//   Phi_i = sum_{t <= i} theta_t,   q~_i = R(Phi_i) q_i,  k~_j = R(Phi_j) k_j,  v~_j = R(Phi_j) v_j,  out_i = R(-Phi_i)
//   out~_i
//
// so that <q~_i, k~_j> = q_i^T R(Phi_j - Phi_i) k_j turns by the angles of the route (j, i] alone. [position-space.md
// section 7]
#pragma once

#include "autograd/tape.h"
#include "positional/strategy.h"

namespace sextant {

// Phi [B, T, H, P] f64, up to whole turns, of steps theta [B, T, H, P]; `initial` [B, H, P] f64 is what came before, or
// undefined.
Variable accumulated_angles(Variable steps, const Tensor& initial);
Variable accumulated_angles_composed(Variable steps, const Tensor& initial);

// Angles and their table of cosines and sines [B, T, H, 2 P], which all rotations of a layer share. The composed twins
// use the angles alone.
struct AccumulatedRotation {
  Variable angles;
  Tensor phasors;
};
AccumulatedRotation accumulated_rotation(Variable angles, DType dtype);

// q, k, and with `values` v, rotated by R(Phi); q, k, v [B, T, H, 2 P].
void rotate(const AccumulatedRotation& rotation, Features& features, bool values);
void rotate_composed(const AccumulatedRotation& rotation, Features& features, bool values);
// R(-Phi) x
Variable rotate_back(const AccumulatedRotation& rotation, Variable x);
Variable rotate_back_composed(const AccumulatedRotation& rotation, Variable x);

}  // namespace sextant
