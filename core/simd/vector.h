// The vector type of the instruction set this file is being compiled for, in compiler vector extensions: V<float> holds
// 16, 8 or 4 floats. Everything is in the namespace SEXTANT_ISA, so that the copies for different machines cannot be
// mixed by the linker; for the same reason no standard header with inline code may be included here.
#pragma once

#include <stdint.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define SEXTANT_VECTOR_BYTES 64
#elif defined(__AVX2__)
#include <immintrin.h>
#define SEXTANT_VECTOR_BYTES 32
#else
#define SEXTANT_VECTOR_BYTES 16
#endif

namespace sextant::SEXTANT_ISA {

template <class T>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float type __attribute__((vector_size(SEXTANT_VECTOR_BYTES)));
  typedef int32_t mask __attribute__((vector_size(SEXTANT_VECTOR_BYTES)));
  typedef uint32_t bits __attribute__((vector_size(SEXTANT_VECTOR_BYTES)));
};
template <>
struct VectorOf<double> {
  typedef double type __attribute__((vector_size(SEXTANT_VECTOR_BYTES)));
  typedef int64_t mask __attribute__((vector_size(SEXTANT_VECTOR_BYTES)));
  typedef uint64_t bits __attribute__((vector_size(SEXTANT_VECTOR_BYTES)));
};
template <class T>
using V = typename VectorOf<T>::type;
template <class T>
using M = typename VectorOf<T>::mask;  // what comparing two V<T> gives: -1 or 0 a lane
template <class T>
using U = typename VectorOf<T>::bits;  // a V<T> as bits, for arithmetic that may wrap

template <class T>
constexpr int lanes = SEXTANT_VECTOR_BYTES / static_cast<int>(sizeof(T));

template <class T>
inline __attribute__((always_inline)) V<T> load(const T* address) {
  V<T> v;
  __builtin_memcpy(&v, address, sizeof v);
  return v;
}
template <class T>
inline __attribute__((always_inline)) void store(T* address, V<T> v) {
  __builtin_memcpy(address, &v, sizeof v);
}
template <class T>
inline __attribute__((always_inline)) V<T> broadcast(T value) {
  return value - V<T>{};  // not +: x - 0 is x also for -0, so the compiler leaves it out
}

// a b + c with one rounding where the machine has it, with two on plain machines (the stated difference between them).
inline __attribute__((always_inline)) V<float> fma(V<float> a, V<float> b, V<float> c) {
#if defined(__AVX512F__)
  return (V<float>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (V<float>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}
inline __attribute__((always_inline)) V<double> fma(V<double> a, V<double> b, V<double> c) {
#if defined(__AVX512F__)
  return (V<double>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__)
  return (V<double>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  return a * b + c;
#endif
}

}  // namespace sextant::SEXTANT_ISA
