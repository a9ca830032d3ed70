// Reading run folders back: what they were asked to do and what came out.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sextant {

// The columns of metrics.csv.
struct Metrics {
  std::vector<double> step, tokens, seconds, loss, lr, gradient_norm, tokens_per_second;
};

struct RunFolder {
  std::string path;
  nlohmann::json manifest;
  Metrics metrics;                                       // empty where there is no metrics.csv
  std::vector<double> validation_step, validation_loss;  // from validation.csv
  nlohmann::json evaluation;                             // eval.json, null where there is none

  const nlohmann::json& options() const { return manifest.at("options"); }
};

// Throws Error naming file and line or key where something is not as `train` writes it.
RunFolder read_run(const std::string& path);

// The run folders among the given paths and, where one is not a run folder itself, below it; sorted by path. Throws
// Error when there is none.
std::vector<RunFolder> read_runs(const std::vector<std::string>& paths);

// A label for each: the options in which they differ ("rope", "alibi, seed 2"), the position SPEC of a single one.
std::vector<std::string> run_labels(const std::vector<RunFolder>& runs);

// The options in which the runs differ.
std::vector<std::string> differing_options(const std::vector<RunFolder>& runs);

// A JSON value as a person writes it.
std::string plain_text(const nlohmann::json& value);

}  // namespace sextant
