// Standard MIDI Files (the MIDI Association's SMF 1.0, RP-001): read completely, written simply.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "data/events.h"

namespace sextant {

// One event of a track. Channel messages have status 0x80..0xEF, sysex 0xF0 or 0xF7 with its bytes, meta events 0xFF
// with their type in data[0] and their bytes in `payload`, which points into what was parsed.
struct MidiEvent {
  int64_t tick = 0;  // from the start of the track
  uint8_t status = 0;
  uint8_t data[2] = {0, 0};
  std::span<const uint8_t> payload;
};

struct MidiFile {
  int format = 0;             // 0: one track; 1: tracks that sound together; 2: tracks one after another
  int ticks_per_quarter = 0;  // 0 when the division is SMPTE
  int frames_per_second = 0, ticks_per_frame = 0;  // SMPTE: 24, 25, 29 (30 drop frame: 30000/1001 a second), 30
  std::vector<std::vector<MidiEvent>> tracks;
  std::vector<std::string> warnings;  // "NAME: byte N: what is wrong, what was done"
};

// Everything that can be read, or Error: not a MIDI file, an unknown format, division zero, no track. Where a track is
// damaged or the file ends early, the whole events before that are kept and a warning says the byte offset. `name` is
// for messages.
MidiFile parse_midi(std::span<const uint8_t> bytes, const std::string& name);

struct MidiOptions {
  bool pedal = false;  // a note lasts until the sustain pedal (controller 64) of its channel is released
};

// The notes in the order of their starts, times by the tempo map. A note-off (or note-on of velocity 0) ends the
// earliest sounding note of its track, channel and pitch; "all notes off" ends them all; a note that is never ended
// lasts to the end of its track, with a warning. Tempo events of all tracks count (in format 2: of the track itself).
// Throws Error when there is no note or it lasts more than 24 hours.
std::vector<Note> midi_notes(MidiFile& file, const MidiOptions& options, const std::string& name);

// A format 0 file in ticks of 1 ms (500 a quarter at 120 quarters a minute), so that event times of 10 ms come back
// exactly.
std::vector<uint8_t> write_midi(std::span<const Note> notes);

}  // namespace sextant
