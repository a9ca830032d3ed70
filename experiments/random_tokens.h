// Token ids for a model that has to run where it does not matter what it reads.
#pragma once

#include <cstdint>
#include <vector>

#include "core/random.h"

namespace sextant {

// `count` ids, uniform below `vocabulary`, a function of (seed, stream).
inline std::vector<int32_t> random_tokens(uint64_t seed, const char* stream, int64_t count, int64_t vocabulary) {
  const Random random(seed, stream);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(vocabulary))));
  return tokens;
}

}  // namespace sextant
