// Mathematical functions of whole vectors (core/simd/vector.h), for the inner loops: exp, exp2, log, GELU, reductions
// over lanes.
//
// The largest error found, in units in the last place, with (and without) a fused multiply-add;
// tests/core/vector_math_test.cpp holds them to it:
//
//                            f32          f64
//   exp, exp_nonpositive     0.9 (1.2)    1.1 (1.2)
//   exp2                     1.6 (1.2)    1.1 (1.2)
//   log                      0.8 (0.8)    0.9 (0.9)
//   gelu, for x > -1         2.9 (2.8)    3.9 (3.9)   and 3 + 3 |w| further left, where y goes as exp(w)
#pragma once

#include "core/simd/vector.h"

#define SEXTANT_INLINE inline __attribute__((always_inline))

namespace sextant::SEXTANT_ISA {

// ---- lanes --------------------------------------------------------------------------------------------------------

// The first `count` < lanes numbers at an address, the other lanes `rest`.
template <class T>
SEXTANT_INLINE V<T> load_part(const T* address, int count, T rest = T(0)) {
  V<T> v = broadcast(rest);
  for (int i = 0; i < count; ++i) v[i] = address[i];
  return v;
}
template <class T>
SEXTANT_INLINE void store_part(T* address, V<T> v, int count) {
  for (int i = 0; i < count; ++i) address[i] = v[i];
}
#if defined(__AVX512F__)
template <>
SEXTANT_INLINE V<float> load_part<float>(const float* address, int count, float rest) {
  return (V<float>)_mm512_mask_loadu_ps(_mm512_set1_ps(rest), static_cast<__mmask16>((1u << count) - 1), address);
}
template <>
SEXTANT_INLINE void store_part<float>(float* address, V<float> v, int count) {
  _mm512_mask_storeu_ps(address, static_cast<__mmask16>((1u << count) - 1), (__m512)v);
}
template <>
SEXTANT_INLINE V<double> load_part<double>(const double* address, int count, double rest) {
  return (V<double>)_mm512_mask_loadu_pd(_mm512_set1_pd(rest), static_cast<__mmask8>((1u << count) - 1), address);
}
template <>
SEXTANT_INLINE void store_part<double>(double* address, V<double> v, int count) {
  _mm512_mask_storeu_pd(address, static_cast<__mmask8>((1u << count) - 1), (__m512d)v);
}
#endif

// Lane by lane, mask ? a : b.
template <class T>
SEXTANT_INLINE V<T> select(M<T> mask, V<T> a, V<T> b) {
  return mask ? a : b;
}

// The larger and the smaller of a and b, lane by lane; b where either is NaN, so a running maximum goes second to keep
// a NaN it has met.
template <class T>
SEXTANT_INLINE V<T> max(V<T> a, V<T> b) {
  return a > b ? a : b;
}
template <class T>
SEXTANT_INLINE V<T> min(V<T> a, V<T> b) {
  return a < b ? a : b;
}
#if defined(__AVX512F__)
// The comparison above costs two instructions here. (With a mask, even of all lanes, since the unmasked forms warn of
// an uninitialised value in GCC 12's headers.)
constexpr __mmask16 all_lanes = static_cast<__mmask16>(-1);
template <>
SEXTANT_INLINE V<float> max<float>(V<float> a, V<float> b) {
  return (V<float>)_mm512_maskz_max_ps(all_lanes, (__m512)a, (__m512)b);
}
template <>
SEXTANT_INLINE V<float> min<float>(V<float> a, V<float> b) {
  return (V<float>)_mm512_maskz_min_ps(all_lanes, (__m512)a, (__m512)b);
}
#endif

// Folds the lanes by halves: lane i with lane i + half, in an order that depends on the number of lanes alone.
template <class T, int bytes>
struct PartOf {
  typedef T type __attribute__((vector_size(bytes)));
};
template <class T, int bytes, class Combine>
SEXTANT_INLINE T fold_lanes(typename PartOf<T, bytes>::type v, Combine combine) {
  if constexpr (bytes == 2 * sizeof(T)) {
    return combine(v[0], v[1]);
  } else if constexpr (bytes == 16) {
    return combine(combine(v[0], v[2]), combine(v[1], v[3]));
  } else {
    typename PartOf<T, bytes / 2>::type half[2];
    __builtin_memcpy(half, &v, sizeof v);
    return fold_lanes<T, bytes / 2>(combine(half[0], half[1]), combine);
  }
}
template <class T>
SEXTANT_INLINE T sum_of_lanes(V<T> v) {
  return fold_lanes<T, sizeof v>(
      v, [](auto a, auto b) __attribute__((always_inline)) { return a + b; });
}
// The largest lane; whether a NaN is seen is left open.
template <class T>
SEXTANT_INLINE T max_of_lanes(V<T> v) {
  return fold_lanes<T, sizeof v>(
      v, [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; });
}

// ---- exp ----------------------------------------------------------------------------------------------------------
//
// exp(x) = 2^n e^r,  n = round(x / ln 2),  r = x - n ln 2 in [-ln(2)/2, ln(2)/2]: a polynomial 1 + r + r^2 q(r) and n
// put into the exponent. n is read off the low bits of x / ln 2 + 1.5 2^23, where consecutive floats are one apart. ln
// 2 is taken in two parts, of which n times the first is exact, so that r keeps its digits also without a fused
// multiply-add.

template <class T>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  static constexpr int mantissa_bits = 23, exponent_bias = 127;
  static constexpr float log2e = 0x1.715476p0f, ln2 = 0x1.62e43p-1f, ln2_high = 0x1.63p-1f, ln2_low = -0x1.bd0106p-13f;
  static constexpr float rounder = 0x1.8p23f;
  static constexpr float smallest = -87.33654f, largest = 88.72283f;  // beyond: 0 (no denormal results), infinity
  static constexpr float smallest2 = -126.0f;
};
template <>
struct ExpConstants<double> {
  static constexpr int mantissa_bits = 52, exponent_bias = 1023;
  static constexpr double log2e = 0x1.71547652b82fep0, ln2 = 0x1.62e42fefa39efp-1;
  static constexpr double ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
  static constexpr double rounder = 0x1.8p52;
  static constexpr double smallest = -708.3964185322641, largest = 709.782712893384;
  static constexpr double smallest2 = -1022.0;
};

// Minimax in relative error: 0.05 half-ulp.
SEXTANT_INLINE V<float> exp_of_remainder(V<float> r) {
  V<float> p = fma(broadcast(0x1.6a4d5ap-10f), r, broadcast(0x1.12398ep-7f));
  p = fma(p, r, broadcast(0x1.5558bp-5f));
  p = fma(p, r, broadcast(0x1.555492p-3f));
  p = fma(p, r, broadcast(0x1.fffffcp-2f));
  p = fma(p, r, broadcast(1.0f));
  return fma(p, r, broadcast(1.0f));
}
// Interpolated at Chebyshev points: 0.003 half-ulp.
SEXTANT_INLINE V<double> exp_of_remainder(V<double> r) {
  V<double> p = fma(broadcast(0x1.1f730349868cep-29), r, broadcast(0x1.af4de97ca4194p-26));
  p = fma(p, r, broadcast(0x1.27e4db646b17ep-22));
  p = fma(p, r, broadcast(0x1.71de0231960ebp-19));
  p = fma(p, r, broadcast(0x1.a01a01a6d889cp-16));
  p = fma(p, r, broadcast(0x1.a01a01abe7fe1p-13));
  p = fma(p, r, broadcast(0x1.6c16c16c162d4p-10));
  p = fma(p, r, broadcast(0x1.11111111100dcp-7));
  p = fma(p, r, broadcast(0x1.5555555555556p-5));
  p = fma(p, r, broadcast(0x1.5555555555557p-3));
  p = fma(p, r, broadcast(0.5));
  p = fma(p, r, broadcast(1.0));
  return fma(p, r, broadcast(1.0));
}

// p 2^n, and 0 where x < smallest. A NaN in p stays.
#if defined(__AVX512F__)
SEXTANT_INLINE V<float> scale_or_zero(V<float> p, V<float> n, V<float> x, float smallest) {
  const __mmask16 keep = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(smallest), _CMP_NLT_UQ);
  return (V<float>)_mm512_maskz_scalef_ps(keep, (__m512)p, (__m512)n);
}
SEXTANT_INLINE V<double> scale_or_zero(V<double> p, V<double> n, V<double> x, double smallest) {
  const __mmask8 keep = _mm512_cmp_pd_mask((__m512d)x, _mm512_set1_pd(smallest), _CMP_NLT_UQ);
  return (V<double>)_mm512_maskz_scalef_pd(keep, (__m512d)p, (__m512d)n);
}
#else
template <class T>
SEXTANT_INLINE V<T> zero_below(V<T> y, V<T> x, T smallest) {
  return (V<T>)((M<T>)y & ~(x < broadcast(smallest)));
}
#endif

// e^x for x <= 0 (and for NaN; for x up to 88 in f32, 709 in f64): the exp of a softmax, without the care for overflow.
// 0 for -infinity and wherever the result would be smaller than the smallest normal number.
template <class T>
SEXTANT_INLINE V<T> exp_nonpositive(V<T> x) {
  using C = ExpConstants<T>;
#if defined(__AVX512F__)
  const V<T> rounder = broadcast(C::rounder);
#else
  // With the bias added, the low bits are the exponent field of 2^n.
  const V<T> rounder = broadcast(C::rounder + C::exponent_bias);
#endif
  const V<T> shifted = fma(x, broadcast(C::log2e), rounder);
  const V<T> n = shifted - rounder;
  const V<T> p = exp_of_remainder(fma(n, broadcast(-C::ln2_low), fma(n, broadcast(-C::ln2_high), x)));
#if defined(__AVX512F__)
  return scale_or_zero(p, n, x, C::smallest);
#else
  return zero_below<T>(p * (V<T>)((M<T>)shifted << C::mantissa_bits), x, C::smallest);
#endif
}

// e^x; 0 as above, +infinity when it overflows, NaN for NaN.
template <class T>
SEXTANT_INLINE V<T> exp(V<T> x) {
  using C = ExpConstants<T>;
#if defined(__AVX512F__)
  return exp_nonpositive<T>(min<T>(broadcast(C::largest + 1), x));
#else
  const V<T> shifted = fma(x, broadcast(C::log2e), broadcast(C::rounder));
  const V<T> n = shifted - broadcast(C::rounder);
  const V<T> p = exp_of_remainder(fma(n, broadcast(-C::ln2_low), fma(n, broadcast(-C::ln2_high), x)));
  // The exponent is added as an integer, since 2^n itself may be out of range where p 2^n is not.
  const V<T> y = (V<T>)((U<T>)p + ((U<T>)shifted << C::mantissa_bits));
  const V<T> beyond = x + broadcast(static_cast<T>(__builtin_inf()));  // infinity, or NaN
  return select<T>(x <= broadcast(C::largest), zero_below<T>(y, x, C::smallest), beyond);
#endif
}

// 2^x for x < 127.5 in f32, x < 1023.5 in f64, for NaN and -infinity; 0 where the result would be smaller than the
// smallest normal number. The cheapest of the family: a softmax may scale its logits by log2(e) beforehand.
template <class T>
SEXTANT_INLINE V<T> exp2(V<T> x) {
  using C = ExpConstants<T>;
#if defined(__AVX512F__)
  const V<T> rounder = broadcast(C::rounder);
#else
  const V<T> rounder = broadcast(C::rounder + C::exponent_bias);
#endif
  const V<T> shifted = x + rounder;
  const V<T> n = shifted - rounder;
  const V<T> p = exp_of_remainder((x - n) * broadcast(C::ln2));
#if defined(__AVX512F__)
  return scale_or_zero(p, n, x, C::smallest2);
#else
  return zero_below<T>(p * (V<T>)((M<T>)shifted << C::mantissa_bits), x, C::smallest2);
#endif
}
#if defined(__AVX512F__)
// vreduceps gives x - floor(x), 0 for infinities, and vscalefps takes the floor of x itself: two instructions instead
// of five. The polynomial is minimax for 2^f, f in [0, 1).
template <>
SEXTANT_INLINE V<float> exp2<float>(V<float> x) {
  const V<float> f = (V<float>)_mm512_maskz_reduce_ps(all_lanes, (__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  V<float> p = fma(broadcast(0x1.c4456ep-13f), f, broadcast(0x1.47373ap-10f));
  p = fma(p, f, broadcast(0x1.3cfd82p-7f));
  p = fma(p, f, broadcast(0x1.c68af6p-5f));
  p = fma(p, f, broadcast(0x1.ebfd3ap-3f));
  p = fma(p, f, broadcast(0x1.62e42cp-1f));
  p = fma(p, f, broadcast(1.0f));
  return scale_or_zero(p, x, x, ExpConstants<float>::smallest2);
}
#endif

// ---- log ----------------------------------------------------------------------------------------------------------
//
// log(2^e (1+f)) = e ln 2 + log(1+f), 1+f in [sqrt(1/2), sqrt(2)), and with s = f / (2+f), z = s^2:
// log(1+f) = 2 artanh(s) = 2s (1 + z/3 + z^2/5 + ..) = f - (f^2/2 - s (f^2/2 + R)),  R = 2 (z/3 + z^2/5 + ..)
// where the last form adds the large term f last, without an error of its own.

SEXTANT_INLINE V<float> log_tail(V<float> z) {
  V<float> p = fma(broadcast(2.0f / 11), z, broadcast(2.0f / 9));
  p = fma(p, z, broadcast(2.0f / 7));
  p = fma(p, z, broadcast(2.0f / 5));
  return z * fma(p, z, broadcast(2.0f / 3));
}
SEXTANT_INLINE V<double> log_tail(V<double> z) {
  V<double> p = broadcast(2.0 / 23);
#pragma GCC unroll 10
  for (int k = 21; k >= 3; k -= 2) p = fma(p, z, broadcast(2.0 / k));
  return z * p;
}

// The natural logarithm, also of denormals; -infinity for 0, NaN below.
template <class T>
SEXTANT_INLINE V<T> log(V<T> x) {
  using C = ExpConstants<T>;
  const V<T> zero = broadcast(T(0)), infinity = broadcast(static_cast<T>(__builtin_inf()));
  const V<T> normal = broadcast(sizeof(T) == 4 ? static_cast<T>(0x1p-126) : static_cast<T>(0x1p-1022));
  const M<T> denormal = x < normal;
  const V<T> scaled =
      select<T>(denormal, x * broadcast(sizeof(T) == 4 ? static_cast<T>(0x1p24) : static_cast<T>(0x1p54)), x);
  const M<T> sqrt_half = (M<T>)broadcast(static_cast<T>(0x1.6a09e667f3bcdp-1));
  const M<T> exponent = (M<T>)((U<T>)scaled - (U<T>)sqrt_half) >> C::mantissa_bits;
  const V<T> e =
      __builtin_convertvector(exponent, V<T>) + select<T>(denormal, broadcast(T(sizeof(T) == 4 ? -24 : -54)), zero);
  const V<T> f = (V<T>)((U<T>)scaled - (U<T>)(exponent << C::mantissa_bits)) - broadcast(T(1));
  const V<T> s = f / (f + broadcast(T(2)));
  const V<T> half_square = broadcast(T(0.5)) * f * f;
  const V<T> rest = fma(s, half_square + log_tail(s * s), e * broadcast(C::ln2_low));
  const V<T> y = fma(e, broadcast(C::ln2_high), f - (half_square - rest));
  const V<T> edge =
      select<T>(x == zero, -infinity, select<T>(x > zero, x, broadcast(static_cast<T>(__builtin_nan("")))));
  return select<T>((x > zero) & (x < infinity), y, edge);
}

// ---- GELU ---------------------------------------------------------------------------------------------------------
//
// y = 0.5 x (1 + tanh u) = x sigmoid(w),  w = 2u = 2 sqrt(2/pi) (x + 0.044715 x^3). The sigmoid is taken from t =
// exp(-|w|) <= 1, as 1 / (1+t) or t / (1+t), so that it keeps its relative error where 1 + tanh u would cancel. t is
// had from exp2, the cheaper, by w log2(e). dy/dx = s + x s (1-s) w',  s (1-s) = t / (1+t)^2

// 1 / d for d in [1, 2].
SEXTANT_INLINE V<float> reciprocal(V<float> d) {
#if defined(__AVX512F__)
  // 14 bits, and a Newton step: less than half the time of a division.
  const V<float> guess = (V<float>)_mm512_maskz_rcp14_ps(all_lanes, (__m512)d);
  return fma(guess, fma(-d, guess, broadcast(1.0f)), guess);
#else
  return broadcast(1.0f) / d;
#endif
}
SEXTANT_INLINE V<double> reciprocal(V<double> d) {
  return broadcast(1.0) / d;
}

template <class T>
SEXTANT_INLINE V<T> absolute(V<T> x) {
  return (V<T>)((M<T>)x & ~(M<T>)broadcast(T(-0.0)));
}

template <class T>
struct GeluConstants {
  static constexpr double linear_of_w = 1.5957691216057308;  // 2 sqrt(2/pi)
  static constexpr double cubic_of_w = 0.044715 * linear_of_w;
  static constexpr double log2e = ExpConstants<double>::log2e;
  static constexpr T linear = static_cast<T>(linear_of_w), cubic = static_cast<T>(cubic_of_w);
  static constexpr T linear2 = static_cast<T>(linear_of_w * log2e), cubic2 = static_cast<T>(cubic_of_w * log2e);
};

template <class T>
SEXTANT_INLINE V<T> gelu(V<T> x) {
  using C = GeluConstants<T>;
  const V<T> magnitude = absolute<T>(x);
  const V<T> t = exp2<T>(magnitude * fma(x * x, broadcast(-C::cubic2), broadcast(-C::linear2)));
  const V<T> numerator = select<T>(x < broadcast(T(0)), x * t, x);
  return numerator * reciprocal(broadcast(T(1)) + t);
}

// dy/dx
template <class T>
SEXTANT_INLINE V<T> gelu_gradient(V<T> x) {
  using C = GeluConstants<T>;
  // Beyond 24, t is 0 in either type; the bound keeps x^2 finite where it is multiplied by t.
  const V<T> magnitude = min<T>(broadcast(T(24)), absolute<T>(x));
  const V<T> square = magnitude * magnitude;
  const V<T> t = exp2<T>(magnitude * fma(square, broadcast(-C::cubic2), broadcast(-C::linear2)));
  const V<T> s = reciprocal(broadcast(T(1)) + t);
  const V<T> slope = fma(square, broadcast(3 * C::cubic), broadcast(C::linear));
  const V<T> bend = magnitude * slope * (t * s * s);
  return select<T>(x < broadcast(T(0)), fma(t, s, -bend), s + bend);
}

}  // namespace sextant::SEXTANT_ISA
