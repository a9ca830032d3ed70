// Reading CSV (RFC 4180), as views into the text.
#pragma once

#include <string_view>
#include <vector>

namespace sextant {

// Takes one line, without its end (LF or CRLF) and without a byte-order mark, from the front of `text`.
std::string_view take_line(std::string_view& text);

// The fields of a line, with quotes and surrounding blanks taken off; a comma inside quotes separates nothing. A
// doubled quote stays doubled.
void split_fields(std::string_view line, std::vector<std::string_view>& fields);

}  // namespace sextant
