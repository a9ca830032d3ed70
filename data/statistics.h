// What `data show` says about a corpus, and the picture of a piece.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/events.h"

namespace sextant {

struct CorpusStatistics {
  int64_t files = 0, tokens = 0;
  std::array<int64_t, 3> split_files{}, split_tokens{};  // by Split
  std::vector<int64_t> histogram;                        // of tokens, [vocabulary]
  // Of events only:
  int64_t pieces = 0, notes = 0;              // begin tokens, note-on tokens
  double seconds = 0;                         // the sum of the time shifts
  int lowest_pitch = -1, highest_pitch = -1;  // -1 when there is no note
};

// Reads the whole corpus once, in pieces.
CorpusStatistics statistics(const Corpus& corpus);

// The first `tokens` tokens of the first split that has any: text as it is (control bytes as escapes), events by name.
std::string sample(const Corpus& corpus, int64_t tokens);

// The notes of piece `piece`, counted from 0, of those that begin in the split. Throws Error when it has fewer, or when
// the corpus is text.
std::vector<Note> piece_notes(const Corpus& corpus, Split split, int64_t piece);

// An SVG: seconds to the right, pitch upwards with a line at every C, a bar for every note, darker where it is louder.
std::string piano_roll_svg(std::span<const Note> notes, const std::string& title);

}  // namespace sextant
