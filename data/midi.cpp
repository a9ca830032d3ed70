#include "data/midi.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace sextant {
namespace {

constexpr uint8_t sysex = 0xF0, sysex_continued = 0xF7, meta = 0xFF;
constexpr uint8_t meta_end_of_track = 0x2F;

// Reads one file; `position` is always the byte offset in it.
class MidiReader {
 public:
  MidiReader(std::span<const uint8_t> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  MidiFile read();

 private:
  bool at(size_t position, const char* four) const {
    return position + 4 <= bytes_.size() && std::memcmp(bytes_.data() + position, four, 4) == 0;
  }
  uint32_t number(size_t position, size_t width) const {
    uint32_t value = 0;
    for (size_t i = 0; i < width; ++i) value = value << 8 | bytes_[position + i];
    return value;
  }
  template <class... Args>
  void warn(size_t position, fmt::format_string<Args...> format, Args&&... args) {
    file_.warnings.push_back(
        fmt::format("{}: byte {}: {}", name_, position, fmt::format(format, std::forward<Args>(args)...)));
  }

  void open_container();
  size_t read_header();  // returns where the first chunk begins
  void read_division(uint32_t division);
  size_t read_track(size_t begin, size_t declared_end);  // returns where the next chunk begins
  size_t after_track(size_t position, size_t declared_end);
  size_t hard_limit(size_t declared_end) const;
  bool read_event(MidiEvent& event, uint8_t& running);
  bool read_payload(MidiEvent& event);
  std::optional<uint32_t> variable_length();

  std::span<const uint8_t> bytes_;
  const std::string& name_;
  MidiFile file_;
  size_t header_ = 0;  // where "MThd" stands
  size_t position_ = 0;
  size_t limit_ = 0;          // where the events of this track must stop
  const char* problem_ = "";  // why the last event could not be read
};

// MIDI inside RIFF (".rmi"): the file begins in the chunk "data".
void MidiReader::open_container() {
  if (!at(0, "RIFF") || !at(8, "RMID")) return;
  const auto found = std::search(bytes_.begin(), bytes_.end(), std::begin("MThd"), std::end("MThd") - 1);
  header_ = static_cast<size_t>(found - bytes_.begin());
}

size_t MidiReader::read_header() {
  open_container();
  const size_t begin = header_;
  require(at(begin, "MThd"), "{}: byte {}: is not a Standard MIDI File, which begins with 'MThd'", name_, begin);
  require(begin + 14 <= bytes_.size(), "{}: byte {}: the MIDI header ends early; it has 14 bytes", name_,
          bytes_.size());
  const uint32_t length = number(begin + 4, 4), format = number(begin + 8, 2);
  require(length >= 6, "{}: byte {}: the MIDI header says it has {} bytes, it has at least 6", name_, begin + 4,
          length);
  require(format <= 2, "{}: byte {}: MIDI format {} is unknown; there are 0, 1 and 2", name_, begin + 8, format);
  file_.format = static_cast<int>(format);
  read_division(number(begin + 12, 2));
  return std::min(begin + 8 + size_t{length}, bytes_.size());
}

void MidiReader::read_division(uint32_t division) {
  if (division < 0x8000) {
    require(division > 0, "{}: byte {}: the MIDI division is 0 ticks a quarter, it must be at least 1", name_,
            header_ + 12);
    file_.ticks_per_quarter = static_cast<int>(division);
    return;
  }
  file_.frames_per_second = 256 - static_cast<int>(division >> 8);
  file_.ticks_per_frame = static_cast<int>(division & 255);
  const int fps = file_.frames_per_second;
  require((fps == 24 || fps == 25 || fps == 29 || fps == 30) && file_.ticks_per_frame > 0,
          "{}: byte {}: the SMPTE division is {} frames a second, {} ticks a frame; frames are 24, 25, 29 or 30, ticks "
          "at least 1",
          name_, header_ + 12, fps, file_.ticks_per_frame);
}

MidiFile MidiReader::read() {
  size_t chunk = read_header();
  const uint32_t declared_tracks = number(header_ + 10, 2);
  while (chunk + 8 <= bytes_.size()) {
    const size_t begin = chunk + 8, end = begin + number(chunk + 4, 4);
    if (at(chunk, "MTrk")) {
      chunk = read_track(begin, end);
    } else {
      if (end > bytes_.size())
        warn(chunk, "a chunk of unknown kind goes on beyond the end of the file; the rest is passed over");
      chunk = std::min(end, bytes_.size());
    }
  }
  if (chunk < bytes_.size()) warn(chunk, "{} bytes after the last chunk are passed over", bytes_.size() - chunk);
  require(!file_.tracks.empty(), "{}: byte {}: there is no track in this MIDI file", name_, chunk);
  if (file_.tracks.size() != declared_tracks)
    warn(header_ + 10, "the header says {} tracks, there are {}; all of them are used", declared_tracks,
         file_.tracks.size());
  return std::move(file_);
}

// A track may go on beyond its declared length, which some writers get wrong, unless there the next track or the end of
// the file stands.
size_t MidiReader::hard_limit(size_t declared_end) const {
  return declared_end >= bytes_.size() || at(declared_end, "MTrk") ? std::min(declared_end, bytes_.size())
                                                                   : bytes_.size();
}

size_t MidiReader::read_track(size_t begin, size_t declared_end) {
  position_ = begin;
  limit_ = hard_limit(declared_end);
  if (declared_end > bytes_.size())
    warn(begin - 4, "the track is said to have {} bytes, the file has {} more", declared_end - begin,
         bytes_.size() - begin);
  std::vector<MidiEvent>& track = file_.tracks.emplace_back();
  MidiEvent event;
  bool beyond = false;
  for (uint8_t running = 0;;) {
    const size_t event_begin_at = position_;
    if (position_ >= limit_) {
      warn(position_, "the track ends without an end-of-track event");
      return limit_;
    }
    if (position_ >= declared_end && !std::exchange(beyond, true))
      warn(position_, "the track goes on beyond its declared length");
    if (!read_event(event, running)) {
      warn(event_begin_at, "{}; the {} whole events before it are used", problem_, track.size());
      return std::min(std::max(declared_end, event_begin_at), bytes_.size());
    }
    track.push_back(event);
    if (event.status == meta && event.data[0] == meta_end_of_track) return after_track(position_, declared_end);
  }
}

// Bytes between the end-of-track event and the declared end are passed over, unless another track begins among them.
size_t MidiReader::after_track(size_t position, size_t declared_end) {
  if (position == declared_end) return position;
  if (position < declared_end && !at(position, "MTrk")) return std::min(declared_end, bytes_.size());
  warn(position, "the track ends here, not after its declared length at byte {}", declared_end);
  return position;
}

std::optional<uint32_t> MidiReader::variable_length() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    if (position_ >= limit_) {
      problem_ = "an event breaks off";
      return std::nullopt;
    }
    const uint8_t byte = bytes_[position_++];
    value = value << 7 | (byte & 127u);
    if (byte < 128) return value;
  }
  problem_ = "a number has more than 4 bytes";
  return std::nullopt;
}

bool MidiReader::read_payload(MidiEvent& event) {
  const auto length = variable_length();
  if (!length) return false;
  if (*length > limit_ - position_) {
    problem_ = "an event breaks off";
    return false;
  }
  event.payload = bytes_.subspan(position_, *length);
  position_ += *length;
  return true;
}

// delta time, status (or the running one), data. `event.tick` comes in as that of the event before.
bool MidiReader::read_event(MidiEvent& event, uint8_t& running) {
  const auto delta = variable_length();
  if (!delta) return false;
  problem_ = "an event breaks off";
  if (position_ >= limit_) return false;
  event.tick += *delta;
  event.payload = {};
  event.data[0] = event.data[1] = 0;
  event.status = bytes_[position_];
  if (event.status >= 0x80) {
    ++position_;
  } else {
    problem_ = "a data byte stands where no status is running";
    if (running == 0) return false;
    event.status = running;
  }
  if (event.status == meta) {
    problem_ = "an event breaks off";
    if (position_ >= limit_) return false;
    event.data[0] = bytes_[position_++];
    return read_payload(event);
  }
  if (event.status == sysex || event.status == sysex_continued) return read_payload(event);
  // System common and real-time messages do not belong into files; the few bytes they have are read and mean nothing
  // here.
  const bool channel = event.status < 0xF0;
  if (channel) running = event.status;
  const int kind = event.status >> 4;
  const int size = channel                                        ? (kind == 0xC || kind == 0xD ? 1 : 2)
                   : event.status == 0xF2                         ? 2
                   : event.status == 0xF1 || event.status == 0xF3 ? 1
                                                                  : 0;
  for (int i = 0; i < size; ++i) {
    problem_ = "an event breaks off";
    if (position_ >= limit_) return false;
    problem_ = "a status byte stands where data should";
    if (bytes_[position_] >= 0x80) return false;
    event.data[i] = bytes_[position_++];
  }
  return true;
}

}  // namespace

MidiFile parse_midi(std::span<const uint8_t> bytes, const std::string& name) {
  return MidiReader(bytes, name).read();
}

namespace {

void put_number(std::vector<uint8_t>& out, uint32_t value, int width) {
  for (int i = width - 1; i >= 0; --i) out.push_back(static_cast<uint8_t>(value >> (8 * i)));
}

void put_variable_length(std::vector<uint8_t>& out, uint32_t value) {
  assert(value < 1u << 28);
  for (int shift = 21; shift > 0; shift -= 7)
    if (value >> shift) out.push_back(static_cast<uint8_t>(0x80 | ((value >> shift) & 127)));
  out.push_back(static_cast<uint8_t>(value & 127));
}

}  // namespace

std::vector<uint8_t> write_midi(std::span<const Note> notes) {
  struct Edge {
    int64_t millisecond;
    bool on;
    int pitch, velocity;
  };
  std::vector<Edge> edges;
  for (const Note& note : notes) {
    require(note.pitch >= 0 && note.pitch <= 127 && note.velocity >= 1 && note.velocity <= 127 && note.start >= 0 &&
                note.end >= note.start && note.end <= longest_piece_seconds,
            "a note cannot be written: pitch {}, velocity {}, from {} s to {} s", note.pitch, note.velocity, note.start,
            note.end);
    const int64_t start = std::llround(note.start * 1000);
    edges.push_back({start, true, note.pitch, note.velocity});
    edges.push_back({std::max(start + 1, static_cast<int64_t>(std::llround(note.end * 1000))), false, note.pitch, 0});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return std::tie(a.millisecond, a.on, a.pitch) < std::tie(b.millisecond, b.on, b.pitch);
  });
  std::vector<uint8_t> track = {0, meta, 0x51, 3, 0x07, 0xA1, 0x20};  // 500,000 microseconds a quarter
  int64_t now = 0;
  for (const Edge& edge : edges) {
    put_variable_length(track, static_cast<uint32_t>(edge.millisecond - now));
    now = edge.millisecond;
    track.insert(track.end(), {static_cast<uint8_t>(edge.on ? 0x90 : 0x80), static_cast<uint8_t>(edge.pitch),
                               static_cast<uint8_t>(edge.velocity)});
  }
  track.insert(track.end(), {0, meta, meta_end_of_track, 0});
  std::vector<uint8_t> out = {'M', 'T', 'h', 'd', 0, 0, 0, 6, 0, 0, 0, 1, 500 >> 8, 500 & 255, 'M', 'T', 'r', 'k'};
  put_number(out, static_cast<uint32_t>(track.size()), 4);
  out.insert(out.end(), track.begin(), track.end());
  return out;
}

}  // namespace sextant
