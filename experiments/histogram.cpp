#include "experiments/histogram.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "data/events.h"

namespace sextant {

namespace {

int64_t sum(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

int64_t used(std::span<const int64_t> counts) {
  return std::ranges::count_if(counts, [](int64_t count) { return count > 0; });
}

double percent(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string byte_name(size_t byte) {
  if (byte == ' ') return "space";
  if (byte == '\n') return "\\n";
  if (byte == '\t') return "\\t";
  if (byte == '\r') return "\\r";
  return byte > 32 && byte < 127 ? std::string(1, static_cast<char>(byte)) : fmt::format("0x{:02x}", byte);
}

std::string bytes_histogram(std::span<const int64_t> counts) {
  constexpr size_t columns = 4;
  std::vector<size_t> order(counts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return counts[a] > counts[b]; });
  const int64_t all = sum(counts);
  const size_t shown = static_cast<size_t>(used(counts)), rows = (shown + columns - 1) / columns;
  std::string text;
  for (size_t row = 0; row < rows; ++row) {
    for (size_t i = row; i < shown; i += rows)
      text += fmt::format("  {:>5} {:>11} {:>6.3f} %", byte_name(order[i]), counts[order[i]],
                          percent(counts[order[i]], all));
    text += '\n';
  }
  return text;
}

struct Range {
  std::string name;
  int32_t first, last;  // tokens, both inside
};

// One line a range that occurs.
std::string bars(const std::string& title, std::span<const int64_t> counts, const std::vector<Range>& ranges) {
  constexpr double widest = 50;
  std::vector<int64_t> sums;
  for (const Range& range : ranges)
    sums.push_back(
        sum(counts.subspan(static_cast<size_t>(range.first), static_cast<size_t>(range.last - range.first + 1))));
  const int64_t most = std::ranges::max(sums), all = sum(sums);
  if (most == 0) return "";
  std::string text = title + "\n";
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (sums[i] == 0) continue;
    const double length = widest * static_cast<double>(sums[i]) / static_cast<double>(most);
    text += fmt::format("  {:<14} {:>11} {:>6.2f} %  {}\n", ranges[i].name, sums[i], percent(sums[i], all),
                        std::string(std::max<size_t>(1, static_cast<size_t>(length)), '#'));
  }
  return text;
}

std::vector<Range> octaves() {
  std::vector<Range> ranges;
  for (int pitch = 0; pitch < 128; pitch += 12) {
    const int last = std::min(127, pitch + 11);
    ranges.push_back(
        {fmt::format("{}..{}", pitch_name(pitch), pitch_name(last)), event_note_on + pitch, event_note_on + last});
  }
  return ranges;
}

std::vector<Range> shift_ranges() {
  std::vector<Range> ranges;
  int32_t first = 1;  // steps of 10 ms
  for (const int32_t last : {1, 2, 5, 10, 20, 50, 99, 100}) {
    const std::string name =
        first == last ? fmt::format("{} ms", 10 * last) : fmt::format("{}..{} ms", 10 * first, 10 * last);
    ranges.push_back({name, event_time_shift + first - 1, event_time_shift + last - 1});
    first = last + 1;
  }
  return ranges;
}

// Four bins of four velocities each.
std::vector<Range> velocity_ranges() {
  std::vector<Range> ranges;
  for (int32_t bin = 0; bin < velocity_bins; bin += 4)
    ranges.push_back(
        {fmt::format("{}..{}", std::max(1, 4 * bin), 4 * bin + 15), event_velocity + bin, event_velocity + bin + 3});
  return ranges;
}

std::string events_histogram(std::span<const int64_t> counts) {
  const int64_t all = sum(counts);
  std::string text;
  for (const EventClass& of : event_classes) {
    const auto own = counts.subspan(static_cast<size_t>(of.first), static_cast<size_t>(of.tokens));
    text += fmt::format("  {:<14} {:>11} {:>6.2f} %  {} of {} tokens used\n", of.name, sum(own), percent(sum(own), all),
                        used(own), of.tokens);
  }
  return text + bars("pitches of note-ons, by octave", counts, octaves()) +
         bars("time shifts", counts, shift_ranges()) + bars("velocities, where they change", counts, velocity_ranges());
}

}  // namespace

std::string histogram_text(TokenKind kind, std::span<const int64_t> counts) {
  return kind == TokenKind::events ? events_histogram(counts) : bytes_histogram(counts);
}

}  // namespace sextant
