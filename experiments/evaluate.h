// How good a model is at contexts shorter and longer than it was trained on: the held-out loss by context length,
// streamed through the cache so that memory grows with the length only by the keys and values.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "experiments/progress.h"
#include "nn/transformer.h"
#include "positional/diagnostics.h"

namespace sextant {

struct EvaluateOptions {
  std::vector<int64_t> lengths;  // tokens read, each of them predicts the next
  int64_t windows = 8;           // windows averaged over at each length, evenly spaced over the split
  Split split = Split::validation;
  int64_t piece = 1024;  // tokens a call: bounds the memory of activations
  bool sectors = true;   // also the sector diagnostics, where the strategy has sectors
};

struct LengthResult {
  int64_t length = 0;
  double nats = 0;            // mean over windows and positions, a token
  double standard_error = 0;  // of that mean, from the spread of the windows; 0 for a single one
  double last_nats = 0;       // mean over the last quarter of the positions: those with the longest context
  double ratio = 1;           // perplexity over the perplexity at the training length
  double seconds = 0;         // for all windows
  size_t peak_bytes = 0;      // the process's peak resident memory while this length was worked off

  double bits() const;
  double perplexity() const;
};

struct Evaluation {
  std::string data;  // the corpus's name
  std::string sha256;
  Split split = Split::validation;
  int64_t windows = 0;
  int64_t training_length = 0;
  std::string position;
  LengthResult reference;  // at the training length
  std::vector<LengthResult> lengths;
  // Masses and energies by sector and order over the lags of the training length, and the change of the loss (nats a
  // token at the training length) when a component is set to zero; empty where the strategy has no sectors.
  std::vector<SectorDiagnostics> sectors;
  std::vector<LeaveOneOut> leave_one_out;
};

// Throws Error when the split has no window of one of the lengths (naming both numbers), or when its vocabulary is not
// the model's.
Evaluation evaluate(Transformer& model, const Corpus& corpus, const EvaluateOptions& options, Progress& progress);

nlohmann::json to_json(const Evaluation& evaluation);
std::string table(const Evaluation& evaluation);         // for people
std::string sector_table(const Evaluation& evaluation);  // the same of the sectors, empty where there are none

// The lengths among context * {1, 2, 4, ...} up to 32 times that the split has a window for.
std::vector<int64_t> default_lengths(const Corpus& corpus, Split split, int64_t context);

// The split that held-out losses are measured on: validation, or test where there is no validation split.
Split held_out_split(const Corpus& corpus);

}  // namespace sextant
