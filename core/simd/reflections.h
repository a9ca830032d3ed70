// The inner loops of core/reflections.cpp: one table of functions for each instruction set.
//
// One (batch, head): C_t = (I - 2 u_t u_t^T) C_{t-1}, u_t = w_t / |w_t|, as rows of `stride` doubles, of which the last
// stride - dim are zero. All arithmetic is in double, whatever the type of the rows.
#pragma once

#include <stdint.h>

namespace sextant {

constexpr int64_t reflection_lanes = 8;             // stride is dim rounded up to a multiple of this
constexpr int64_t reflection_block = 128;           // tokens between two anchors
constexpr double reflection_smallest_norm = 1e-12;  // of w; below it the step is the identity

// A feature that travels: y = C^T x, or y = C x with `back`.
template <class T>
struct ReflectedRows {
  const T* x;
  int64_t x_row;
  T* y;  // the backward's dx; nullptr: not wanted
  int64_t y_row;
  bool accumulate;
  const T* dy;  // backward only
  int64_t dy_row;
};

template <class T>
struct ReflectionBlock {
  int64_t length, dim, stride;
  bool back;
  const T* w;
  int64_t w_row;
  const ReflectedRows<T>* features;
  int64_t count;
  double* product;  // C before the first row; after the last on return. Backward: the other way round
  double* scratch;  // [6, stride]
  // backward only
  double* dproduct;  // dLoss/dC, likewise
  T* dw;
  int64_t dw_row;
  bool accumulate_dw;
};

template <class T>
struct ReflectionTable {
  void (*advance)(const ReflectionBlock<T>& block);   // product alone
  void (*forward)(const ReflectionBlock<T>& block);   // and the features
  void (*backward)(const ReflectionBlock<T>& block);  // from the last row to the first
  // C += (I - C C^T) C / 2: squares the distance to the nearest orthogonal matrix (Newton-Schulz). scratch [2 dim,
  // stride]
  void (*orthonormalise)(int64_t dim, int64_t stride, double* product, double* scratch);
};

namespace isa_plain {
const ReflectionTable<float>& reflection_table(float);
const ReflectionTable<double>& reflection_table(double);
}  // namespace isa_plain
namespace isa_avx2 {
const ReflectionTable<float>& reflection_table(float);
const ReflectionTable<double>& reflection_table(double);
}  // namespace isa_avx2
namespace isa_avx512 {
const ReflectionTable<float>& reflection_table(float);
const ReflectionTable<double>& reflection_table(double);
}  // namespace isa_avx512

}  // namespace sextant
