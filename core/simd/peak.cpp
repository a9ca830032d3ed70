// The loop that measures the peak of the multiply-add units.
#include "core/simd/peak.h"

#include "core/simd/vector.h"

namespace sextant::SEXTANT_ISA {

namespace {

template <class T>
double multiply_adds(int64_t rounds) {
  // Latency times ports is 8 to 10 on the machines of today; 12 chains hide it and fit 16 registers.
  constexpr int chains = 12;
  V<T> sum[chains];
  for (int i = 0; i < chains; ++i) sum[i] = broadcast<T>(static_cast<T>(i));
  V<T> factor = broadcast<T>(T(0.5));
  V<T> term = broadcast<T>(T(1));
  asm volatile("" : "+x"(factor), "+x"(term));  // otherwise known constants, and the loop could be folded
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < chains; ++i) sum[i] = fma(sum[i], factor, term);
  }
  for (int i = 0; i < chains; ++i) asm volatile("" : : "x"(sum[i]));
  return static_cast<double>(rounds) * chains * lanes<T> * 2;
}

const PeakTable table = {multiply_adds<float>, multiply_adds<double>};

}  // namespace

const PeakTable& peak_table() {
  return table;
}

}  // namespace sextant::SEXTANT_ISA
