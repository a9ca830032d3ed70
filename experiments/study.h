// Experiments: reproductions of what papers report. A study is one file, study_NAME.cpp, that registers itself. It says
// what it asks, how, and what the paper saw; it lists its pieces of work, and from their results makes findings, tables
// and plots:
//
//   piece   one number or run, such as (variant, corpus, seed); its result is a JSON object in
//           OUT/results/KEY.json, and a piece whose result is there is not worked off again
//   finding what the paper saw beside what this run saw, with the rule by which the two agree or differ
//
// The frame (study.cpp) does the rest: resuming, progress, CSV, SVG, the report.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "experiments/page.h"
#include "experiments/plot.h"
#include "experiments/progress.h"

namespace sextant::study {

enum class Scale { smoke, quick, paper };  // seconds; minutes on two cores; the papers' sizes
const char* name_of(Scale scale);
Scale scale_from(const std::string& name);  // throws Error

// What a run was asked to be.
struct Plan {
  Scale scale = Scale::smoke;
  std::string out;      // folder
  std::string only;     // only pieces whose key contains this; empty: all
  std::string from;     // folder of another experiment, whose results with the same key and settings are taken over
  std::string data;     // a corpus in place of the study's own; empty: its own
  uint64_t seed = 1;    // seeds are seed, seed + 1, ...
  bool quiet = false;   // no progress
  std::string command;  // the command line, for the record
  template <class T>
  T choose(T smoke, T quick, T paper) const {
    return scale == Scale::smoke ? smoke : scale == Scale::quick ? quick : paper;
  }
  std::vector<uint64_t> seeds(int64_t count) const;
};

// What a piece works with.
struct Workplace {
  std::string folder;   // a run folder of its own, OUT/runs/KEY; made by whoever needs it
  std::string command;  // for manifests
  Progress* progress;   // what the piece tells it moves the one line of the whole study
};

struct Piece {
  std::string key;                                       // "rope+affine/tiny-shakespeare/seed-1": may stand in a path
  nlohmann::json settings;                               // everything that decides the result
  double cost = 1;                                       // relative to the study's other pieces, for the time left
  std::function<nlohmann::json(const Workplace&)> work;  // throws Interrupted on a signal, after saving what it had
};

struct Finding {
  std::string paper;           // what the paper saw
  std::string here;            // what this run saw, in numbers
  std::string rule;            // what counts as agreement
  std::optional<bool> agrees;  // nothing: this run cannot tell
};

struct Section {
  std::string name;   // of the CSV and SVG
  std::string title;  // a heading
  std::string text;   // a paragraph, may be empty
  std::optional<Table> table = {};
  std::optional<Plot> plot = {};
};

struct Outcome {
  std::vector<Finding> findings;
  std::vector<Section> sections;
  std::vector<std::string> notes;  // what a reader must know: what stood in for what, what was left out
  std::vector<std::string> runs;   // run folders whose configuration and training belong on the page
  bool passed = true;              // false: a check failed, exit status 1
};

using Results = std::map<std::string, nlohmann::json>;  // by key: those that are there

struct Study {
  std::string name;
  std::string question;  // one line
  std::string protocol;  // two lines
  std::string source;    // the paper
  std::string paper;     // what it saw
  std::function<std::vector<Piece>(const Plan&)> pieces;
  std::function<Outcome(const Plan&, const Results&)> outcome;
  // What the pieces that are left will take, for people, before they are worked off (empty: nothing to say); not asked
  // at scale smoke.
  std::function<std::string(const Plan&, const std::vector<Piece>& left)> forecast = {};
};

const std::vector<Study>& studies();                // sorted by name
const Study& study_named(const std::string& name);  // throws Error with the nearest right name
struct RegisterStudy {
  explicit RegisterStudy(Study study);
};

struct Report {
  Outcome outcome;
  std::string page;                 // OUT/report.html
  std::vector<std::string> files;   // all that was written, the page first
  int64_t worked = 0, skipped = 0;  // pieces worked off, and found finished
  int signal = 0;                   // stopped by it; the page then shows what is there
};

// Works off the pieces that are not finished and writes the page. Throws Error when OUT holds results of other
// settings, when another process has it, or when `only` matches nothing. Several ranks share the pieces; rank 0 then
// makes the page, and the others' outcome has no more than whether it passed. Collective.
Report run(const Study& study, const Plan& plan, std::FILE* output, Communicator& ranks = alone());

// ---- for the studies' outcomes --------------------------------------------------------------------------------------

// The results whose key is `prefix`, or starts with it and "/".
std::vector<const nlohmann::json*> results_of(const Results& results, const std::string& prefix);
// A number that is not there, or was not finite, is NaN.
double number_at(const nlohmann::json& object, const std::string& where);  // a JSON pointer, "/sectors/0/mass"

struct Sample {  // of the seeds
  double mean = 0, deviation = 0;
  int64_t count = 0;
};
Sample sample_of(const std::vector<double>& values);
// Of one number of those results, where it is finite.
Sample sample_at(const Results& results, const std::string& prefix, const std::string& where);
std::string text_of(const Sample& sample, int digits = 4);  // "1.2345 +- 0.0012"
std::string number_text(double value, int digits = 4);      // significant digits
// "1 of 3 teachers"; a rule by counts.
std::string count_of(int64_t part, int64_t whole, const std::string& what);

}  // namespace sextant::study
