#include "experiments/command.h"

// An option's value is taken whole: SPECs and lists hold commas.
#define CXXOPTS_VECTOR_DELIMITER '\0'
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cxxopts.hpp>

#include "core/error.h"
#include "positional/spec.h"

namespace sextant {

namespace {

const std::vector<OptionInfo>& common_options() {
  static const std::vector<OptionInfo> options = {
      {"threads", "N", "", "threads to use (default: all of the machine's); results have the same bits for any number"},
      {"seed", "S", "1", "seed of everything random"},
      flag_option("json", "one JSON object on stdout, everything for people on stderr"),
      flag_option("quiet", "nothing for people"),
      flag_option("help", "this text"),
  };
  return options;
}

std::vector<Command>& registry() {
  static std::vector<Command> all;
  return all;
}

// cxxopts puts the name at fault between typographic quotes.
std::string name_at_fault(const std::string& message) {
  const std::string left = "\u2018", right = "\u2019";
  const size_t begin = message.find(left), end = message.find(right);
  if (begin == std::string::npos || end == std::string::npos) return message;
  return message.substr(begin + left.size(), end - begin - left.size());
}

std::vector<std::string> option_names(const Command& command) {
  std::vector<std::string> names;
  for (const OptionInfo& option : command.options) names.push_back(option.name);
  for (const OptionInfo& option : common_options()) names.push_back(option.name);
  return names;
}

cxxopts::ParseResult parse_options(const Command& command, int argc, const char* const* argv) {
  cxxopts::Options parser(command.name);
  auto add = parser.add_options();
  const auto add_all = [&](const std::vector<OptionInfo>& options) {
    for (const OptionInfo& option : options)
      option.value.empty() ? add(option.name, "") : add(option.name, "", cxxopts::value<std::vector<std::string>>());
  };
  add_all(command.options);
  add_all(common_options());
  try {
    return parser.parse(argc, argv);
  } catch (const cxxopts::exceptions::no_such_option& error) {
    const std::string name = name_at_fault(error.what());
    fail("there is no option --{}; the nearest is --{}", name, nearest(name, option_names(command)));
  } catch (const cxxopts::exceptions::missing_argument& error) {
    fail("--{} needs a value", name_at_fault(error.what()));
  } catch (const cxxopts::exceptions::invalid_option_syntax& error) {
    fail("'{}' is no option: options are written --name value", name_at_fault(error.what()));
  } catch (const cxxopts::exceptions::incorrect_argument_type& error) {
    fail("'{}' is no value for a switch, which takes none", name_at_fault(error.what()));
  }
}

void check_positionals(const Command& command, const std::vector<std::string>& given) {
  const size_t required = static_cast<size_t>(
      std::ranges::count_if(command.positionals, [](const PositionalInfo& info) { return info.required; }));
  if (given.size() < required) {
    const PositionalInfo& missing = command.positionals[given.size()];
    fail("{} is missing: {}", missing.name, missing.help);
  }
  const bool open = !command.positionals.empty() && command.positionals.back().repeated;
  if (!open && given.size() > command.positionals.size())
    fail("'{}' is one argument too many; see sextant {} --help", given[command.positionals.size()], command.name);
}

std::string quoted(const std::string& word) {
  const bool plain = !word.empty() && word.find_first_of(" \t\n'\"\\$`(){}[]*?!&|;<>~#") == std::string::npos;
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string range_text(double low, double high) {
  if (std::isinf(low) && std::isinf(high)) return "";
  if (std::isinf(high)) return fmt::format(" of at least {}", low);
  return fmt::format(" between {} and {}", low, high);
}

std::string range_text(int64_t low, int64_t high) {
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  if (high == most) return low == std::numeric_limits<int64_t>::min() ? "" : fmt::format(" of at least {}", low);
  return fmt::format(" between {} and {}", low, high);
}

void append_options(std::string& text, const std::vector<OptionInfo>& options) {
  for (const OptionInfo& option : options) {
    const std::string left =
        option.value.empty() ? "--" + option.name : fmt::format("--{} {}", option.name, option.value);
    const std::string given = option.default_value.empty() ? "" : fmt::format(" (default: {})", option.default_value);
    text += fmt::format("  {:<24} {}{}\n", left, option.help, given);
  }
}

}  // namespace

int64_t parse_integer(const std::string& text, const std::string& what, int64_t low, int64_t high) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  bool good = error == std::errc() && stop == end;
  if (!good) {  // 5e6, which people write
    double real = 0;
    const auto [real_stop, real_error] = std::from_chars(text.data(), end, real);
    good = real_error == std::errc() && real_stop == end && std::abs(real) < 9e15 && real == std::floor(real);
    if (good) value = static_cast<int64_t>(real);
  }
  require(good && value >= low && value <= high, "{}: '{}' is not an integer{}", what, text, range_text(low, high));
  return value;
}

double parse_number(const std::string& text, const std::string& what, double low, double high) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  require(error == std::errc() && stop == end && std::isfinite(value) && value >= low && value <= high,
          "{}: '{}' is not a number{}", what, text, range_text(low, high));
  return value;
}

const std::string& Arguments::text(const std::string& option) const {
  const auto found = values_.find(option);
  return found == values_.end() ? defaults_.at(option) : found->second.back();
}

std::vector<std::string> Arguments::texts(const std::string& option) const {
  const auto found = values_.find(option);
  if (found != values_.end()) return found->second;
  const std::string& fallback = defaults_.at(option);
  return fallback.empty() ? std::vector<std::string>{} : std::vector<std::string>{fallback};
}

int64_t Arguments::integer(const std::string& option, int64_t low, int64_t high) const {
  return parse_integer(text(option), "--" + option, low, high);
}

double Arguments::number(const std::string& option, double low, double high) const {
  return parse_number(text(option), "--" + option, low, high);
}

std::vector<int64_t> Arguments::integers(const std::string& option, int64_t low, int64_t high) const {
  const std::string& list = text(option);
  std::vector<int64_t> values;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    values.push_back(parse_integer(list.substr(begin, end - begin), "--" + option, low, high));
    begin = end + 1;
  }
  return values;
}

const std::string& Arguments::positional(size_t place) const {
  static const std::string none;
  return place < positionals_.size() ? positionals_[place] : none;
}

uint64_t Arguments::seed() const {
  return static_cast<uint64_t>(integer("seed", 0));
}

void Arguments::print_json(const nlohmann::json& object) const {
  if (json() && first_rank()) fmt::print("{}\n", object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

Arguments Command::parse(int argc, const char* const* argv) const {
  const cxxopts::ParseResult parsed = parse_options(*this, argc, argv);
  Arguments arguments;
  for (const auto& list : {options, common_options()})
    for (const OptionInfo& option : list) arguments.defaults_[option.name] = option.default_value;
  for (const cxxopts::KeyValue& entry : parsed.arguments()) arguments.values_[entry.key()].push_back(entry.value());
  for (const OptionInfo& option : options)
    if (option.value.empty() && arguments.given(option.name) && arguments.text(option.name) == "false")
      arguments.values_.erase(option.name);
  arguments.positionals_ = parsed.unmatched();
  for (int i = 0; i < argc; ++i) arguments.command_line_ += (i == 0 ? "" : " ") + quoted(argv[i]);
  if (!arguments.flag("help")) check_positionals(*this, arguments.positionals_);
  return arguments;
}

std::string Command::help() const {
  std::string usage, explained;
  for (const PositionalInfo& info : positionals) {
    const std::string shown = info.name + (info.repeated ? "..." : "");
    usage += info.required ? " " + shown : " [" + shown + "]";
    explained += fmt::format("  {:<24} {}\n", info.name, info.help);
  }
  std::string text = fmt::format("sextant {}{} [OPTIONS]\n\n{}\n\n{}", name, usage, summary, explained);
  append_options(text, options);
  text += "\nOptions of every command:\n";
  append_options(text, common_options());
  if (!details.empty()) text += "\n" + details + (details.back() == '\n' ? "" : "\n");
  return text;
}

const std::vector<Command>& commands() {
  return registry();
}

const Command* find_command(const std::string& name) {
  const auto found = std::ranges::find(registry(), name, &Command::name);
  return found == registry().end() ? nullptr : &*found;
}

RegisterCommand::RegisterCommand(Command command) {
  auto& all = registry();
  all.insert(std::ranges::upper_bound(all, command.name, {}, &Command::name), std::move(command));
}

}  // namespace sextant
