// Any text is either parsed as a SPEC or refused with an Error of one line; the canonical text of what is parsed parses
// to the same.
#include <cstdlib>

#include "core/error.h"
#include "positional/spec.h"
#include "positional/strategy.h"

namespace {

using namespace sextant;

std::string canonical(const std::vector<TermSpec>& terms) {
  std::string text;
  for (const TermSpec& term : terms) text += (text.empty() ? "" : "+") + term.text();
  return text;
}

const std::vector<SpecKey>& keys_of(const TermSpec& term) {
  for (const StrategyInfo& info : strategies())
    if (info.name == term.name()) return info.keys;
  std::abort();
}

// Readers refuse what is no decimal number, and never give one outside the range.
void read_numbers(const TermSpec& term) {
  for (const SpecKey& key : keys_of(term)) {
    if (!term.given(key.name)) continue;
    const std::string& text = term.word(key.name);
    try {
      const double x = term.number(key.name, -1e6, 1e6);
      if (!(x >= -1e6 && x <= 1e6) || text.find_first_not_of("0123456789.eE+-") != std::string::npos) std::abort();
      const int64_t n = term.integer(key.name, 1, 64);
      if (n < 1 || n > 64 || static_cast<double>(n) != x) std::abort();
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
