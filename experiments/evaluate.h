// How good a model is at contexts shorter and longer than it was trained on: the held-out loss by context length,
// streamed through the cache so that memory grows with the length only by the keys and values.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "data/corpus.h"
#include "experiments/progress.h"
#include "nn/transformer.h"
#include "positional/diagnostics.h"

namespace sextant {

struct EvaluateOptions {
  std::vector<int64_t> lengths;  // tokens read, each of them predicts the next
  int64_t windows = 8;           // windows averaged over at each length, evenly spaced over the split
  int64_t tokens = 0;            // more windows where a length would otherwise be measured on fewer tokens than this
  Split split = Split::validation;
  int64_t piece = 1024;            // tokens a call: bounds the memory of activations
  bool sectors = true;             // also the diagnostics: of sectors, of stability, of resolution
  bool interruptible = false;      // throw Interrupted on a signal, where the caller has an Interrupt (one rank only)
  Communicator* ranks = &alone();  // share the windows; all of them get the result. evaluate() is collective then
  Tape* tape = nullptr;            // one that is not in use, whose memory then serves; without it a new one
};

struct LengthResult {
  int64_t length = 0;
  int64_t windows = 0;
  double nats = 0;             // mean over windows and positions, a token
  double standard_error = 0;   // of that mean, from the spread of the windows; 0 for a single one
  double last_nats = 0;        // mean over the last quarter of the positions: those with the longest context
  double ratio = 1;            // perplexity over the perplexity at the training length
  double seconds = 0;          // for all windows
  size_t peak_bytes = 0;       // the process's peak resident memory while this length was worked off
  int64_t not_finite_at = -1;  // the first position, in any window, whose loss is NaN or infinite; -1: none
  std::string note = {};       // in that case a sentence that says so, and why where a strategy knows

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
  // measure_sectors of all layers.
  nlohmann::json sectors = nlohmann::json::array();
  // By length and layer: norms of transformed queries and keys and the largest logit at the end of the first window,
  // and the bytes of the cached keys; phase span and hits of the retrieval probe at the farthest lags, where a term has
  // waves (positional/diagnostics.h).
  nlohmann::json stability = nlohmann::json::array(), resolution = nlohmann::json::array();
};

// Throws Error when the split has no window of one of the lengths (naming both numbers), or when its vocabulary is not
// the model's.
Evaluation evaluate(Transformer& model, const Corpus& corpus, const EvaluateOptions& options, Progress& progress);

nlohmann::json to_json(const Evaluation& evaluation);
// Of some of the model's layers: masses and energies by term, sector and order, and the change of the held-out loss at
// the training length when a component is left out of them; an empty array where they have no sectors.
nlohmann::json measure_sectors(Transformer& model, std::span<Position* const> layers, const Corpus& corpus,
                               const EvaluateOptions& options);

std::string table(const Evaluation& evaluation);         // for people
std::string sector_table(const Evaluation& evaluation);  // the same of the sectors, empty where there are none

// The lengths among context * {1, 2, 4, ...} up to 32 times that the split has a window for.
std::vector<int64_t> default_lengths(const Corpus& corpus, Split split, int64_t context);

// The split that held-out losses are measured on: validation, or test where there is no validation split.
Split held_out_split(const Corpus& corpus);

}  // namespace sextant
