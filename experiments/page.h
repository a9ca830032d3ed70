// One self-contained HTML page: text, tables and plots, readable on a phone and in print, without scripts or anything
// fetched. Beside it go the numbers of each plot as CSV.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "experiments/plot.h"

namespace sextant {

struct Table {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;     // cells that read as numbers are set to the right,
  bool words = false;                             // unless this is set
  std::set<std::pair<size_t, size_t>> best = {};  // row and column of cells to be marked
  std::string csv() const;
  std::string markdown() const;
};

class Page {
 public:
  // `path`: where it will be written.
  Page(std::string path, std::string title) : path_(std::move(path)), title_(std::move(title)) {}

  // Text is escaped; nothing given here is taken as markup.
  void heading(std::string_view text);
  void paragraph(std::string_view text);
  void code(std::string_view text);
  void table(const Table& table, const std::string& csv_name = "");  // with a name: also as CSV beside the page
  void plot(const Plot& plot, const std::string& csv_name);          // says so where gnuplot is missing

  // The page and the CSVs beside it, named STEM-NAME.csv; each written atomically. Returns all paths, the page first.
  std::vector<std::string> write() const;

 private:
  std::string csv_path(const std::string& name) const;

  std::string path_, title_, body_;
  std::vector<std::pair<std::string, std::string>> files_;  // path, content
};

std::string html_escaped(std::string_view text);

}  // namespace sextant
