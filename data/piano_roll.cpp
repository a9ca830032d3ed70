// A piano roll as SVG, written directly.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "data/statistics.h"

namespace sextant {
namespace {

constexpr double left = 48, right = 16, top = 32, bottom = 36;  // margins, pixels
constexpr double pixels_per_pitch = 5, roll_width = 1100;

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

// 1, 2 or 5 times a power of ten, so that the axis has at most 12 ticks.
double tick_seconds(double duration) {
  double power = std::pow(10, std::floor(std::log10(duration / 12)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power * 12 >= duration) return factor * power;
  return 10 * power;
}

}  // namespace

std::string piano_roll_svg(std::span<const Note> notes, const std::string& title) {
  require(!notes.empty(), "{}: there are no notes to draw", title);
  double duration = 0;
  int low = 127, high = 0;
  for (const Note& note : notes) {
    duration = std::max(duration, note.end);
    low = std::min(low, note.pitch);
    high = std::max(high, note.pitch);
  }
  low = std::max(0, low - 2), high = std::min(127, high + 2);
  const double height = (high - low + 1) * pixels_per_pitch;
  const auto x_of = [&](double seconds) { return left + seconds / duration * roll_width; };
  const auto y_of = [&](int pitch) { return top + (high - pitch) * pixels_per_pitch; };

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n"
      "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"white\"/>\n<text x=\"{2}\" y=\"20\" "
      "font-size=\"13\">{3}</text>\n",
      left + roll_width + right, top + height + bottom, left, escape(title));
  for (int pitch = (low + 11) / 12 * 12; pitch <= high; pitch += 12)
    svg +=
        fmt::format("<path d=\"M{:.1f} {:.1f}h{:.1f}\" stroke=\"#ccc\"/><text x=\"8\" y=\"{:.1f}\">C{}</text>\n", left,
                    y_of(pitch) + pixels_per_pitch, roll_width, y_of(pitch) + pixels_per_pitch, pitch / 12 - 1);
  const double tick = tick_seconds(duration);
  for (int i = 0; i * tick <= duration; ++i)
    svg += fmt::format(
        "<path d=\"M{0:.1f} {1:.1f}v4\" stroke=\"#444\"/><text x=\"{0:.1f}\" y=\"{2:.1f}\" "
        "text-anchor=\"middle\">{3:g} s</text>\n",
        x_of(i * tick), top + height, top + height + 18, i * tick);
  for (const Note& note : notes)
    svg += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"#1f4e99\" "
        "fill-opacity=\"{:.2f}\"/>\n",
        x_of(note.start), y_of(note.pitch), std::max(0.5, x_of(note.end) - x_of(note.start)), pixels_per_pitch - 0.5,
        0.3 + 0.7 * note.velocity / 127);
  return svg + "</svg>\n";
}

}  // namespace sextant
