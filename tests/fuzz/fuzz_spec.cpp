// Any text is either parsed as a SPEC or refused with an Error of one line; the canonical text of what is parsed parses
// to the same.
#include <cstdlib>

#include "core/error.h"
#include "positional/spec.h"

namespace {

using namespace sextant;

std::string canonical(const std::vector<TermSpec>& terms) {
  std::string text;
  for (const TermSpec& term : terms) text += (text.empty() ? "" : "+") + term.text();
  return text;
}

// Readers refuse what is no number, and never give one outside the range.
void read_numbers(const TermSpec& term) {
  for (const char* key : {"base", "factor", "jets", "affine", "scale", "order", "values"}) {
    try {
      if (!term.given(key)) continue;
      const double x = term.number(key, -1e6, 1e6);
      if (!(x >= -1e6 && x <= 1e6)) std::abort();
      const int64_t n = term.integer(key, 1, 64);
      if (n < 1 || n > 64) std::abort();
    } catch (const Error&) {
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::vector<TermSpec> terms = parse_spec({reinterpret_cast<const char*>(data), size});
    const std::string text = canonical(terms);
    if (terms.empty() || canonical(parse_spec(text)) != text) std::abort();
    for (const TermSpec& term : terms) read_numbers(term);
  } catch (const Error&) {
  }
  return 0;
}
