#include "data/canon.h"

#include <array>
#include <cassert>

#include "core/sha256.h"
#include "data/events.h"

namespace sextant {
namespace {

constexpr int steps_per_phrase = 16;
constexpr int steps_per_motif = 8;
constexpr int phrases = 16;
constexpr int steps = steps_per_phrase * phrases;
constexpr int highest_degree = 7;  // of the lower voice's first half; the second half is up to 3 higher
constexpr int twelfth = 11;        // scale degrees between the voices
constexpr uint64_t canon_seed = 0x5e87a47;

// SplitMix64 (Steele, Lea, Flood 2014). Its own, so that the corpus depends on no other file.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

int choose(uint64_t seed, uint64_t index, int bound) {
  return static_cast<int>((mix(mix(seed) + index) >> 32) * static_cast<uint64_t>(bound) >> 32);
}

bool consonant(int lower, int upper) {
  const int interval = (upper - lower) % 7;
  return interval == 0 || interval == 2 || interval == 4 || interval == 5;
}

using Line = std::array<int, steps>;  // scale degrees, 0 = the tonic below middle C

// The next degree of the lower voice: one of those at most 2 away, inside the range, not a repetition, consonant on
// strong (even) steps with `upper`. When none is consonant any of the others will do.
int next_degree(int previous, int upper, bool strong, uint64_t seed, uint64_t index) {
  std::array<int, 4> candidates{};
  for (const bool insist : {strong, false}) {
    int count = 0;
    for (const int move : {-2, -1, 1, 2}) {
      const int degree = previous + move;
      if (degree < 0 || degree > highest_degree || (insist && !consonant(degree, upper))) continue;
      candidates[static_cast<size_t>(count++)] = degree;
    }
    if (count > 0) return candidates[static_cast<size_t>(choose(seed, index, count))];
  }
  assert(false);
  return previous;
}

// The first phrase belongs to the suite, so it knows no upper voice; all others are written against it.
Line lower_voice(uint64_t suite_seed, uint64_t piece_seed) {
  Line line{};
  for (size_t n = 0; n < steps / 2; ++n) {
    const size_t phrase = n / steps_per_phrase, step = n % steps_per_phrase;
    if (phrase >= 4 && step < steps_per_motif) {
      line[n] = line[n - 4 * steps_per_phrase];
    } else if (phrase == 0) {
      line[n] = n == 0 ? 0 : next_degree(line[n - 1], 0, false, suite_seed, n);
    } else {
      line[n] = next_degree(line[n - 1], line[n - steps_per_phrase] + twelfth, n % 2 == 0, piece_seed, n);
    }
  }
  const int shift = 1 + choose(piece_seed, steps, 3);
  for (size_t n = steps / 2; n < steps; ++n) line[n] = line[n - steps / 2] + shift;
  return line;
}

int pitch_of(int degree, int key) {
  constexpr std::array<int, 7> major = {0, 2, 4, 5, 7, 9, 11};
  return 48 + key + 12 * (degree / 7) + major[static_cast<size_t>(degree % 7)];
}

// Rhythm: 10 ms steps of the clock by place in the beat. Accents by place in the bar, the swell by place in the phrase;
// the upper voice is always louder than the lower one by more than they vary, so that the velocity bin changes at every
// note.
constexpr std::array<int, 4> rhythm = {32, 18, 25, 20};
constexpr std::array<int, 8> accent = {4, 0, 1, 0, 3, 0, 2, 0};
constexpr std::array<int, 16> swell = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 2, 2, 1, 0};

int lower_velocity(size_t n) {
  return 4 + accent[n % 8] + swell[n % 16];
}
int upper_velocity(size_t n) {
  return 16 + accent[n % 8] + swell[n % 16];
}

}  // namespace

std::vector<int32_t> canon_piece(int64_t piece) {
  const uint64_t suite_seed = mix(canon_seed + static_cast<uint64_t>(piece / canon_suite_pieces));
  const uint64_t piece_seed = mix(suite_seed + 1 + static_cast<uint64_t>(piece % canon_suite_pieces));
  const int key = choose(piece_seed, steps + 1, 12) - 5;
  const Line lower = lower_voice(suite_seed, piece_seed);
  std::vector<int32_t> tokens;
  tokens.reserve(canon_piece_tokens);
  tokens.push_back(event_begin);
  int low = 0, high = 0;
  for (size_t n = 0; n < steps; ++n) {
    if (n > 0) tokens.insert(tokens.end(), {event_note_off + low, event_note_off + high});
    low = pitch_of(lower[n], key);
    high = pitch_of(lower[(n + steps - steps_per_phrase) % steps] + twelfth, key);
    assert(low < high);
    tokens.insert(tokens.end(),
                  {event_velocity + lower_velocity(n), event_note_on + low, event_velocity + upper_velocity(n),
                   event_note_on + high, event_time_shift + rhythm[n % 4] - 1});
  }
  tokens.insert(tokens.end(), {event_note_off + low, event_note_off + high, event_end});
  assert(static_cast<int64_t>(tokens.size()) == canon_piece_tokens);
  return tokens;
}

std::shared_ptr<Corpus> make_canon() {
  auto stream = std::make_shared<std::vector<uint16_t>>();
  stream->reserve(canon_pieces * canon_piece_tokens);
  Sha256 hash;
  for (int64_t piece = 0; piece < canon_pieces; ++piece) {
    for (const int32_t token : canon_piece(piece)) {
      stream->push_back(static_cast<uint16_t>(token));
      const std::array<uint8_t, 2> little_endian = {static_cast<uint8_t>(token & 255),
                                                    static_cast<uint8_t>(token >> 8)};
      hash.update(little_endian);
    }
  }
  std::vector<Corpus::Run> runs;
  int64_t begin = 0;
  const auto add = [&](Split split, int64_t pieces) {
    runs.push_back({"canon", split, stream->data() + begin, pieces * canon_piece_tokens, 2, stream});
    begin += pieces * canon_piece_tokens;
  };
  add(Split::train, canon_pieces / 10 * 8);
  add(Split::validation, canon_pieces / 10);
  add(Split::test, canon_pieces / 10);
  return std::make_shared<Corpus>("canon", TokenKind::events, event_vocabulary, hash.hex(),
                                  "by suite: 80 % train, 10 % validation, 10 % test", std::move(runs));
}

}  // namespace sextant
