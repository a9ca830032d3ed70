#include "data/musicnet.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <tuple>

#include "core/error.h"
#include "data/csv.h"

namespace sextant {
namespace {

constexpr std::array<std::string_view, 3> needed = {"start_time", "end_time", "note"};

// Where the needed columns are; the size of `header` for one that is missing.
std::array<size_t, 3> find_columns(std::string_view line, std::vector<std::string_view>& header) {
  split_fields(line, header);
  std::array<size_t, 3> columns{};
  for (size_t i = 0; i < 3; ++i)
    columns[i] = static_cast<size_t>(std::find(header.begin(), header.end(), needed[i]) - header.begin());
  return columns;
}

}  // namespace

bool has_musicnet_header(std::string_view text) {
  std::vector<std::string_view> header;
  const auto columns = find_columns(take_line(text), header);
  return std::all_of(columns.begin(), columns.end(), [&](size_t column) { return column < header.size(); });
}

std::vector<Note> parse_musicnet(std::string_view text, const std::string& name) {
  std::vector<std::string_view> fields;
  const auto columns = find_columns(take_line(text), fields);
  for (size_t i = 0; i < 3; ++i)
    require(columns[i] < fields.size(),
            "{}: line 1: there is no column '{}'; MusicNet labels have start_time, end_time and note", name, needed[i]);
  std::vector<Note> notes;
  for (int64_t line_number = 2; !text.empty(); ++line_number) {
    const std::string_view line = take_line(text);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    split_fields(line, fields);
    std::array<double, 3> values{};
    for (size_t i = 0; i < 3; ++i) {
      require(columns[i] < fields.size(), "{}: line {}: has {} fields, '{}' is the {}th", name, line_number,
              fields.size(), needed[i], columns[i] + 1);
      const std::string_view field = fields[columns[i]];
      const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), values[i]);
      require(error == std::errc() && end == field.data() + field.size() && std::isfinite(values[i]),
              "{}: line {}: {} is '{}', not a number", name, line_number, needed[i], field);
    }
    const auto [start, end, pitch] = values;
    require(start >= 0 && end >= start && end <= longest_piece_seconds * musicnet_samples_per_second,
            "{}: line {}: a note from sample {} to {}; the first must not be negative nor the second smaller, and both "
            "inside 24 hours",
            name, line_number, start, end);
    require(pitch >= 0 && pitch <= 127 && pitch == std::floor(pitch), "{}: line {}: note {} is not a pitch 0..127",
            name, line_number, pitch);
    notes.push_back({start / musicnet_samples_per_second, end / musicnet_samples_per_second, static_cast<int>(pitch),
                     musicnet_velocity});
  }
  require(!notes.empty(), "{}: there are no notes under the header", name);
  std::stable_sort(notes.begin(), notes.end(), [](const Note& a, const Note& b) {
    return std::tie(a.start, a.pitch) < std::tie(b.start, b.pitch);
  });
  return notes;
}

}  // namespace sextant
