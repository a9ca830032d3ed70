// MusicNet label files (Thickstun, Harchaoui, Kakade, "Learning Features of Music from Scratch", 2017): CSV with a
// header, one note a row, times in samples at 44,100 Hz:
// start_time,end_time,instrument,note,start_beat,end_beat,note_value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/events.h"

namespace sextant {

constexpr double musicnet_samples_per_second = 44100;
constexpr int musicnet_velocity = 64;  // the labels have none

bool has_musicnet_header(std::string_view text);

// The notes ordered by start. Columns are found by name, in any order; start_time, end_time and note must be there, the
// others may be missing. Rows may be unsorted, lines may end in CRLF, a byte-order mark is passed over. Throws Error: a
// missing column, a row with too few fields or a value out of range (with the line number), no rows. `name` is for
// messages.
std::vector<Note> parse_musicnet(std::string_view text, const std::string& name);

}  // namespace sextant
