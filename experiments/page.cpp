#include "experiments/page.h"

#include <fmt/format.h>

#include <cctype>
#include <filesystem>

#include "core/error.h"
#include "core/file.h"

namespace sextant {

namespace {

constexpr const char* style = R"(
:root { color-scheme: light dark; --line: #d8d8d8; --soft: #666; --back: #fff; --text: #1b1b1b; --code: #f5f5f5; }
@media (prefers-color-scheme: dark) { :root { --line: #3a3a3a; --soft: #aaa; --back: #161616; --text: #e8e8e8; --code: #222; } }
body { margin: 0 auto; padding: 1rem; max-width: 52rem; font: 16px/1.5 system-ui, sans-serif; background: var(--back); color: var(--text); }
h1 { font-size: 1.5rem; line-height: 1.2; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; white-space: nowrap; }
.words td { white-space: normal; } .words td:first-child { min-width: 8rem; }
td.number, th.number { text-align: right; }
figure { margin: 1rem 0; } svg { width: 100%; min-width: 34rem; height: auto; background: #fff; border-radius: .3rem; }
figcaption, .note { color: var(--soft); font-size: .85rem; }
pre { background: var(--code); padding: .7rem; overflow-x: auto; font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere; border-radius: .3rem; }
/* On a phone a row of words is a card, each cell under the head of its column; plots keep a size at which they can be read. */
@media screen and (max-width: 42rem) { .words thead { display: none; } .words tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line); }
 .words td { display: block; border: 0; padding: .15rem 0; overflow-wrap: anywhere; } .words td:empty { display: none; }
 .words td[data-label]::before { content: attr(data-label) ": "; color: var(--soft); } .words td:first-child { font-weight: 600; } }
@media print { :root { --back: #fff; --text: #000; --soft: #444; --line: #bbb; --code: #f5f5f5; } body { max-width: none; padding: 0; font-size: 11pt; }
 figure, table, pre { break-inside: avoid; } h2 { break-after: avoid; } .scroll { overflow: visible; } svg { min-width: 0; } table { font-size: 8.5pt; } }
)";

bool reads_as_number(const std::string& text) {
  return !text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) ||
                           (text.size() > 1 && text[0] == '-' && std::isdigit(static_cast<unsigned char>(text[1]))));
}

const char* cell_class(const Table& table, const std::string& text) {
  return !table.words && reads_as_number(text) ? " class=\"number\"" : "";
}

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string Table::csv() const {
  std::string text;
  const auto line = [&](const std::vector<std::string>& cells) {
    for (size_t i = 0; i < cells.size(); ++i) text += (i == 0 ? "" : ",") + csv_field(cells[i]);
    text += '\n';
  };
  line(header);
  for (const auto& row : rows) line(row);
  return text;
}

std::string Table::markdown() const {
  std::string text;
  const auto line = [&](const std::vector<std::string>& cells, size_t row) {
    for (size_t i = 0; i < cells.size(); ++i)
      text += best.contains({row, i}) ? "| **" + cells[i] + "** " : "| " + cells[i] + " ";
    text += "|\n";
  };
  line(header, rows.size());
  for (size_t i = 0; i < header.size(); ++i) text += "| --- ";
  text += "|\n";
  for (size_t row = 0; row < rows.size(); ++row) line(rows[row], row);
  return text;
}

void Page::heading(std::string_view text) {
  body_ += fmt::format("<h2>{}</h2>\n", html_escaped(text));
}
void Page::paragraph(std::string_view text) {
  body_ += fmt::format("<p>{}</p>\n", html_escaped(text));
}
void Page::code(std::string_view text) {
  body_ += fmt::format("<pre>{}</pre>\n", html_escaped(text));
}

void Page::table(const Table& table, const std::string& csv_name) {
  body_ += fmt::format("<div class=\"scroll\"><table{}><thead><tr>", table.words ? " class=\"words\"" : "");
  for (size_t i = 0; i < table.header.size(); ++i) {
    const std::string below = table.rows.empty() || i >= table.rows[0].size() ? "" : table.rows[0][i];
    body_ += fmt::format("<th{}>{}</th>", cell_class(table, below), html_escaped(table.header[i]));
  }
  body_ += "</tr></thead><tbody>\n";
  for (size_t row = 0; row < table.rows.size(); ++row) {
    body_ += "<tr>";
    for (size_t i = 0; i < table.rows[row].size(); ++i) {
      const std::string &cell = table.rows[row][i], text = html_escaped(cell);
      const std::string& head = i < table.header.size() ? table.header[i] : std::string();
      const std::string label =
          table.words && !head.empty() ? fmt::format(" data-label=\"{}\"", html_escaped(head)) : "";
      body_ += fmt::format("<td{}{}>{}</td>", cell_class(table, cell), label,
                           table.best.contains({row, i}) ? fmt::format("<b>{}</b>", text) : text);
    }
    body_ += "</tr>\n";
  }
  body_ += "</tbody></table></div>\n";
  if (!csv_name.empty()) files_.emplace_back(csv_path(csv_name), table.csv());
}

void Page::plot(const Plot& plot, const std::string& csv_name) {
  const auto picture = draw(plot);
  const std::string note =
      fmt::format("Numbers: {}, beside this page.", std::filesystem::path(csv_path(csv_name)).filename().string());
  if (picture)
    body_ += fmt::format(
        "<figure><div class=\"scroll\" role=\"img\" aria-label=\"{}\">{}</div><figcaption>{}</figcaption></figure>\n",
        html_escaped(description(plot)), *picture, html_escaped(note));
  else
    body_ += fmt::format(
        "<p class=\"note\">{}: not drawn, because gnuplot is not installed (`apt install gnuplot-nox`) or there is "
        "nothing to draw. {}</p>\n",
        html_escaped(plot.title), html_escaped(note));
  files_.emplace_back(csv_path(csv_name), csv(plot));
}

std::string Page::csv_path(const std::string& name) const {
  const std::filesystem::path page(path_);
  return (page.parent_path() / (page.stem().string() + "-" + name + ".csv")).string();
}

std::vector<std::string> Page::write() const {
  require(!std::filesystem::is_directory(path_), "cannot write {}: it is a folder, the page needs a file's name",
          path_);
  std::vector<std::string> written = {path_};
  for (const auto& [path, content] : files_) {
    written.push_back(path);
    write_atomically(path, content);
  }
  write_atomically(path_, fmt::format("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                                      "<meta name=\"viewport\" content=\"width=device-width, "
                                      "initial-scale=1\">\n<title>{}</title>\n<style>{}</style></head>\n"
                                      "<body><h1>{}</h1>\n{}</body></html>\n",
                                      html_escaped(title_), style, html_escaped(title_), body_));
  return written;
}

}  // namespace sextant
