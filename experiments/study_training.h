// Training runs as pieces of a study: trained in a run folder of their own, resumed when it is there, evaluated by
// length, and looked at layer by layer.
#pragma once

#include <string>
#include <vector>

#include "data/corpus.h"
#include "experiments/study.h"
#include "experiments/train_options.h"

namespace sextant::study {

struct TrainingTask {
  TrainOptions options;          // options.out is set from the place of work
  std::vector<int64_t> lengths;  // tokens, of the evaluation
  int64_t windows = 8;           // per length
};

// All that decides the result, the corpus's content included.
nlohmann::json settings_of(const TrainingTask& task, const Corpus& corpus);

// {"evaluation": as eval.json, "layers": sector diagnostics of each layer, "loss", "seconds"}; {"failed": why} when the
// loss or a gradient became infinite. Throws Interrupted, after saving, when a signal came, and Error when the folder
// holds a run with other options.
nlohmann::json train_and_evaluate(const TrainingTask& task, const Workplace& place);

// A file's absolute path, a corpus's name as it is; and what may stand for it in a key and on a page.
std::string corpus_name(const std::string& given);
std::string short_name(const std::string& corpus);

}  // namespace sextant::study
