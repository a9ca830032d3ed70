// Any command line, one argument a line, is either parsed or refused with an Error; every reader gives a value in its
// range or refuses; the command line that is kept for the record has the same words, read as a shell does.
#include <cstdlib>

#include "core/error.h"
#include "experiments/command.h"

namespace {

using namespace sextant;

const Command command = {.name = "fuzz",
                         .summary = "takes everything",
                         .positionals = {{"CKPT", "a folder"}, {"MORE", "others", false, true}},
                         .options = {{"lengths", "LIST", "", "a list"},
                                     {"steps", "N", "100", "a number"},
                                     {"lr", "RATE", "0.003", "a rate"},
                                     {"data", "NAME", "canon", "a name"},
                                     flag_option("untied", "a switch")},
                         .run = [](const Arguments&) { return 0; }};

template <class F>
void refused_or(F f) {
  try {
    f();
  } catch (const Error&) {
  }
}

void read_all(const Arguments& arguments) {
  refused_or([&] {
    const int64_t n = arguments.integer("steps", 0, 1000);
    if (n < 0 || n > 1000) std::abort();
  });
  refused_or([&] {
    const double x = arguments.number("lr", 0, 1);
    if (!(x >= 0 && x <= 1)) std::abort();
  });
  refused_or([&] {
    for (const int64_t n : arguments.integers("lengths", 1, 1 << 20))
      if (n < 1 || n > 1 << 20) std::abort();
  });
  refused_or([&] { (void)arguments.seed(); });
  (void)arguments.texts("data");
  (void)arguments.flag("untied");
}

// What a shell makes of a command line that was kept: words between spaces, quoted by ' or by a backslash.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\'')
      quoted = !quoted;
    else if (!quoted && line[i] == ' ')
      words.emplace_back();
    else
      words.back() += line[!quoted && line[i] == '\\' ? ++i : i];
  }
  return words;
}

Arguments parse(const std::vector<std::string>& words) {
  std::vector<const char*> pointers;
  for (const std::string& word : words) pointers.push_back(word.c_str());
  return command.parse(static_cast<int>(pointers.size()), pointers.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> words{"fuzz"};
  for (size_t begin = 0; begin < size && words.size() < 64;) {
    size_t end = begin;
    while (end < size && data[end] != '\n' && data[end] != '\0') ++end;
    words.emplace_back(reinterpret_cast<const char*>(data) + begin, end - begin);
    begin = end + 1;
  }
  refused_or([&] {
    const Arguments arguments = parse(words);
    read_all(arguments);
    if (words_of(arguments.command_line()) != words) std::abort();
  });
  return 0;
}
