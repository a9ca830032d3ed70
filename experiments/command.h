// The commands of the `sextant` program. A command is one file, command_NAME.cpp, that registers itself; nothing else
// has to know it:
//
//   int run(const Arguments& arguments) {
//     const int64_t steps = arguments.integer("steps", 1, 1 << 30);
//     arguments.say("{} steps\n", steps);                       // for people; goes to stderr with --json
//     if (arguments.json()) arguments.print_json({{"steps", steps}});
//     return 0;
//   }
//   const RegisterCommand registered({.name = "count", .summary = "counts steps", .positionals = {{"CKPT", "a run
//   folder or checkpoint"}},
//                                     .options = {{"steps", "N", "100", "how many"}, flag_option("slow", "take your
//                                     time")}, .run = run});
//
// Every command also takes --threads, --seed, --json, --quiet and --help. Whatever goes wrong is thrown as
// sextant::Error and becomes one line on stderr and the exit status.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/communicator.h"

namespace sextant {

struct OptionInfo {
  std::string name;           // without the dashes
  std::string value;          // what stands for its value in the help ("N", "FILE"); empty for a flag
  std::string default_value;  // as text; empty: none
  std::string help;
};

inline OptionInfo flag_option(std::string name, std::string help) {
  return {std::move(name), "", "", std::move(help)};
}

struct PositionalInfo {
  std::string name;  // in capitals, as the help shows it
  std::string help;
  bool required = true;
  bool repeated = false;  // takes all that follow (the last one only)
};

// The command line, parsed. Options are asked for by the name they were declared with. The numeric readers throw Error
// naming the option, what was given and the allowed range.
class Arguments {
 public:
  bool given(const std::string& option) const {
    return values_.contains(option);
  }  // on the command line, not by default
  // The value given (the last one when it was given several times), or the default, which may be empty.
  const std::string& text(const std::string& option) const;
  std::vector<std::string> texts(const std::string& option) const;  // all that were given, in order, or the default
  bool flag(const std::string& option) const { return given(option); }
  int64_t integer(const std::string& option, int64_t low = std::numeric_limits<int64_t>::min(),
                  int64_t high = std::numeric_limits<int64_t>::max()) const;  // 5e6 is an integer, too
  double number(const std::string& option, double low = -std::numeric_limits<double>::infinity(),
                double high = std::numeric_limits<double>::infinity()) const;
  std::vector<int64_t> integers(const std::string& option, int64_t low,
                                int64_t high) const;  // "256,1024,4096", at least one

  // The positional arguments: by place (empty when it was not given), and all.
  const std::string& positional(size_t place) const;
  const std::vector<std::string>& positionals() const { return positionals_; }

  bool json() const { return flag("json"); }
  bool quiet() const { return flag("quiet") || !first_rank(); }
  uint64_t seed() const;  // --seed, default 1

  // Text for people: stdout, or stderr when stdout belongs to the JSON object; nothing with --quiet.
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) const {
    if (!quiet()) fmt::print(output(), format, std::forward<Args>(args)...);
  }
  std::FILE* output() const { return json() ? stderr : stdout; }
  // The one JSON object of --json, on stdout; of rank 0 where there are several. NaN and infinities, which JSON has
  // not, become null.
  void print_json(const nlohmann::json& object) const;

  // The command line as one can type it again, without the program's name: "train --data canon --steps 100".
  const std::string& command_line() const { return command_line_; }

 private:
  friend struct Command;
  std::map<std::string, std::vector<std::string>> values_;
  std::map<std::string, std::string> defaults_;
  std::vector<std::string> positionals_;
  std::string command_line_;
};

struct Command {
  std::string name;
  std::string summary;  // one line
  std::vector<PositionalInfo> positionals = {};
  std::vector<OptionInfo> options = {};
  std::function<int(const Arguments&)> run;  // returns the exit status
  std::string details = "";                  // further paragraphs of --help

  // argv[0] is the command's name. Throws Error: unknown options (with the nearest right one), missing values, too few
  // or too many positionals.
  Arguments parse(int argc, const char* const* argv) const;
  std::string help() const;
};

const std::vector<Command>& commands();                // sorted by name
const Command* find_command(const std::string& name);  // null when there is none

struct RegisterCommand {
  explicit RegisterCommand(Command command);
};

// Readers of text that a person typed; `what` names it for the message. Throw Error.
int64_t parse_integer(const std::string& text, const std::string& what, int64_t low, int64_t high);
double parse_number(const std::string& text, const std::string& what, double low, double high);

}  // namespace sextant
