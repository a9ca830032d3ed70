// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
// A number is a function of (seed, stream, index) alone: no state to save, the same for any order or number of threads.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/tensor.h"

namespace sextant {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

class Random {
 public:
  // `stream` tells uses apart; name them by stream_of("init/blocks.0.attn.qkv.weight").
  Random(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}
  Random(uint64_t seed, std::string_view stream_name) : Random(seed, stream_of(stream_name)) {}

  uint64_t bits(uint64_t index) const;                   // 64 random bits
  double uniform(uint64_t index) const;                  // [0, 1), 53 bits
  double normal(uint64_t index) const;                   // N(0, 1), Box-Muller
  uint64_t below(uint64_t index, uint64_t bound) const;  // [0, bound), bound >= 1, by 128-bit multiplication

  static uint64_t stream_of(std::string_view name);  // FNV-1a, then mixed

 private:
  uint64_t seed_, stream_;
};

void fill_normal(const Tensor& x, const Random& random, double mean, double standard_deviation);
void fill_uniform(const Tensor& x, const Random& random, double low, double high);

}  // namespace sextant
