// The closed forms of the stylized model of far contributions (formulas in study_value_incoherence.cpp).
#pragma once

#include <complex>
#include <cstdint>

namespace sextant::study {

// M far sources of equal weight, whose values are N(0, background^2) shared plus N(0, noise^2) of each one's own.
struct FarSources {
  int64_t count = 1;
  double weight = 1, background = 1, noise = 0;
};

// Variance of the sum of their contributions, a coordinate of a pair whose independent steps have E e^{i theta} = z;
// z = 1: values stay.
double far_variance(const FarSources& sources, std::complex<double> z);

// sum_{n < count} Re z^n: how many of the near sources' values arrive.
double near_coefficient(int64_t count, std::complex<double> z);

}  // namespace sextant::study
