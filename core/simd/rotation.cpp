// Rotations of pairs of coordinates by angles that are given as phasors.
#include "core/simd/rotation.h"

#include "core/simd/vector.h"

namespace sextant::SEXTANT_ISA {

namespace {

// One pair; every path below rounds as this one does: both products, then their sum.
template <class T, bool Accumulate>
inline __attribute__((always_inline)) void rotate_pair(T x0, T x1, T cosine, T sine, T& y0, T& y1) {
  const T r0 = x0 * cosine - x1 * sine, r1 = x1 * cosine + x0 * sine;
  y0 = Accumulate ? y0 + r0 : r0;
  y1 = Accumulate ? y1 + r1 : r1;
}

template <int... I>
struct Numbers {};
template <int Count, int... I>
struct CountedTo : CountedTo<Count - 1, Count - 1, I...> {};
template <int... I>
struct CountedTo<0, I...> {
  using type = Numbers<I...>;
};
template <class T>
using LaneNumbers = typename CountedTo<lanes<T>>::type;

// Lanes 2i and 2i+1 become lane 2i (Odd = 0), lane 2i+1 (Odd = 1), or change places.
template <class T, int Odd>
inline __attribute__((always_inline)) V<T> twice(V<T> v) {
  return [&]<int... I>(Numbers<I...>) __attribute__((always_inline)) {
    return __builtin_shufflevector(v, v, ((I & ~1) + Odd)...);
  }
  (LaneNumbers<T>());
}
template <class T>
inline __attribute__((always_inline)) V<T> swapped(V<T> v) {
  return [&]<int... I>(Numbers<I...>) __attribute__((always_inline)) {
    return __builtin_shufflevector(v, v, (I ^ 1)...);
  }
  (LaneNumbers<T>());
}
template <class T>
inline __attribute__((always_inline)) V<T> alternating(T even, T odd) {
  V<T> v;
#pragma GCC unroll 16
  for (int i = 0; i < lanes<T>; ++i) v[i] = i % 2 == 0 ? even : odd;
  return v;
}

// Phasors (c0, s0, c1, s1, ..): y = x c + swap(x) (-s, s, ..)
template <class T, bool Accumulate>
void interleaved_rows(const RotateRows<T>& job) {
  const T sign = job.backwards ? T(-1) : T(1);
  const V<T> signs = alternating<T>(-sign, sign);
  for (int64_t row = 0; row < job.rows; ++row) {
    const T* x = job.x + row * job.x_row;
    const T* phasors = job.phasors + row * job.phasor_row;
    T* y = job.y + row * job.y_row;
    int64_t i = 0;
    for (; i + lanes<T> <= job.dim; i += lanes<T>) {
      const V<T> v = load(x + i), phasor = load(phasors + i);
      const V<T> rotated = v * twice<T, 0>(phasor) + swapped<T>(v) * (twice<T, 1>(phasor) * signs);
      store(y + i, Accumulate ? load(y + i) + rotated : rotated);
    }
    for (; i < job.dim; i += 2)
      rotate_pair<T, Accumulate>(x[i], x[i + 1], phasors[i], sign * phasors[i + 1], y[i], y[i + 1]);
  }
}

// Phasors (c0, c1, .., s0, s1, ..), pairs (x_i, x_{i + dim/2})
template <class T, bool Accumulate>
void half_rows(const RotateRows<T>& job) {
  const T sign = job.backwards ? T(-1) : T(1);
  const V<T> signs = broadcast(sign);
  const int64_t half = job.dim / 2;
  for (int64_t row = 0; row < job.rows; ++row) {
    const T* x = job.x + row * job.x_row;
    const T* phasors = job.phasors + row * job.phasor_row;
    T* y = job.y + row * job.y_row;
    int64_t i = 0;
    for (; i + lanes<T> <= half; i += lanes<T>) {
      const V<T> x0 = load(x + i), x1 = load(x + half + i);
      const V<T> cosine = load(phasors + i), sine = load(phasors + half + i) * signs;
      const V<T> r0 = x0 * cosine - x1 * sine, r1 = x1 * cosine + x0 * sine;
      store(y + i, Accumulate ? load(y + i) + r0 : r0);
      store(y + half + i, Accumulate ? load(y + half + i) + r1 : r1);
    }
    for (; i < half; ++i)
      rotate_pair<T, Accumulate>(x[i], x[half + i], phasors[i], sign * phasors[half + i], y[i], y[half + i]);
  }
}

template <class T>
void interleaved(const RotateRows<T>& job) {
  job.accumulate ? interleaved_rows<T, true>(job) : interleaved_rows<T, false>(job);
}
template <class T>
void half(const RotateRows<T>& job) {
  job.accumulate ? half_rows<T, true>(job) : half_rows<T, false>(job);
}

// A weight where the mask has its bits, 0 where not: a weight that has overflowed must not touch other chains, as
// infinity times 0 would.
template <class T>
inline __attribute__((always_inline)) V<T> masked(T weight, const MaskOf<T>* mask) {
  M<T> bits;
  __builtin_memcpy(&bits, mask, sizeof bits);
  return (V<T>)((M<T>)broadcast(weight) & bits);
}

template <class T, bool Accumulate>
void chain_rows(const ChainRows<T>& job) {
  const int64_t room = 2 * (job.order - 1);
  T* z = job.scratch + room;
  for (int64_t i = 0; i < room; ++i) job.scratch[i] = z[job.dim + i] = T(0);
  RotateRows<T> rotation = {.rows = 1,
                            .dim = job.dim,
                            .x = job.x,
                            .x_row = 0,
                            .phasors = job.phasors,
                            .phasor_row = 0,
                            .y = z,
                            .y_row = 0,
                            .backwards = job.backwards,
                            .accumulate = false};
  for (int64_t row = 0; row < job.rows; ++row) {
    rotation.x = job.x + row * job.x_row;
    rotation.phasors = job.phasors + row * job.phasor_row;
    const T* weights = job.weights + row * job.weights_row;
    T* y = job.y + row * job.y_row;
    interleaved_rows<T, false>(rotation);
    int64_t d = 0;
    for (; d + lanes<T> <= job.dim; d += lanes<T>) {
      V<T> sum = broadcast(weights[0]) * load(z + d);
      for (int64_t s = 1; s < job.order; ++s)
        sum += masked<T>(weights[s], job.masks + s * job.dim + d) * load(z + d + s * job.shift);
      store(y + d, Accumulate ? load(y + d) + sum : sum);
    }
    for (; d < job.dim; ++d) {
      T sum = weights[0] * z[d];
      for (int64_t s = 1; s < job.order; ++s)
        sum += (job.masks[s * job.dim + d] ? weights[s] : T(0)) * z[d + s * job.shift];
      y[d] = Accumulate ? y[d] + sum : sum;
    }
    if (job.unipotent) {
      const int64_t to = job.shift > 0 ? job.dim - 2 : job.dim - 1, from = job.shift > 0 ? job.dim - 1 : job.dim - 2;
      y[to] += weights[job.order] * z[from];
    }
  }
}

template <class T>
void chains(const ChainRows<T>& job) {
  job.accumulate ? chain_rows<T, true>(job) : chain_rows<T, false>(job);
}

const RotationTable<float> table_f32 = {interleaved<float>, half<float>, chains<float>};
const RotationTable<double> table_f64 = {interleaved<double>, half<double>, chains<double>};

}  // namespace

const RotationTable<float>& rotation_table(float) {
  return table_f32;
}
const RotationTable<double>& rotation_table(double) {
  return table_f64;
}

}  // namespace sextant::SEXTANT_ISA
