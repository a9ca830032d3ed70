// `sextant data`: which data there are, fetching them, looking at them.
#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/file.h"
#include "data/corpus.h"
#include "data/events.h"
#include "data/fetch.h"
#include "data/statistics.h"
#include "data/synthetic.h"
#include "experiments/command.h"
#include "experiments/histogram.h"
#include "experiments/plot.h"
#include "experiments/progress.h"

namespace sextant {
namespace {

using nlohmann::json;

// "here", or how to get it.
std::string where(const std::string& name) {
  try {
    const auto corpus = open_corpus(name);
    int64_t tokens = 0;
    for (const Split split : all_splits) tokens += corpus->size(split);
    return fmt::format("{} tokens here", tokens);
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

void say_warnings(const Arguments& arguments, const Corpus& corpus) {
  constexpr size_t shown = 5;
  const auto& warnings = corpus.warnings();
  for (size_t i = 0; i < std::min(shown, warnings.size()); ++i) arguments.say("warning: {}\n", warnings[i]);
  if (warnings.size() > shown) arguments.say("and {} more warnings; --json has them all\n", warnings.size() - shown);
}

// Of each class of events: its tokens are histogram[first .. first + tokens - 1].
json classes_json(const CorpusStatistics& s) {
  json classes = json::array();
  for (const EventClass& of : event_classes) {
    const auto begin = s.histogram.begin() + of.first;
    classes.push_back({{"name", of.name},
                       {"first", of.first},
                       {"tokens", of.tokens},
                       {"count", std::accumulate(begin, begin + of.tokens, int64_t{0})}});
  }
  return classes;
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
                   {"highest_pitch", s.highest_pitch},
                   {"classes", classes_json(s)}});
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
  require_svg_name(arguments.text("plot"));
  const auto corpus = open_corpus(name, {.field = arguments.text("field"), .pedal = arguments.flag("pedal")});
  const CorpusStatistics s = statistics(*corpus);
  const bool events = corpus->kind() == TokenKind::events;
  require(events || !arguments.given("plot"), "--plot: {} is text and has no notes to draw", corpus->name());
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
    arguments.say("pieces         {}\nnotes          {}\nduration       {}\n", s.pieces, s.notes,
                  duration_text(s.seconds));
    if (s.notes > 0)
      arguments.say("pitches        {}..{} ({}..{})\n", s.lowest_pitch, s.highest_pitch, pitch_name(s.lowest_pitch),
                    pitch_name(s.highest_pitch));
  }
  const auto used = std::ranges::count_if(s.histogram, [](int64_t count) { return count > 0; });
  arguments.say("tokens used    {} of {}\n{}", used, corpus->vocabulary(), histogram_text(corpus->kind(), s.histogram));
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
