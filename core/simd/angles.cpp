// Running sums of angles, and their cosines and sines. In double whatever the working precision, without fused
// multiply-adds: the same bits on every machine.
#include "core/simd/angles.h"

#include "core/simd/vector.h"

namespace sextant::SEXTANT_ISA {

namespace {

#define SEXTANT_INLINE inline __attribute__((always_inline))

constexpr double rounder = 0x1.8p52;  // x + rounder - rounder is the integer nearest to x

// 2 pi and pi/2 in two parts, of which n times the first is exact for |n| < 2^20.
constexpr double two_pi_high = 0x1.921fb544p+2, two_pi_low = 0x1.0b4611a626331p-32, per_turn = 0x1.45f306dc9c883p-3;
constexpr double half_pi_high = 0x1.921fb544p+0, half_pi_low = 0x1.0b4611a626331p-34,
                 per_quarter = 0x1.45f306dc9c883p-1;

template <class T>
void advance(int64_t count, const T* steps, double* sums) {
  for (int64_t i = 0; i < count; ++i) {
    const double sum = sums[i] + static_cast<double>(steps[i]);
    const double turns = (sum * per_turn + rounder) - rounder;
    sums[i] = (sum - turns * two_pi_high) - turns * two_pi_low;
  }
}

// With r = angle - n pi/2 in [-pi/4, pi/4]: Taylor polynomials of degree 15 and 16, whose remainders are below 1e-18,
// and n mod 4 says which of +-cos r, +-sin r the two are.
SEXTANT_INLINE void cosine_and_sine(V<double> angle, V<double>& cosine, V<double>& sine) {
  const V<double> shifted = angle * broadcast(per_quarter) + broadcast(rounder);
  const V<double> n = shifted - broadcast(rounder);
  const V<double> r = (angle - n * broadcast(half_pi_high)) - n * broadcast(half_pi_low);
  const V<double> z = r * r;
  V<double> s = broadcast(-1.0 / 1307674368000.0);
  s = s * z + broadcast(1.0 / 6227020800.0);
  s = s * z - broadcast(1.0 / 39916800.0);
  s = s * z + broadcast(1.0 / 362880.0);
  s = s * z - broadcast(1.0 / 5040.0);
  s = s * z + broadcast(1.0 / 120.0);
  s = s * z - broadcast(1.0 / 6.0);
  s = r + r * z * s;
  V<double> c = broadcast(1.0 / 20922789888000.0);
  c = c * z - broadcast(1.0 / 87178291200.0);
  c = c * z + broadcast(1.0 / 479001600.0);
  c = c * z - broadcast(1.0 / 3628800.0);
  c = c * z + broadcast(1.0 / 40320.0);
  c = c * z - broadcast(1.0 / 720.0);
  c = c * z + broadcast(1.0 / 24.0);
  // 1 - z/2 exactly as head + rest, so that the small terms do not lose what the subtraction rounds off.
  const V<double> half = z * broadcast(0.5), head = broadcast(1.0) - half;
  c = head + (((broadcast(1.0) - head) - half) + z * z * c);
  const M<double> quarter = (M<double>)shifted;
  const M<double> odd = (quarter << 63) >> 63;  // sine and cosine change places
  const M<double> sine_sign = (quarter >> 1) << 63, cosine_sign = ((quarter + 1) >> 1) << 63;
  sine = (V<double>)(((M<double>)(odd ? c : s)) ^ sine_sign);
  cosine = (V<double>)(((M<double>)(odd ? s : c)) ^ cosine_sign);
}

template <class T>
void phasors(int64_t count, const double* angles, T* result) {
  constexpr int width = lanes<double>;
  for (int64_t i = 0; i < count; i += width) {
    const int64_t used = count - i < width ? count - i : width;
    double block[width] = {};
    __builtin_memcpy(block, angles + i, static_cast<unsigned long>(used) * sizeof(double));
    V<double> cosine, sine;
    cosine_and_sine(load(block), cosine, sine);
    for (int64_t n = 0; n < used; ++n) {
      result[2 * (i + n)] = static_cast<T>(cosine[n]);
      result[2 * (i + n) + 1] = static_cast<T>(sine[n]);
    }
  }
}

template <class T>
void turn_gradient(int64_t count, const T* y, const T* dy, double sign, double* gradient) {
  for (int64_t i = 0; i < count; ++i) {
    const double y0 = y[2 * i], y1 = y[2 * i + 1], dy0 = dy[2 * i], dy1 = dy[2 * i + 1];
    gradient[i] += sign * (dy1 * y0 - dy0 * y1);
  }
}

const AngleTable<float> table_f32 = {advance<float>, phasors<float>, turn_gradient<float>};
const AngleTable<double> table_f64 = {advance<double>, phasors<double>, turn_gradient<double>};

}  // namespace

const AngleTable<float>& angle_table(float) {
  return table_f32;
}
const AngleTable<double>& angle_table(double) {
  return table_f64;
}

}  // namespace sextant::SEXTANT_ISA
