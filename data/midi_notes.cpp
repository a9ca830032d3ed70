// From the events of a MIDI file to notes in seconds: the tempo map, the pairing of note-ons and note-offs, the sustain
// pedal.
#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <tuple>

#include "core/error.h"
#include "data/midi.h"

namespace sextant {
namespace {

constexpr int64_t default_tempo = 500000;  // microseconds a quarter
constexpr uint8_t meta_tempo = 0x51;
constexpr uint8_t sustain = 64, all_sound_off = 120, all_notes_off = 123;

// seconds(tick) = numerator(tick) / denominator, in integers until the last division: exact however many tempo changes
// there are.
class TempoMap {
 public:
  TempoMap(MidiFile& file, std::span<const size_t> tracks, const std::string& name) : name_(name) {
    if (file.ticks_per_quarter == 0) {
      const bool drop_frame = file.frames_per_second == 29;  // 30000/1001 frames a second
      denominator_ = int64_t{file.ticks_per_frame} * (drop_frame ? 30000 : file.frames_per_second);
      changes_ = {{0, 0, drop_frame ? 1001 : 1}};
      return;
    }
    denominator_ = int64_t{file.ticks_per_quarter} * 1000000;
    changes_ = {{0, 0, default_tempo}};
    std::vector<std::pair<int64_t, int64_t>> tempos;  // tick, microseconds a quarter
    for (const size_t t : tracks)
      for (const MidiEvent& event : file.tracks[t])
        if (event.status == 0xFF && event.data[0] == meta_tempo) add_tempo(file, event, tempos);
    std::stable_sort(tempos.begin(), tempos.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [tick, tempo] : tempos) changes_.push_back({tick, numerator(tick), tempo});
  }

  double seconds(int64_t tick) const {
    return static_cast<double>(numerator(tick)) / static_cast<double>(denominator_);
  }

 private:
  struct Change {
    int64_t tick, numerator, per_tick;
  };

  void add_tempo(MidiFile& file, const MidiEvent& event, std::vector<std::pair<int64_t, int64_t>>& tempos) const {
    const auto bytes = event.payload;
    const int64_t tempo = bytes.size() == 3 ? bytes[0] << 16 | bytes[1] << 8 | bytes[2] : 0;
    if (tempo > 0) {
      tempos.emplace_back(event.tick, tempo);
    } else {
      file.warnings.push_back(fmt::format("{}: tick {}: a tempo event of {} bytes that says no tempo is passed over",
                                          name_, event.tick, bytes.size()));
    }
  }

  int64_t numerator(int64_t tick) const {
    const auto after =
        std::upper_bound(changes_.begin(), changes_.end(), tick, [](int64_t t, const Change& c) { return t < c.tick; });
    const Change& change = *(after - 1);
    int64_t passed = 0, sum = 0;
    const bool overflow = __builtin_mul_overflow(tick - change.tick, change.per_tick, &passed) ||
                          __builtin_add_overflow(change.numerator, passed, &sum);
    require(!overflow && static_cast<double>(sum) <= longest_piece_seconds * static_cast<double>(denominator_),
            "{}: tick {}: the piece lasts more than 24 hours", name_, tick);
    return sum;
  }

  const std::string& name_;
  int64_t denominator_ = 1;
  std::vector<Change> changes_;
};

struct TickNote {
  int64_t start, end;
  int channel, pitch, velocity;
};

struct PedalChange {
  int64_t tick;
  bool down;
};

// The notes of one track, paired.
class Pairing {
 public:
  void track(const std::vector<MidiEvent>& events) {
    for (const MidiEvent& event : events) {
      const int channel = event.status & 15, kind = event.status >> 4;
      if (kind == 0x9 && event.data[1] > 0) {
        sounding_[{channel, event.data[0]}].push_back({event.tick, event.tick, channel, event.data[0], event.data[1]});
      } else if (kind == 0x8 || kind == 0x9) {
        end_one(channel, event.data[0], event.tick);
      } else if (kind == 0xB && event.data[0] == sustain) {
        pedals[channel].push_back({event.tick, event.data[1] >= 64});
      } else if (kind == 0xB && (event.data[0] == all_sound_off || event.data[0] == all_notes_off)) {
        for (int pitch = 0; pitch < 128; ++pitch)
          while (end_one(channel, pitch, event.tick)) continue;
      }
    }
    const int64_t end = events.empty() ? 0 : events.back().tick;
    last_tick = std::max(last_tick, end);
    for (const auto& [key, still_sounding] : sounding_) {
      hanging += static_cast<int64_t>(still_sounding.size());
      while (end_one(key.first, key.second, end)) continue;
    }
  }

  std::vector<TickNote> notes;
  std::map<int, std::vector<PedalChange>> pedals;  // by channel
  int64_t hanging = 0, last_tick = 0;

 private:
  bool end_one(int channel, int pitch, int64_t tick) {
    const auto found = sounding_.find({channel, pitch});
    if (found == sounding_.end() || found->second.empty()) return false;
    notes.push_back(found->second.front());
    notes.back().end = tick;
    found->second.pop_front();
    return true;
  }

  std::map<std::pair<int, int>, std::deque<TickNote>> sounding_;
};

// A note that ends while the pedal is down lasts until it goes up, or to the end of the piece.
void apply_pedal(Pairing& pairing) {
  for (auto& [channel, changes] : pairing.pedals)
    std::stable_sort(changes.begin(), changes.end(), [](const auto& a, const auto& b) { return a.tick < b.tick; });
  for (TickNote& note : pairing.notes) {
    const auto found = pairing.pedals.find(note.channel);
    if (found == pairing.pedals.end()) continue;
    const auto& changes = found->second;
    auto next = std::upper_bound(changes.begin(), changes.end(), note.end,
                                 [](int64_t t, const PedalChange& c) { return t < c.tick; });
    if (next == changes.begin() || !(next - 1)->down) continue;
    while (next != changes.end() && next->down) ++next;
    note.end = next == changes.end() ? std::max(note.end, pairing.last_tick) : next->tick;
  }
}

// The tracks that sound together, appended to `notes`, `offset` seconds later; returns their duration in seconds.
double add_sequence(MidiFile& file, std::span<const size_t> tracks, const MidiOptions& options, const std::string& name,
                    double offset, std::vector<Note>& notes) {
  const TempoMap tempo(file, tracks, name);
  Pairing pairing;
  for (const size_t t : tracks) pairing.track(file.tracks[t]);
  if (pairing.hanging > 0)
    file.warnings.push_back(
        fmt::format("{}: {} notes are never ended and last to the end of their track", name, pairing.hanging));
  if (options.pedal) apply_pedal(pairing);
  for (const TickNote& note : pairing.notes)
    notes.push_back({offset + tempo.seconds(note.start), offset + tempo.seconds(note.end), note.pitch, note.velocity});
  return pairing.notes.empty() ? 0 : tempo.seconds(pairing.last_tick);
}

}  // namespace

std::vector<Note> midi_notes(MidiFile& file, const MidiOptions& options, const std::string& name) {
  std::vector<size_t> all(file.tracks.size());
  for (size_t t = 0; t < all.size(); ++t) all[t] = t;
  std::vector<Note> notes;
  double offset = 0;
  const size_t together = file.format == 2 ? 1 : all.size();
  for (size_t t = 0; t < all.size(); t += together)
    offset += add_sequence(file, std::span(all).subspan(t, together), options, name, offset, notes);
  require(!notes.empty(), "{}: there are no notes in this MIDI file ({} tracks){}{}", name, file.tracks.size(),
          file.warnings.empty() ? "" : "; first of its warnings: ", file.warnings.empty() ? "" : file.warnings.front());
  require(offset <= longest_piece_seconds, "{}: the sequences last {} s in all, more than 24 hours", name, offset);
  std::stable_sort(notes.begin(), notes.end(), [](const Note& a, const Note& b) {
    return std::tie(a.start, a.pitch) < std::tie(b.start, b.pitch);
  });
  return notes;
}

}  // namespace sextant
