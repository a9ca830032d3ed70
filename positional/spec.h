// The SPEC language: terms joined by `+`, each `name` or `name(key=value,...)`.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sextant {

// A key a strategy takes.
struct SpecKey {
  std::string name;
  std::string default_value;  // as text; "" means derived from the model (documented in `help`)
  std::string help;
  std::vector<std::string> choices;  // allowed words; empty for numbers
};

// One parsed term: its strategy's name and every key with its value, the given and the default ones.
class TermSpec {
 public:
  TermSpec(std::string name, std::vector<std::pair<std::string, std::string>> values)
      : name_(std::move(name)), values_(std::move(values)) {}

  const std::string& name() const { return name_; }
  bool given(std::string_view key) const;  // not empty
  const std::string& word(std::string_view key) const;
  // Throw Error naming term, key and value when it is no number or outside [low, high].
  double number(std::string_view key, double low, double high) const;
  int64_t integer(std::string_view key, int64_t low, int64_t high) const;
  bool flag(std::string_view key) const;  // 0 or 1
  std::string text() const;               // canonical, all keys that have a value

 private:
  std::string name_;
  std::vector<std::pair<std::string, std::string>> values_;
};

// Splits and checks a SPEC against the registered strategies. Throws Error: unknown name or key (with the nearest right
// one), a key given twice, a word that is no choice, unbalanced parentheses, an empty term.
std::vector<TermSpec> parse_spec(std::string_view spec);

// The candidate with the least edit distance to `word`.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace sextant
