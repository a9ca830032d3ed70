#include "positional/spec.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "positional/strategy.h"

namespace sextant {

namespace {

// Strict: the whole text must be one finite decimal number, as JSON and CSV have it.
bool read_number(const std::string& text, double& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && std::isfinite(value);
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// "did you mean 'alibi'? known: ..."
std::string suggestion(std::string_view word, const std::vector<std::string>& known) {
  if (known.empty()) return "it takes none";
  return fmt::format("did you mean '{}'? known: {}", nearest(word, known), joined(known));
}

const StrategyInfo& find_strategy(std::string_view name, size_t offset) {
  std::vector<std::string> names;
  for (const StrategyInfo& info : strategies()) {
    if (info.name == name) return info;
    names.push_back(info.name);
  }
  fail("position: unknown strategy '{}' at offset {}, {}", name, offset, suggestion(name, names));
}

const SpecKey& find_key(const StrategyInfo& info, std::string_view key, size_t offset) {
  std::vector<std::string> names;
  for (const SpecKey& known : info.keys) {
    if (known.name == key) return known;
    names.push_back(known.name);
  }
  fail("position: '{}' has no key '{}' (at offset {}), {}", info.name, key, offset, suggestion(key, names));
}

// Reads a SPEC from left to right; offset() is where an error is.
class SpecReader {
 public:
  explicit SpecReader(std::string_view text) : text_(text) {}

  std::vector<TermSpec> terms() {
    std::vector<TermSpec> result;
    do result.push_back(term());
    while (take('+'));
    if (!at_end())
      fail("position: unexpected '{}' at offset {} of '{}': terms are joined by '+'", text_[at_], at_, text_);
    return result;
  }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool at_end() {
    skip_spaces();
    return at_ == text_.size();
  }
  bool take(char wanted) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  // Everything up to one of the language's own characters.
  std::string_view word() {
    skip_spaces();
    const size_t start = at_;
    // A sign after an exponent's e belongs to the number: 1e+4.
    while (at_ < text_.size() && (std::string_view("+(),=").find(text_[at_]) == std::string_view::npos ||
                                  (text_[at_] == '+' && exponent_sign(start))))
      ++at_;
    std::string_view found = text_.substr(start, at_ - start);
    while (!found.empty() && std::isspace(static_cast<unsigned char>(found.back()))) found.remove_suffix(1);
    return found;
  }
  bool exponent_sign(size_t start) const {
    return at_ >= start + 2 && (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E') &&
           std::isdigit(static_cast<unsigned char>(text_[at_ - 2])) && at_ + 1 < text_.size() &&
           std::isdigit(static_cast<unsigned char>(text_[at_ + 1]));
  }

  TermSpec term() {
    skip_spaces();
    const size_t start = at_;
    const std::string_view name = word();
    if (name.empty()) fail("position: empty term at offset {} of '{}', expected name(key=value,...)+...", start, text_);
    const StrategyInfo& info = find_strategy(name, start);
    std::vector<std::pair<std::string, std::string>> given;
    if (take('(') && !take(')')) {
      do given.push_back(key_and_value(info, given));
      while (take(','));
      if (!take(')'))
        fail("position: '(' of '{}' is not closed at offset {} of '{}', expected ',' or ')'", name, at_, text_);
    }
    std::vector<std::pair<std::string, std::string>> values;
    for (const SpecKey& key : info.keys) {
      const auto found =
          std::find_if(given.begin(), given.end(), [&](const auto& pair) { return pair.first == key.name; });
      values.emplace_back(key.name, found == given.end() ? key.default_value : found->second);
    }
    return {info.name, std::move(values)};
  }

  std::pair<std::string, std::string> key_and_value(const StrategyInfo& info,
                                                    const std::vector<std::pair<std::string, std::string>>& given) {
    skip_spaces();
    const size_t start = at_;
    const std::string key(word());
    if (key.empty())
      fail("position: '{}' lacks a key at offset {} of '{}', expected key=value", info.name, start, text_);
    const SpecKey& known = find_key(info, key, start);
    for (const auto& [earlier, value] : given)
      require(earlier != key, "position: '{}' has key '{}' twice, the second time at offset {}", info.name, key, start);
    if (!take('='))
      fail("position: key '{}' of '{}' lacks '=' at offset {}, expected {}=value", key, info.name, at_, key);
    const size_t value_start = at_;
    std::string value(word());
    if (value.empty())
      fail("position: key '{}' of '{}' has no value at offset {}, expected {}", key, info.name, value_start,
           known.help);
    if (!known.choices.empty() && std::find(known.choices.begin(), known.choices.end(), value) == known.choices.end())
      fail("position: {}={} of '{}' (at offset {}): {}", key, value, info.name, value_start,
           suggestion(value, known.choices));
    return {key, std::move(value)};
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  // Levenshtein's distance, one row of its table at a time; ROPE is rope.
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  const auto distance = [&](std::string_view other) {
    std::vector<size_t> row(other.size() + 1);
    for (size_t j = 0; j <= other.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= other.size(); ++j) {
        const size_t replaced = diagonal + (lower(word[i - 1]) == lower(other[j - 1]) ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
      }
    }
    return row.back();
  };
  std::string best;
  size_t least = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    if (const size_t d = distance(candidate); d < least) {
      least = d;
      best = candidate;
    }
  }
  return best;
}

bool TermSpec::given(std::string_view key) const {
  return !word(key).empty();
}

const std::string& TermSpec::word(std::string_view key) const {
  for (const auto& [name, value] : values_)
    if (name == key) return value;
  throw std::logic_error(fmt::format("strategy '{}' reads key '{}', which it does not declare", name_, key));
}

double TermSpec::number(std::string_view key, double low, double high) const {
  const std::string& text = word(key);
  double value = 0;
  require(read_number(text, value) && value >= low && value <= high,
          "position: {}={} of '{}', must be a number from {} to {}", key, text, name_, low, high);
  return value;
}

int64_t TermSpec::integer(std::string_view key, int64_t low, int64_t high) const {
  const std::string& text = word(key);
  double value = 0;
  require(read_number(text, value) && value == std::floor(value) && value >= static_cast<double>(low) &&
              value <= static_cast<double>(high),
          "position: {}={} of '{}', must be a whole number from {} to {}", key, text, name_, low, high);
  return static_cast<int64_t>(value);
}

bool TermSpec::flag(std::string_view key) const {
  const std::string& text = word(key);
  require(text == "0" || text == "1", "position: {}={} of '{}', must be 0 or 1", key, text, name_);
  return text == "1";
}

std::string TermSpec::text() const {
  std::string inside;
  for (const auto& [key, value] : values_)
    if (!value.empty()) inside += (inside.empty() ? "" : ",") + key + "=" + value;
  return inside.empty() ? name_ : name_ + "(" + inside + ")";
}

std::vector<TermSpec> parse_spec(std::string_view spec) {
  return SpecReader(spec).terms();
}

}  // namespace sextant
