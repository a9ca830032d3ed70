#include "data/events.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/error.h"

namespace sextant {
namespace {

struct Interval {  // of one pitch, in steps
  int64_t start, end;
  int pitch, velocity;
};

Interval quantise(const Note& note) {
  require(note.pitch >= 0 && note.pitch <= 127, "pitch {} is not in 0..127", note.pitch);
  require(note.velocity >= 1 && note.velocity <= 127, "velocity {} of a note is not in 1..127", note.velocity);
  require(note.start >= 0 && note.start <= longest_piece_seconds && note.end <= longest_piece_seconds &&
              !std::isnan(note.end),
          "a note from {} s to {} s is not inside a piece of at most 24 hours", note.start, note.end);
  const int64_t start = std::llround(note.start * steps_per_second);
  return {start, std::max(start + 1, static_cast<int64_t>(std::llround(std::max(note.end, 0.0) * steps_per_second))),
          note.pitch, note.velocity};
}

// Of each pitch disjoint intervals, the rule of the header.
std::vector<Interval> disjoint(std::span<const Note> notes) {
  std::vector<Interval> all;
  all.reserve(notes.size());
  for (const Note& note : notes) all.push_back(quantise(note));
  std::sort(all.begin(), all.end(), [](const Interval& a, const Interval& b) {
    return std::tie(a.pitch, a.start) < std::tie(b.pitch, b.start);
  });
  std::vector<Interval> kept;
  for (const Interval& next : all) {
    if (kept.empty() || kept.back().pitch != next.pitch) {
      kept.push_back(next);
    } else if (kept.back().start == next.start) {
      kept.back().end = std::max(kept.back().end, next.end);
      kept.back().velocity = std::max(kept.back().velocity, next.velocity);
    } else {
      kept.back().end = std::min(kept.back().end, next.start);
      kept.push_back(next);
    }
  }
  return kept;
}

struct Edge {  // a note-off or note-on
  int64_t step;
  bool on;
  int pitch, velocity;
};

}  // namespace

std::vector<int32_t> encode_events(std::span<const Note> notes) {
  std::vector<Edge> edges;
  edges.reserve(2 * notes.size());
  for (const Interval& note : disjoint(notes)) {
    edges.push_back({note.start, true, note.pitch, note.velocity});
    edges.push_back({note.end, false, note.pitch, 0});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return std::tie(a.step, a.on, a.pitch) < std::tie(b.step, b.on, b.pitch);
  });
  std::vector<int32_t> tokens = {event_begin};
  int64_t now = 0;
  int bin = -1;
  for (const Edge& edge : edges) {
    for (int64_t left = edge.step - now; left > 0; left -= longest_shift)
      tokens.push_back(event_time_shift + static_cast<int32_t>(std::min<int64_t>(left, longest_shift)) - 1);
    now = edge.step;
    if (edge.on && edge.velocity / 4 != bin) tokens.push_back(event_velocity + (bin = edge.velocity / 4));
    tokens.push_back((edge.on ? event_note_on : event_note_off) + edge.pitch);
  }
  tokens.push_back(event_end);
  return tokens;
}

std::vector<Note> decode_events(std::span<const int32_t> tokens) {
  constexpr int64_t silent = -1;
  std::array<int64_t, 128> started;
  std::array<int, 128> velocities{};
  started.fill(silent);
  std::vector<Note> notes;
  int64_t now = 0;
  int velocity = 16 * 4 + 2;
  const auto end_note = [&](size_t pitch, int64_t at) {
    if (started[pitch] != silent && at > started[pitch])
      notes.push_back({static_cast<double>(started[pitch]) / steps_per_second,
                       static_cast<double>(at) / steps_per_second, static_cast<int>(pitch), velocities[pitch]});
    started[pitch] = silent;
  };
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t token = tokens[i];
    require(token >= 0 && token < event_vocabulary, "token {} at place {} is not an event: events are 0..{}", token, i,
            event_vocabulary - 1);
    if (token >= event_begin) continue;
    if (token >= event_velocity) {
      velocity = 4 * (token - event_velocity) + 2;
    } else if (token >= event_time_shift) {
      now += token - event_time_shift + 1;
    } else {
      const size_t pitch = static_cast<size_t>(token % 128);
      end_note(pitch, now);
      if (token >= event_note_on) started[pitch] = now, velocities[pitch] = velocity;
    }
  }
  for (size_t pitch = 0; pitch < 128; ++pitch) end_note(pitch, std::max(now, started[pitch] + 1));
  std::sort(notes.begin(), notes.end(),
            [](const Note& a, const Note& b) { return std::tie(a.start, a.pitch) < std::tie(b.start, b.pitch); });
  return notes;
}

std::vector<std::array<int64_t, 2>> split_pieces(std::span<const int32_t> tokens) {
  std::vector<std::array<int64_t, 2>> pieces;
  int64_t first = 0;
  const int64_t size = static_cast<int64_t>(tokens.size());
  for (int64_t i = 0; i < size; ++i) {
    const int32_t token = tokens[static_cast<size_t>(i)];
    const int64_t cut = token == event_end ? i + 1 : token == event_begin ? i : first;
    if (cut > first) pieces.push_back({first, cut});
    first = std::max(first, cut);
  }
  if (first < size) pieces.push_back({first, size});
  return pieces;
}

std::string event_name(int32_t token) {
  if (token == event_begin) return "begin";
  if (token == event_end) return "end";
  if (token >= event_velocity && token < event_begin) return fmt::format("velocity {}", token - event_velocity);
  if (token >= event_time_shift && token < event_velocity)
    return fmt::format("shift {:.2f} s", (token - event_time_shift + 1) / static_cast<double>(steps_per_second));
  if (token >= event_note_on && token < event_time_shift) return fmt::format("note-on {}", token - event_note_on);
  if (token >= 0 && token < event_note_on) return fmt::format("note-off {}", token);
  return fmt::format("no event: {}", token);
}

std::string pitch_name(int pitch) {
  constexpr std::array<const char*, 12> names = {"C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B"};
  return fmt::format("{}{}", names[static_cast<size_t>(pitch % 12)], pitch / 12 - 1);
}

}  // namespace sextant
