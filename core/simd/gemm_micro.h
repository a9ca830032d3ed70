// Register-blocked products for use inside core/simd/: the micro kernel that other kernels inline, and the serial
// product on strided tiles. An element of C is the chain c = fma(a_ik, b_kj, c) over increasing k, whatever the sizes,
// the position and the blocking; so a row of C has the same bits computed alone or among others, and generation with a
// cache equals the full pass.
#pragma once

#include "core/simd/vector.h"

namespace sextant::SEXTANT_ISA {

#define SEXTANT_INLINE inline __attribute__((always_inline))

// The first `count` lanes of a vector, 1 <= count <= lanes: the last columns of a matrix.
#if defined(__AVX512F__)
template <class T>
struct Tail {
  uint32_t mask;
  explicit Tail(int64_t count) : mask((uint32_t{1} << count) - 1) {}
};
SEXTANT_INLINE V<float> load_first(const float* address, Tail<float> tail) {
  return (V<float>)_mm512_maskz_loadu_ps((__mmask16)tail.mask, address);
}
SEXTANT_INLINE V<double> load_first(const double* address, Tail<double> tail) {
  return (V<double>)_mm512_maskz_loadu_pd((__mmask8)tail.mask, address);
}
SEXTANT_INLINE void store_first(float* address, V<float> v, Tail<float> tail) {
  _mm512_mask_storeu_ps(address, (__mmask16)tail.mask, (__m512)v);
}
SEXTANT_INLINE void store_first(double* address, V<double> v, Tail<double> tail) {
  _mm512_mask_storeu_pd(address, (__mmask8)tail.mask, (__m512d)v);
}
#elif defined(__AVX2__)
template <class T>
struct Tail {
  M<T> mask;
  explicit Tail(int64_t count) {
    for (int i = 0; i < lanes<T>; ++i) mask[i] = i < count ? -1 : 0;
  }
};
SEXTANT_INLINE V<float> load_first(const float* address, Tail<float> tail) {
  return (V<float>)_mm256_maskload_ps(address, (__m256i)tail.mask);
}
SEXTANT_INLINE V<double> load_first(const double* address, Tail<double> tail) {
  return (V<double>)_mm256_maskload_pd(address, (__m256i)tail.mask);
}
SEXTANT_INLINE void store_first(float* address, V<float> v, Tail<float> tail) {
  _mm256_maskstore_ps(address, (__m256i)tail.mask, (__m256)v);
}
SEXTANT_INLINE void store_first(double* address, V<double> v, Tail<double> tail) {
  _mm256_maskstore_pd(address, (__m256i)tail.mask, (__m256d)v);
}
#else
template <class T>
struct Tail {
  int64_t count;
  explicit Tail(int64_t count_) : count(count_) {}
};
template <class T>
SEXTANT_INLINE V<T> load_first(const T* address, Tail<T> tail) {
  V<T> v{};
  for (int i = 0; i < lanes<T>; ++i) {
    if (i < tail.count) v[i] = address[i];
  }
  return v;
}
template <class T>
SEXTANT_INLINE void store_first(T* address, V<T> v, Tail<T> tail) {
  for (int i = 0; i < lanes<T>; ++i) {
    if (i < tail.count) address[i] = v[i];
  }
}
#endif

// sum[i][j] += sum over p < depth of a[i, p] b[p, j], for Rows rows and Vectors vectors of columns. a[i, p] stands at
// a[i * a_row + p * a_column], b[p, j] at b[p * b_row + j]; with Partial the last vector has only the tail's columns
// and nothing beyond them is read. Choose Rows * Vectors + Vectors + 1 <= 32 registers for AVX-512, 16 otherwise; at
// least 8 chains hide the latency.
template <class T, int Rows, int Vectors, bool Partial>
SEXTANT_INLINE void micro(int64_t depth, const T* a, int64_t a_row, int64_t a_column, const T* b, int64_t b_row,
                          Tail<T> tail, V<T> (&sum)[Rows][Vectors]) {
  for (int64_t p = 0; p < depth; ++p) {
    V<T> row[Vectors];
#pragma GCC unroll 8
    for (int j = 0; j < Vectors; ++j) {
      row[j] = Partial && j == Vectors - 1 ? load_first(b + j * lanes<T>, tail) : load(b + j * lanes<T>);
    }
#pragma GCC unroll 32
    for (int i = 0; i < Rows; ++i) {
      const V<T> factor = broadcast(a[i * a_row]);
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) sum[i][j] = fma(factor, row[j], sum[i][j]);
    }
    a += a_column;
    b += b_row;
  }
}

// C [rows, columns] = A [rows, depth] B [depth, columns], or C += A B when accumulating; serial. A has any strides, B
// and C have contiguous rows. C overlaps neither A nor B. depth = 0 gives zeros (or leaves C when accumulating).
// Defined for float and double.
template <class T>
void gemm(int64_t rows, int64_t columns, int64_t depth, const T* a, int64_t a_row, int64_t a_column, const T* b,
          int64_t b_row, T* c, int64_t c_row, bool accumulate);

// destination[j, i] = source[i, j] for source [rows, columns]; both have contiguous rows and do not overlap. For float
// and double.
template <class T>
void transpose(int64_t rows, int64_t columns, const T* source, int64_t source_row, T* destination,
               int64_t destination_row);

}  // namespace sextant::SEXTANT_ISA
