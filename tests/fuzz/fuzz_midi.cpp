// Any bytes are either read or refused with an Error; what is read survives tokens -> MIDI -> tokens.
#include <cstdlib>

#include "core/error.h"
#include "data/midi.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sextant;
  for (const bool pedal : {false, true}) {
    try {
      MidiFile file = parse_midi({data, size}, "fuzz");
      const auto tokens = encode_events(midi_notes(file, {pedal}, "fuzz"));
      const auto written = write_midi(decode_events(tokens));
      MidiFile again = parse_midi(written, "again");
      if (!again.warnings.empty() || encode_events(midi_notes(again, {}, "again")) != tokens) std::abort();
    } catch (const Error&) {
    }
  }
  return 0;
}
