// The scalar functions the position formulas share, in double, safe at both ends.
#pragma once

#include <cmath>

namespace sextant {

// 1 / (1 + e^-x)
inline double sigmoid_of(double x) {
  return x >= 0 ? 1.0 / (1.0 + std::exp(-x)) : std::exp(x) / (1.0 + std::exp(x));
}

// log(1 + e^x)
inline double softplus_of(double x) {
  return std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
}

// The x with softplus(x) = y, y > 0.
inline double softplus_inverse(double y) {
  return y + std::log(-std::expm1(-y));
}

}  // namespace sextant
