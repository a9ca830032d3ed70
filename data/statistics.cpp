#include "data/statistics.h"

#include <algorithm>
#include <set>

#include "core/error.h"

namespace sextant {
namespace {

constexpr int64_t chunk_tokens = int64_t{1} << 18;

void count(std::span<const int32_t> tokens, std::vector<int64_t>& histogram) {
  for (const int32_t token : tokens) {
    require(token < static_cast<int64_t>(histogram.size()), "token {} is outside the vocabulary of {}", token,
            histogram.size());
    ++histogram[static_cast<size_t>(token)];
  }
}

// All of these are sums over tokens, so that the histogram is enough.
void count_events(CorpusStatistics& s) {
  const auto& counts = s.histogram;
  s.pieces = counts[event_begin];
  int64_t steps = 0;
  for (int32_t shift = 1; shift <= longest_shift; ++shift)
    steps += shift * counts[static_cast<size_t>(event_time_shift + shift - 1)];
  s.seconds = static_cast<double>(steps) / steps_per_second;
  for (int pitch = 0; pitch < 128; ++pitch) {
    const int64_t notes = counts[static_cast<size_t>(event_note_on + pitch)];
    s.notes += notes;
    if (notes == 0) continue;
    if (s.lowest_pitch < 0) s.lowest_pitch = pitch;
    s.highest_pitch = pitch;
  }
}

}  // namespace

CorpusStatistics statistics(const Corpus& corpus) {
  CorpusStatistics s;
  s.histogram.assign(static_cast<size_t>(corpus.vocabulary()), 0);
  std::set<std::string> names;
  for (const CorpusFile& file : corpus.files()) {
    names.insert(file.name);
    ++s.split_files[static_cast<size_t>(file.split)];
  }
  s.files = static_cast<int64_t>(names.size());
  std::vector<int32_t> chunk;
  for (const Split split : all_splits) {
    const int64_t size = corpus.size(split);
    s.split_tokens[static_cast<size_t>(split)] = size;
    s.tokens += size;
    for (int64_t offset = 0; offset < size; offset += chunk_tokens) {
      chunk.resize(static_cast<size_t>(std::min(chunk_tokens, size - offset)));
      corpus.read(split, offset, chunk);
      count(chunk, s.histogram);
    }
  }
  if (corpus.kind() == TokenKind::events) count_events(s);
  return s;
}

std::string sample(const Corpus& corpus, int64_t tokens) {
  const auto split = std::find_if(all_splits.begin(), all_splits.end(), [&](Split s) { return corpus.size(s) > 0; });
  if (split == all_splits.end()) return "";
  std::vector<int32_t> read(static_cast<size_t>(std::min(tokens, corpus.size(*split))));
  corpus.read(*split, 0, read);
  std::string text;
  for (const int32_t token : read) {
    if (corpus.kind() == TokenKind::events) {
      text += (text.empty() ? "" : ", ") + event_name(token);
    } else if (token == '\n' || token == '\t' || (token >= 32 && token != 127)) {
      text += static_cast<char>(token);
    } else {
      text += fmt::format("\\x{:02x}", token);
    }
  }
  return text;
}

std::vector<Note> piece_notes(const Corpus& corpus, Split split, int64_t piece) {
  require(corpus.kind() == TokenKind::events, "{} is text and has no notes", corpus.name());
  require(piece >= 0, "pieces are counted from 0, not {}", piece);
  std::vector<int32_t> tokens, chunk;
  int64_t begun = -1;
  // A piece that a split by range cuts in two goes on in the next split.
  for (Split from : all_splits) {
    if (from < split || (from > split && tokens.empty()) || begun > piece) continue;
    for (int64_t offset = 0; offset < corpus.size(from) && begun <= piece; offset += chunk_tokens) {
      chunk.resize(static_cast<size_t>(std::min(chunk_tokens, corpus.size(from) - offset)));
      corpus.read(from, offset, chunk);
      for (const int32_t token : chunk) {
        if (token == event_begin) ++begun;
        if (begun == piece) tokens.push_back(token);
      }
    }
    if (!tokens.empty() && tokens.back() == event_end) break;
  }
  require(!tokens.empty(), "{}: the {} split has {} pieces, there is no piece {}", corpus.name(), name_of(split),
          begun + 1, piece);
  return decode_events(tokens);
}

}  // namespace sextant
