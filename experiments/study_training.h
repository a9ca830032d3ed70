// Experiments that train models. One (variant, corpus, seed) is one piece and one run folder, OUT/runs/KEY: trained by
// the Trainer, taken up again from its checkpoint when it was killed, then evaluated at a list of lengths and measured.
//
//   training     {"parameters", "steps", "tokens", "seconds", "loss"}: the loss of the last tenth, nats a token
//   evaluation   as eval.json; null where the training diverged
//   sectors      [{"sector", "order", "mass", "mass_share_at_start", ...}] of the whole model
//   layers       [the same of each layer]
//   kernels      {"lags": [...], "layers": [layer][head][lag]} of a lag bias, its mean from each lag up to the next
//   measured     what the study's own measurement gave
//   diverged     only then: what step() said
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "experiments/study.h"
#include "experiments/train_options.h"
#include "nn/transformer.h"

namespace sextant::study {

struct Training {
  TrainOptions options;          // `out` is the piece's folder
  std::vector<int64_t> lengths;  // to evaluate at; those that the held-out split has no window for are left out
  int64_t windows = 2;           // at each length: so many windows,
  int64_t tokens = 32768;        // and at least so many tokens
  double cost_factor = 1;        // of strategies that cost more than the matrices and the attention
  // Whatever else is asked of the trained model; goes into the result as "measured". `measurement` names it and what
  // decides its outcome, for the settings.
  std::function<nlohmann::json(Transformer&, const Corpus&, Progress&)> measure = {};
  nlohmann::json measurement = {};
};

Piece training_piece(const std::string& key, const Training& training);

// What a study trains on.
struct StudyCorpus {
  std::string key;   // may stand in a path
  std::string data;  // what the trainer opens
};
struct StudyCorpora {
  std::vector<StudyCorpus> all;
  std::vector<std::string> notes;  // which of the study's own are not here, and what stands in for them
};
// `plan.data` alone where it is given; else those of `names` that are there. Without any: `canon` stands in at scale
// smoke, so that it needs no data; throws Error at the others. Throws Error when a corpus given by --data has less than
// a window of `context` to train or to evaluate on.
StudyCorpora study_corpora(const Plan& plan, const std::vector<std::string>& names, int64_t context);

// ---- reading the results of pieces "VARIANT/CORPUS/seed-S" ----------------------------------------------------------

// The evaluation's number `what` at a length; NaN where it was not evaluated.
double at_length(const nlohmann::json& result, int64_t length, const char* what = "nats_per_token");
Sample over_seeds(const Results& results, const std::string& prefix, int64_t length,
                  const char* what = "nats_per_token");
// All lengths that any of the results was evaluated at, ascending.
std::vector<int64_t> lengths_of(const Results& results);

}  // namespace sextant::study
