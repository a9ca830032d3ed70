// `sextant data`: which data there are, fetching them, looking at them.
#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "data/corpus.h"
#include "data/fetch.h"
#include "data/statistics.h"
#include "data/synthetic.h"
#include "experiments/command.h"

namespace sextant {
namespace {

using nlohmann::json;

// "here", or how to get it.
std::string where(const std::string& name) {
  try {
    return fmt::format("{} tokens here", statistics(*open_corpus(name)).tokens);
  } catch (const Error& error) {
    return error.what();
  }
}

int list(const Arguments& arguments) {
  json sets = json::array();
  const auto add = [&](const std::string& name, const std::string& description, const std::string& licence) {
    const std::string state = where(name);
    arguments.say("{:<18}{} ({}): {}\n", name, description, licence, state);
    sets.push_back({{"name", name}, {"description", description}, {"licence", licence}, {"state", state}});
  };
  add("canon", "the embedded corpus: generated two-voice canons with structure at known lags", "part of this program");
  for (const NamedSet& set : named_sets()) add(set.name, set.description, set.licence);
  arguments.say("Synthetic tasks, for `experiment synthetic-tasks`:");
  for (const std::string& task : synthetic_task_names()) arguments.say(" {}", task);
  arguments.say("\n");
  if (arguments.json()) arguments.print_json({{"sets", sets}, {"synthetic_tasks", synthetic_task_names()}});
  return 0;
}

int fetch_named(const Arguments& arguments, const std::string& name) {
  FetchOptions options;
  options.say = [&](const std::string& line) { arguments.say("{}\n", line); };
  fetch(name, options);
  if (arguments.json()) arguments.print_json({{"name", name}, {"folder", fetched_directory().string()}});
  return 0;
}

// The most frequent tokens, and how many times each occurs.
void say_histogram(const Arguments& arguments, const Corpus& corpus, const CorpusStatistics& s) {
  std::vector<int64_t> order(s.histogram.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  const auto count = [&](int64_t token) { return s.histogram[static_cast<size_t>(token)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return count(a) > count(b); });
  const auto used = std::count_if(order.begin(), order.end(), [&](int64_t token) { return count(token) > 0; });
  arguments.say("tokens used    {} of {}; the most frequent:\n", used, corpus.vocabulary());
  for (size_t i = 0; i < std::min<size_t>(10, static_cast<size_t>(used)); ++i) {
    const int32_t token = static_cast<int32_t>(order[i]);
    const std::string label = corpus.kind() == TokenKind::events ? event_name(token)
                              : token > 32 && token < 127        ? fmt::format("'{}'", static_cast<char>(token))
                                                                 : fmt::format("byte {}", token);
    arguments.say("  {:<16} {:>12}  {:5.2f} %\n", label, count(token),
                  100.0 * static_cast<double>(count(token)) / static_cast<double>(s.tokens));
  }
}

void say_warnings(const Arguments& arguments, const Corpus& corpus) {
  constexpr size_t shown = 5;
  const auto& warnings = corpus.warnings();
  for (size_t i = 0; i < std::min(shown, warnings.size()); ++i) arguments.say("warning: {}\n", warnings[i]);
  if (warnings.size() > shown) arguments.say("and {} more warnings; --json has them all\n", warnings.size() - shown);
}

json as_json(const Corpus& corpus, const CorpusStatistics& s) {
  json files = json::array(), splits;
  for (const CorpusFile& file : corpus.files())
    files.push_back(
        {{"name", file.name}, {"split", name_of(file.split)}, {"offset", file.offset}, {"tokens", file.tokens}});
  for (const Split split : all_splits) splits[name_of(split)] = corpus.size(split);
  json object = {{"name", corpus.name()},
                 {"kind", corpus.kind() == TokenKind::events ? "events" : "bytes"},
                 {"vocabulary", corpus.vocabulary()},
                 {"sha256", corpus.sha256()},
                 {"split_rule", corpus.split_rule()},
                 {"tokens", s.tokens},
                 {"splits", splits},
                 {"files", files},
                 {"histogram", s.histogram},
                 {"warnings", corpus.warnings()}};
  if (corpus.kind() == TokenKind::events)
    object.update({{"pieces", s.pieces},
                   {"notes", s.notes},
                   {"seconds", s.seconds},
                   {"lowest_pitch", s.lowest_pitch},
                   {"highest_pitch", s.highest_pitch}});
  return object;
}

void plot(const Arguments& arguments, const Corpus& corpus) {
  const std::string& file = arguments.text("plot");
  const Split split = split_from(arguments.text("split"));
  const int64_t piece = arguments.integer("piece", 0);
  write_atomically(file, piano_roll_svg(piece_notes(corpus, split, piece),
                                        fmt::format("{}, {} piece {}", corpus.name(), name_of(split), piece)));
  arguments.say("wrote {}\n", file);
}

int show(const Arguments& arguments, const std::string& name) {
  const auto corpus = open_corpus(name, {.field = arguments.text("field"), .pedal = arguments.flag("pedal")});
  const CorpusStatistics s = statistics(*corpus);
  const bool events = corpus->kind() == TokenKind::events;
  say_warnings(arguments, *corpus);
  arguments.say("{}: {} of {} tokens, vocabulary {}\n", corpus->name(), events ? "events" : "bytes", s.tokens,
                corpus->vocabulary());
  arguments.say("SHA-256        {}\n", corpus->sha256());
  arguments.say("files          {}\n", s.files);
  for (const Split split : all_splits)
    arguments.say("{:<14} {} tokens in {} files\n", name_of(split), corpus->size(split),
                  s.split_files[static_cast<size_t>(split)]);
  arguments.say("split          {}\n", corpus->split_rule());
  if (events) {
    arguments.say("pieces         {}\nnotes          {}\nduration       {:.1f} hours\n", s.pieces, s.notes,
                  s.seconds / 3600);
    arguments.say("pitches        {}..{}\n", s.lowest_pitch, s.highest_pitch);
  }
  say_histogram(arguments, *corpus, s);
  arguments.say("it begins\n{}\n", sample(*corpus, events ? 24 : 200));
  if (arguments.given("plot")) plot(arguments, *corpus);
  if (arguments.json()) arguments.print_json(as_json(*corpus, s));
  return 0;
}

int run(const Arguments& arguments) {
  const std::string& what = arguments.positional(0);
  const std::string& name = arguments.positional(1);
  require(what == "list" || what == "fetch" || what == "show",
          "data {}: there are `data list`, `data fetch NAME` and `data show NAME_OR_PATH`", what);
  require(what == "list" || !name.empty(), "data {}: which? `sextant data list` shows the names", what);
  if (what == "list") return list(arguments);
  return what == "fetch" ? fetch_named(arguments, name) : show(arguments, name);
}

const RegisterCommand registered(
    {.name = "data",
     .summary = "lists, fetches and shows data",
     .positionals = {{"ACTION", "list, fetch or show"},
                     {"NAME_OR_PATH", "a data set's name, or (to show) a file or folder", false}},
     .options = {{"plot", "FILE.svg", "", "draw one piece of music as a piano roll"},
                 {"split", "NAME", "train", "which split the piece is of: train, validation, test"},
                 {"piece", "N", "0", "which piece of the split, from 0"},
                 {"field", "NAME", "text", "the field of JSONL records that has the text"},
                 flag_option("pedal", "music: notes sound until the sustain pedal is released")},
     .run = run,
     .details = "Names are looked up in the folder of the environment variable SEXTANT_DATA, then among what `data "
                "fetch` brought into "
                "$XDG_CACHE_HOME/sextant (or ~/.cache/sextant)."});

}  // namespace
}  // namespace sextant
