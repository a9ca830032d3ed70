// The event vocabulary of music, after Oore et al., "This Time with Feeling: Learning Expressive Musical Performance"
// (2018): 390 tokens.
//
//     0 ..127   note-off of pitch 0..127            256..355   the clock moves on by 1..100 steps of 10 ms
//   128 ..255   note-on of pitch 0..127             356..387   velocity bin 0..31 for the note-ons that follow
//   388         begin of a piece                    389        end of a piece
//
// Quantisation. Every note's start and end goes to the nearest multiple of 10 ms from the start of the piece: an error
// of at most 5 ms each, which does not add up, since absolute times are rounded, not differences. A note lasts at least
// one step, so the end of a note shorter than 10 ms can be off by up to 10 ms. Velocities 1..127 fall into 32 bins of 4
// and come back as 4 bin + 2: an error of at most 2. Channels and instruments are not told apart. A pitch sounds once
// at a time: a note-on while it sounds ends the earlier note there; of notes of one pitch that start at the same step
// the longest duration and the greatest velocity stay.
//
// Canonical order, which encode() writes: at each step first the note-offs, then the note-ons, each by rising pitch; a
// velocity token only where the bin changes (at the first note always); time in whole seconds first, then the rest. So
// encode(decode(t)) = t for every canonical t, and decode() takes any t, canonical or not.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sextant {

constexpr int32_t event_note_off = 0;
constexpr int32_t event_note_on = 128;
constexpr int32_t event_time_shift = 256;  // + steps - 1
constexpr int32_t event_velocity = 356;
constexpr int32_t event_begin = 388;
constexpr int32_t event_end = 389;
constexpr int32_t event_vocabulary = 390;

// The classes of events: they part the vocabulary, in this order.
struct EventClass {
  const char* name;
  int32_t first, tokens;
};
constexpr std::array<EventClass, 6> event_classes = {{{"note-off", event_note_off, 128},
                                                      {"note-on", event_note_on, 128},
                                                      {"time-shift", event_time_shift, 100},
                                                      {"velocity", event_velocity, 32},
                                                      {"begin", event_begin, 1},
                                                      {"end", event_end, 1}}};

constexpr int32_t steps_per_second = 100;
constexpr int32_t longest_shift = 100;  // steps
constexpr int32_t velocity_bins = 32;
constexpr double longest_piece_seconds = 24.0 * 60 * 60;

// Changes whenever the same input would give other tokens: part of the key of cached tokens.
constexpr int event_version = 1;

// A note as a file has it; times in seconds from the start of the piece.
struct Note {
  double start = 0, end = 0;
  int pitch = 0;     // 0..127, 60 = middle C
  int velocity = 0;  // 1..127
  bool operator==(const Note&) const = default;
};

// `begin`, the notes in canonical order, `end`. Notes in any order. Throws Error when a pitch or velocity is out of its
// range, a time is negative or not finite, or beyond 24 hours.
std::vector<int32_t> encode_events(std::span<const Note> notes);

// The notes of one piece, ordered by start and pitch, times as exact multiples of 10 ms. Takes any token sequence, such
// as a model's: begin and end are passed over, a note-off without its note-on is dropped, a note-on while the pitch
// sounds ends the earlier note, notes of zero length are dropped, notes that still sound at the end get there their end
// (at least one step after their start). Without a velocity token notes have bin 16. Throws Error on a token outside
// the vocabulary.
std::vector<Note> decode_events(std::span<const int32_t> tokens);

// Where each piece begins and ends in a stream of many: [first, last) ranges, cut before each `begin` and after each
// `end`.
std::vector<std::array<int64_t, 2>> split_pieces(std::span<const int32_t> tokens);

std::string event_name(int32_t token);  // "note-on 60", "shift 0.25 s", ..., for people
std::string pitch_name(int pitch);      // "C4" for 60, "F#2" for 42

}  // namespace sextant
