// How often each token occurs in a corpus, as text for people.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/corpus.h"

namespace sextant {

// Bytes: every one that occurs, with its count and share, the most frequent first. Events: count and share of each
// class, then for pitches, time shifts and velocities the counts by range, with bars. `counts` has one entry a token.
std::string histogram_text(TokenKind kind, std::span<const int64_t> counts);

}  // namespace sextant
