// The embedded corpus: its content is pinned, and the structure its header promises is looked for in the tokens.
#include "data/canon.h"

#include <set>

#include "core/sha256.h"
#include "data/events.h"
#include "tests/data/temporary.h"

namespace sextant {
namespace {

// Pitches of one voice by step, read back from the tokens: 0 the lower, 1 the upper.
std::vector<int> voice(const std::vector<int32_t>& piece, size_t upper) {
  std::vector<int> pitches;
  for (size_t i = 1, ons = 0; i < piece.size(); ++i)
    if (piece[i] >= event_note_on && piece[i] < event_time_shift && ons++ % 2 == upper)
      pitches.push_back(piece[i] - event_note_on);
  return pitches;
}

TEST(Canon, IsTheSameEverywhere) {
  const auto canon = make_canon();
  EXPECT_EQ(canon->sha256(), "a9c28405329105922fdc67c6fd03f171a68b2cab0b9832d2ca695bc4c4827920");
  EXPECT_EQ(canon->size(Split::train) + canon->size(Split::validation) + canon->size(Split::test),
            canon_pieces * canon_piece_tokens);
  EXPECT_EQ(canon->size(Split::train) % (canon_suite_pieces * canon_piece_tokens), 0);  // whole suites
  // The pinned hash is that of the stream as little-endian 16-bit numbers.
  Sha256 hash;
  for (const Split split : all_splits) {
    std::vector<int32_t> tokens(static_cast<size_t>(canon->size(split)));
    canon->read(split, 0, tokens);
    for (const int32_t token : tokens)
      hash.update(std::array<uint8_t, 2>{static_cast<uint8_t>(token), static_cast<uint8_t>(token / 256)});
  }
  EXPECT_EQ(hash.hex(), canon->sha256());
}

TEST(Canon, PiecesAreCanonicalMusic) {
  for (const int64_t piece : {0, 1, 17, 1279}) {
    const auto tokens = canon_piece(piece);
    ASSERT_EQ(static_cast<int64_t>(tokens.size()), canon_piece_tokens);
    EXPECT_EQ(encode_events(decode_events(tokens)), tokens);
    EXPECT_EQ(decode_events(tokens).size(), 512u);
  }
}

TEST(Canon, StructureAtTheStatedLags) {
  const std::array<int, 7> major = {0, 2, 4, 5, 7, 9, 11};
  std::set<std::vector<int>> first_phrases, pieces;
  for (int64_t piece = 0; piece < 64; ++piece) {
    const auto tokens = canon_piece(piece);
    const auto low = voice(tokens, 0), high = voice(tokens, 1);
    const int key = low[0] - 48;  // the first note is the tonic
    const auto degree = [&](int pitch) {
      const int within = ((pitch - 48 - key) % 12 + 12) % 12;
      const auto found = std::find(major.begin(), major.end(), within);
      EXPECT_NE(found, major.end());
      return static_cast<int>(found - major.begin()) + 7 * ((pitch - 48 - key - within) / 12);
    };
    int consonant = 0, strong = 0;
    for (size_t n = 0; n < 256; ++n) {
      EXPECT_LT(low[n], high[n]);
      if (n >= 16) {
        EXPECT_EQ(degree(high[n]), degree(low[n - 16]) + 11);
      }
      if (n >= 128) {
        EXPECT_EQ(degree(low[n]) - degree(low[n - 128]), degree(low[128]) - degree(low[0]));
      }
      if (n % 128 >= 64 && n % 16 < 8) {
        EXPECT_EQ(degree(low[n]), degree(low[n - 64]));
      }
      if (n >= 16 && n < 128 && n % 2 == 0 && (n < 64 || n % 16 >= 8)) {
        ++strong;
        const int interval = (degree(high[n]) - degree(low[n])) % 7;
        consonant += interval == 0 || interval == 2 || interval == 4 || interval == 5;
      }
    }
    EXPECT_GT(consonant, strong * 9 / 10) << piece;
    std::vector<int> phrase;
    for (size_t n = 0; n < 16; ++n) phrase.push_back(low[n] - low[0]);
    if (piece < 16) first_phrases.insert(phrase);
    pieces.insert(low);
    // Time shifts and velocities have period 4 and 16 steps, 7 tokens each.
    for (size_t i = 1; i + 112 < tokens.size() - 3; ++i) {
      if (tokens[i] >= event_time_shift && tokens[i] < event_velocity) {
        EXPECT_EQ(tokens[i], tokens[i + 28]);
      }
      if (tokens[i] >= event_velocity && tokens[i] < event_begin) {
        EXPECT_EQ(tokens[i], tokens[i + 112]);
      }
    }
  }
  EXPECT_EQ(first_phrases.size(), 1u);  // of the first suite
  EXPECT_EQ(pieces.size(), 64u);        // no piece twice
}

}  // namespace
}  // namespace sextant
