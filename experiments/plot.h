// Plots of lines and of bars as SVG, drawn by gnuplot where it is installed.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sextant {

struct Series {
  std::string label;  // empty: not in the legend
  std::vector<double> x, y;
  std::vector<double> spread = {};  // half the height of an error bar at each point; empty: none
  bool points = false;              // marks at the points, for few of them
  bool in_legend = true;            // false: what it is stands in the text or follows from its look
  int look = -1;                    // which colour and mark; -1: the next one. For series that belong together
  bool faint = false;               // thin and pale: turns too often to be followed, and is a background to others
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<Series> series;
  bool log_x = false, log_y = false;  // x by powers of 2, y by powers of 10
  std::optional<double> mark_x = {};  // a vertical line
  std::string mark_label = "";
  std::optional<double> y_top = {};          // what lies above is cut off
  std::vector<std::string> categories = {};  // bars in place of lines: a group for each, of y[i] of every series,
  bool stacked = false;                      // one upon the other or side by side
};

constexpr int black_look = 6;

// What a plot shows, in words, for those who cannot see it.
std::string description(const Plot& plot);

// An <svg> element, to be put into a page or, alone, into a file; nothing when gnuplot is not installed.
// Throws Error (environment) when gnuplot is there and fails.
std::optional<std::string> draw(const Plot& plot);
std::optional<std::string> draw(const std::vector<Plot>& panels);  // one below another

// Throws Error when --plot names a file of another kind, such as roll.png.
void require_svg_name(const std::string& path);

// series,x,y[,spread], one line a point.
std::string csv(const Plot& plot);

// At most `most` points of a series, each the mean of a run of neighbours: for curves of many steps.
Series thinned(const Series& series, size_t most);

}  // namespace sextant
