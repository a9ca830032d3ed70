#include "data/csv.h"

namespace sextant {

std::string_view take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// Where the field at the front of `line` ends: the first comma outside quotes.
static size_t field_end(std::string_view line) {
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') quoted = !quoted;
    if (line[i] == ',' && !quoted) return i;
  }
  return line.size();
}

void split_fields(std::string_view line, std::vector<std::string_view>& fields) {
  fields.clear();
  for (bool more = true; more;) {
    const size_t end = field_end(line);
    std::string_view field = line.substr(0, end);
    while (field.starts_with(' ') || field.starts_with('\t')) field.remove_prefix(1);
    while (field.ends_with(' ') || field.ends_with('\t')) field.remove_suffix(1);
    if (field.size() >= 2 && field.starts_with('"') && field.ends_with('"')) field = field.substr(1, field.size() - 2);
    fields.push_back(field);
    more = end < line.size();
    if (more) line.remove_prefix(end + 1);
  }
}

}  // namespace sextant
