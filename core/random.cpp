// Counter-based random numbers.
#include "core/random.h"

#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/parallel.h"
#include "core/shape_format.h"

namespace sextant {

namespace {

constexpr int rounds = 10;
constexpr uint32_t multiplier0 = 0xD2511F53, multiplier1 = 0xCD9E8D57;
constexpr uint32_t weyl0 = 0x9E3779B9, weyl1 = 0xBB67AE85;  // the golden ratio and sqrt(3) - 1, in 2^-32

uint32_t high(uint64_t x) {
  return static_cast<uint32_t>(x >> 32);
}
uint32_t low(uint64_t x) {
  return static_cast<uint32_t>(x);
}

struct Pair {
  uint64_t first, second;
};

Pair block(uint64_t seed, uint64_t stream, uint64_t index) {
  const std::array<uint32_t, 4> x =
      philox({low(index), high(index), low(stream), high(stream)}, {low(seed), high(seed)});
  return {x[0] | uint64_t{x[1]} << 32, x[2] | uint64_t{x[3]} << 32};
}

double unit(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < rounds; ++round) {
    const uint64_t product0 = uint64_t{multiplier0} * counter[0];
    const uint64_t product1 = uint64_t{multiplier1} * counter[2];
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1), high(product0) ^ counter[3] ^ key[1],
               low(product0)};
    key = {key[0] + weyl0, key[1] + weyl1};
  }
  return counter;
}

uint64_t Random::bits(uint64_t index) const {
  return block(seed_, stream_, index).first;
}

double Random::uniform(uint64_t index) const {
  return unit(bits(index));
}

double Random::normal(uint64_t index) const {
  const Pair pair = block(seed_, stream_, index);
  const double radius = std::sqrt(-2.0 * std::log(1.0 - unit(pair.first)));  // 1 - [0, 1): never the logarithm of 0
  return radius * std::cos(2.0 * std::numbers::pi * unit(pair.second));
}

uint64_t Random::below(uint64_t index, uint64_t bound) const {
  require(bound >= 1, "a random number below {}: the bound must be at least 1", bound);
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(Wide{bits(index)} * bound >> 64);
}

uint64_t Random::stream_of(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  // FNV-1a hardly spreads the last characters, by which names differ most; this finalizer (Stafford's variant 13) does.
  hash = (hash ^ hash >> 30) * 0xBF58476D1CE4E5B9;
  hash = (hash ^ hash >> 27) * 0x94D049BB133111EB;
  return hash ^ hash >> 31;
}

namespace {

// x[i] = value(i), i the row-major index: the same numbers for any dtype, up to rounding.
template <class F>
void fill_by_index(const Tensor& x, F&& value) {
  require(x.contiguous(), "random numbers into a view of shape {} that is not contiguous", x.shape());
  dispatch(x.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_ranges(x.elements(), 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) x.data<T>()[i] = static_cast<T>(value(static_cast<uint64_t>(i)));
    });
  });
}

}  // namespace

void fill_normal(const Tensor& x, const Random& random, double mean, double standard_deviation) {
  fill_by_index(x, [&](uint64_t i) { return mean + standard_deviation * random.normal(i); });
}

void fill_uniform(const Tensor& x, const Random& random, double low_end, double high_end) {
  fill_by_index(x, [&](uint64_t i) { return low_end + (high_end - low_end) * random.uniform(i); });
}

}  // namespace sextant
