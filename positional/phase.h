// Frequencies and angles to twice double precision. An angle n w grows with the position n, while what counts is its
// remainder by a full turn; so frequencies are kept as unevaluated sums of two doubles (106 bits), and a position's
// angle is reduced in turns before a cosine is taken. Tables made this way are right to the last bit of f32, and nearly
// so of f64, at any position below 2^53.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/rotation.h"
#include "core/tensor.h"
#include "positional/strategy.h"

namespace sextant {

// high + low, |low| at most half an ulp of high. (Dekker, "A floating-point technique for extending the available
// precision", 1971)
struct DoubleDouble {
  double high = 0, low = 0;
  double value() const { return high + low; }
};

DoubleDouble operator+(DoubleDouble a, DoubleDouble b);
DoubleDouble operator-(DoubleDouble a, DoubleDouble b);
DoubleDouble operator*(DoubleDouble a, DoubleDouble b);
DoubleDouble operator/(DoubleDouble a, DoubleDouble b);
DoubleDouble integer_power(DoubleDouble x, int64_t exponent);  // exponent >= 0
DoubleDouble nth_root(DoubleDouble x, int64_t n);              // x > 0, n >= 1

// w_k = base^(-k/K), k = 0 .. K-1, in radians a position.
std::vector<DoubleDouble> geometric_frequencies(DoubleDouble base, int64_t count);

// One angle, reduced: cosine and sine of n w to about 1 ulp of double.
struct Phasor {
  double cosine, sine;
};
DoubleDouble in_turns(DoubleDouble radians);  // w / 2 pi
std::vector<double> values_of(const std::vector<DoubleDouble>& numbers);
Phasor phasor(int64_t position, DoubleDouble turns);
Phasor phasor(DoubleDouble position, DoubleDouble turns);

// P(d) = L asinh(d / L), the position of the light-cone chart, as precise as long double: in double the angle of a
// large P would be off by an ulp of P, which near a zero of the cosine is more than an ulp of f32.
DoubleDouble light_cone_position(double d, double length_scale);

// The rotation table of core/rotation.h for positions first .. first + count - 1: [count, 2 P] for P frequencies (in
// radians), in `arena`.
Tensor phasor_table(Arena& arena, int64_t first, int64_t count, const std::vector<DoubleDouble>& frequencies,
                    Pairing pairing, DType dtype);

// Rows first .. first + count - 1 of the shared table known under `key`.
Tensor shared_phasors(PositionTables& tables, const std::string& key, int64_t first, int64_t count,
                      const std::vector<DoubleDouble>& frequencies, Pairing pairing, DType dtype);

}  // namespace sextant
