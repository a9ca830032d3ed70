// The inner loops of core/rotation.cpp: one table of functions for each instruction set.
#pragma once

#include <stdint.h>

namespace sextant {

// An integer as wide as T.
template <class T>
struct MaskOfType;
template <>
struct MaskOfType<float> {
  using type = int32_t;
};
template <>
struct MaskOfType<double> {
  using type = int64_t;
};
template <class T>
using MaskOf = typename MaskOfType<T>::type;

// For each of `rows` rows of `dim` numbers (the heads of one token): y (+)= R(+-angle) x, pair by pair. Strides are in
// elements; a phasor stride of 0 uses one row of phasors for all.
template <class T>
struct RotateRows {
  int64_t rows, dim;
  const T* x;
  int64_t x_row;
  const T* phasors;
  int64_t phasor_row;
  T* y;
  int64_t y_row;
  bool backwards;   // by -angle
  bool accumulate;  // y += instead of y =
};

// The same (interleaved), followed by a mixing of the slots of Jordan chains:
//   y[d] (+)= sum_{s < order} (weights[s] or 0 by masks[s][d]) z[d + s shift],  z = R(+-angle) x,  shift = 2 or -2
// and, with a unipotent block in the last two coordinates, u = weights[order]: y[dim - 2] += u z[dim - 1] (shift 2) or
// y[dim - 1] += u z[dim - 2] (shift -2).
template <class T>
struct ChainRows {
  using Mask = MaskOf<T>;
  int64_t rows, dim, order;
  const T* x;
  int64_t x_row;
  const T* phasors;
  int64_t phasor_row;
  const T* weights;
  int64_t weights_row;
  const Mask* masks;  // [order, dim]: all bits where d + s shift is in d's chain, none elsewhere
  int64_t shift;
  bool unipotent;
  T* y;
  int64_t y_row;
  bool backwards, accumulate;
  T* scratch;  // z with 2 (order - 1) numbers of room on either side
};

template <class T>
struct RotationTable {
  void (*interleaved)(const RotateRows<T>& rows);
  void (*half)(const RotateRows<T>& rows);
  void (*chains)(const ChainRows<T>& rows);
};

namespace isa_plain {
const RotationTable<float>& rotation_table(float);
const RotationTable<double>& rotation_table(double);
}  // namespace isa_plain
namespace isa_avx2 {
const RotationTable<float>& rotation_table(float);
const RotationTable<double>& rotation_table(double);
}  // namespace isa_avx2
namespace isa_avx512 {
const RotationTable<float>& rotation_table(float);
const RotationTable<double>& rotation_table(double);
}  // namespace isa_avx512

}  // namespace sextant
