#include "experiments/plot.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/file.h"
#include "data/process.h"

namespace sextant {

namespace {

// Told apart by colour-blind readers (Okabe & Ito), and by point shape and dash in print.
constexpr std::array<const char*, 8> colours = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                "#56B4E9", "#E69F00", "#000000", "#8C6D31"};
constexpr std::array<int, 8> shapes = {7, 5, 9, 11, 13, 6, 4, 8};

std::string quoted(const std::string& text) {  // a gnuplot string in single quotes
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("''") : std::string(1, c == '\n' ? ' ' : c);
  return result + "'";
}

std::string titled(const Series& series) {
  return series.label.empty() || !series.in_legend ? "notitle" : "title " + quoted(series.label);
}

std::string data_block(const Series& series, size_t number) {
  std::string block = fmt::format("$data{} << EOD\n", number);
  for (size_t i = 0; i < series.x.size(); ++i) {
    const double spread = series.spread.empty() ? 0 : series.spread[i];
    block += std::isfinite(series.y[i]) ? fmt::format("{} {} {}\n", series.x[i], series.y[i], spread) : "\n";
  }
  return block + "EOD\n";
}

std::string x_of(const Plot& plot, const Series& series, size_t i) {
  return plot.categories.empty() ? fmt::format("{}", series.x[i]) : csv_field(plot.categories[i]);
}

size_t look_of(const Series& series, size_t number) {
  return series.look >= 0 ? static_cast<size_t>(series.look) : number;
}

std::string style(const Series& series, size_t number) {
  const size_t look = look_of(series, number) % colours.size();
  const int dash = 1 + static_cast<int>(look_of(series, number) / colours.size()) % 4;
  const std::string line = series.faint ? fmt::format("lc rgb '#90{}' lw 0.7 dt {}", colours[look] + 1, dash)
                                        : fmt::format("lc rgb '{}' lw 2 dt {}", colours[look], dash);
  return series.points ? fmt::format("with linespoints {} pt {} ps 0.7", line, shapes[look]) : "with lines " + line;
}

// The part of the script that draws bars.
std::string bars(const Plot& plot) {
  std::string text = fmt::format("set style data histograms\nset style histogram {}\nset style fill solid 0.9 border\n",
                                 plot.stacked ? "rowstacked" : "clustered gap 1");
  text += "set boxwidth 0.85 relative\nset xtics rotate by -35 scale 0\nunset xlabel\n";
  text += fmt::format("set yrange [0:{}]\nset key horizontal Left reverse width 0 samplen 1\n$data << EOD\n",
                      plot.y_top ? fmt::format("{}", *plot.y_top) : "*");
  for (size_t i = 0; i < plot.categories.size(); ++i) {
    std::string category = plot.categories[i];
    std::ranges::replace(category, '"', '\'');  // ends a string in gnuplot's data
    text += fmt::format("\"{}\"", category);
    for (const Series& series : plot.series)
      text += std::isfinite(series.y[i]) ? fmt::format(" {}", series.y[i]) : " 0";
    text += "\n";
  }
  text += "EOD\nplot ";
  for (size_t i = 0; i < plot.series.size(); ++i)
    text += fmt::format("{}$data using {}{} title {} lc rgb '{}'", i == 0 ? "" : ", ", i + 2, i == 0 ? ":xtic(1)" : "",
                        quoted(plot.series[i].label), colours[look_of(plot.series[i], i) % colours.size()]);
  return text + "\n";
}

std::string panel(const Plot& plot) {
  // The legend below, in columns that a phone's width holds; labels as they are, not marked up.
  std::string text = "set key below center horizontal maxrows 8 width 1 samplen 2 font ',13'\n";
  text += "set border 3 lc rgb '#666666'\nset tics nomirror out scale 0.6\nset grid lc rgb '#e4e4e4' lt 1 lw 1\n";
  text += fmt::format("set title {} font ',15'\nset xlabel {}.\"\\n \" offset 0,0.5\nset ylabel {}\n",
                      quoted(plot.title), quoted(plot.x_label), quoted(plot.y_label));
  if (!plot.categories.empty()) return text + bars(plot);
  // To the last point, not on to the next tic, and a little further for its error bar.
  text += "set autoscale xfix\nset offsets graph 0.02, graph 0.02, 0, 0\n";
  if (plot.log_x) text += "set logscale x 2\nset format x '%.0f'\n";
  if (plot.log_y) text += "set logscale y 10\nset format y '%g'\n";
  if (plot.y_top) text += fmt::format("set yrange [*:{}]\n", *plot.y_top);
  if (plot.mark_x) {
    text +=
        fmt::format("set arrow 1 from first {0}, graph 0 to first {0}, graph 1 nohead lc rgb '#888888' lw 1.5 dt 2\n",
                    *plot.mark_x);
    text += fmt::format("set label 1 {} at first {}, graph 1.04 center tc rgb '#666666' font ',12'\n",
                        quoted(plot.mark_label), *plot.mark_x);
  }
  // Error bars first, so that the marks lie on top of them.
  std::string parts;
  const auto add = [&](const std::string& part) { parts += (parts.empty() ? "plot " : ", ") + part; };
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const Series& series = plot.series[i];
    text += data_block(series, i);
    if (!series.spread.empty())
      add(fmt::format("$data{} using 1:2:3 with yerrorbars lc rgb '{}' pt -1 notitle", i,
                      colours[look_of(series, i) % colours.size()]));
  }
  for (size_t i = 0; i < plot.series.size(); ++i)
    add(fmt::format("$data{} using 1:2 {} {}", i, style(plot.series[i], i), titled(plot.series[i])));
  return text + parts + "\n";
}

std::string script(const std::vector<Plot>& panels) {
  std::string text = fmt::format(
      "set terminal svg size 600,{} dynamic enhanced font 'sans-serif,14' background '#ffffff'\n"
      "set termoption noenhanced\n",
      420 * panels.size());
  if (panels.size() == 1) return text + panel(panels[0]);
  text += fmt::format("set multiplot layout {},1\n", panels.size());
  for (const Plot& plot : panels) text += "reset\n" + panel(plot);
  return text + "unset multiplot\n";
}

// A folder of our own under the system's for temporaries, removed again.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    name_ = (std::filesystem::temp_directory_path() / "sextant-plot-XXXXXX").string();
    if (::mkdtemp(name_.data()) == nullptr) fail_environment("cannot make a temporary folder {}", name_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(name_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

bool program_in_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  const std::string folders = path == nullptr ? "" : path;
  for (size_t begin = 0; begin <= folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    if (::access((folders.substr(begin, end - begin) + "/" + program).c_str(), X_OK) == 0) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

void require_svg_name(const std::string& path) {
  const std::filesystem::path name(path);
  require(!name.has_extension() || name.extension() == ".svg", "--plot {}: plots are SVG files, such as {}.svg", path,
          name.stem().string());
}

std::optional<std::string> draw(const Plot& plot) {
  return draw(std::vector{plot});
}

std::optional<std::string> draw(const std::vector<Plot>& panels) {
  const bool anything = std::ranges::any_of(panels, [](const Plot& plot) {
    return std::ranges::any_of(plot.series, [](const Series& series) {
      return std::ranges::any_of(series.y, [](double y) { return std::isfinite(y); });
    });
  });
  if (!anything || !program_in_path("gnuplot")) return std::nullopt;
  const TemporaryFolder folder;
  const std::string file = folder.name() + "/plot.gnuplot";
  write_atomically(file, script(panels));
  const ProgramResult result = run_program({"gnuplot", file});
  const size_t begin = result.output.find("<svg");
  if (result.status != 0 || begin == std::string::npos)
    fail_environment("gnuplot failed (exit status {}) on the plot '{}'", result.status, panels[0].title);
  return result.output.substr(begin);
}

std::string description(const Plot& plot) {
  std::string text =
      fmt::format("{}: {}: {}", plot.categories.empty() ? "Line plot" : "Bars", plot.title, plot.y_label);
  if (plot.categories.empty()) text += fmt::format(" against {}", plot.x_label);
  for (const Series& series : plot.series) {
    if (series.y.empty()) continue;
    text += fmt::format("; {}", series.label);
    if (plot.categories.empty())
      text += fmt::format(" from {:.4g} to {:.4g}", series.y.front(), series.y.back());
    else
      for (size_t i = 0; i < plot.categories.size(); ++i)
        text += fmt::format("{} {} {:.3g}", i == 0 ? ":" : ",", plot.categories[i], series.y[i]);
  }
  return text + ".";
}

std::string csv(const Plot& plot) {
  const bool spread = std::ranges::any_of(plot.series, [](const Series& series) { return !series.spread.empty(); });
  std::string text = spread ? "series,x,y,spread\n" : "series,x,y\n";
  for (const Series& series : plot.series)
    for (size_t i = 0; i < series.y.size(); ++i) {
      text += fmt::format("{},{},{}", csv_field(series.label), x_of(plot, series, i), series.y[i]);
      if (spread) text += series.spread.empty() ? "," : fmt::format(",{}", series.spread[i]);
      text += '\n';
    }
  return text;
}

Series thinned(const Series& series, size_t most) {
  const size_t count = series.x.size(), run = (count + most - 1) / std::max<size_t>(1, most);
  if (run <= 1) return series;
  Series result{.label = series.label,
                .x = {},
                .y = {},
                .points = series.points,
                .in_legend = series.in_legend,
                .look = series.look};
  for (size_t begin = 0; begin < count; begin += run) {
    const size_t end = std::min(count, begin + run);
    double x = 0, y = 0;
    for (size_t i = begin; i < end; ++i) x += series.x[i], y += series.y[i];
    result.x.push_back(x / static_cast<double>(end - begin));
    result.y.push_back(y / static_cast<double>(end - begin));
  }
  return result;
}

}  // namespace sextant
