// The inner loops of core/angles.cpp: one table of functions for each instruction set.
#pragma once

#include <stdint.h>

namespace sextant {

template <class T>
struct AngleTable {
  // sums[i] += steps[i], reduced to [-pi, pi], for `count` angles
  void (*advance)(int64_t count, const T* steps, double* sums);
  // phasors (cos a0, sin a0, cos a1, ..) of `count` angles in [-pi, pi]
  void (*phasors)(int64_t count, const double* angles, T* phasors);
  // gradient[i] += sign (dy1 y0 - dy0 y1) for `count` pairs (y0, y1), (dy0, dy1): what a turn of pair i changes
  void (*turn_gradient)(int64_t count, const T* y, const T* dy, double sign, double* gradient);
};

namespace isa_plain {
const AngleTable<float>& angle_table(float);
const AngleTable<double>& angle_table(double);
}  // namespace isa_plain
namespace isa_avx2 {
const AngleTable<float>& angle_table(float);
const AngleTable<double>& angle_table(double);
}  // namespace isa_avx2
namespace isa_avx512 {
const AngleTable<float>& angle_table(float);
const AngleTable<double>& angle_table(double);
}  // namespace isa_avx512

}  // namespace sextant
