// What byte-lm and music share: one small model with each position strategy on each corpus, its loss by context length,
// and where the learned kernels put mass, energy and need.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "experiments/study_training.h"

namespace sextant::study {

struct Variant {
  const char *name, *spec;
  bool repeated;  // with several seeds where the others have one
};
std::span<const Variant> sector_variants();
constexpr const char* full_variant = "pj-bias-all";  // the one with all sectors, of which the allocations are read

// One piece "VARIANT/CORPUS/seed-S" each: first all at the first seed, then the further seeds.
std::vector<Piece> sector_pieces(const Plan& plan, const StudyCorpora& corpora);

// The corpora that have results, in the order of the keys.
std::vector<std::string> corpora_in(const Results& results);

// ---- numbers for findings -------------------------------------------------------------------------------------------

// One number of one component of the whole model, over the seeds: what is "mass", "mass_share", "energy_share",
// "centred_energy", "leave_one_out_nats_per_token".
Sample component(const Results& results, const std::string& prefix, const std::string& sector, int order,
                 const char* what);
// The share of `what` that `counts` picks from all components; NaN where a run has none.
double share_in(const nlohmann::json& sectors, const char* what,
                const std::function<bool(const std::string& sector, int order)>& counts);
Sample share_over_seeds(const Results& results, const std::string& prefix, const char* what,
                        const std::function<bool(const std::string& sector, int order)>& counts);
bool high_order(const std::string& sector, int order);  // jets of FJ and LC above order 0

// Variants by their mean loss at a length, the lowest first; those without a finite one are left out.
struct Ranked {
  const Variant* variant;
  Sample loss;
};
std::vector<Ranked> ranking(const Results& results, const std::string& corpus, int64_t length);

// What a corpus shows, and whether that agrees with the paper.
struct Seen {
  std::string text;
  bool agrees;
};
// Asks `look` about each corpus that has results of the variant, with the prefix of their keys, and puts what it says
// into the finding; which agrees when all do.
void for_each_corpus(const Results& results, const std::string& variant, Finding& finding,
                     const std::function<Seen(const std::string& prefix)>& look);

// The component whose absence costs most, mean over seeds, in nats a token.
struct Needed {
  std::string component;  // "affine 1"
  double change = 0;
};
Needed most_needed(const Results& results, const std::string& prefix);

// ---- parts of the page ----------------------------------------------------------------------------------------------

// The whole outcome of such a study; `findings` is asked for them once there are results, with the longest length.
Outcome sector_outcome(const Plan& plan, const Results& results, const StudyCorpora& corpora,
                       const std::function<std::vector<Finding>(int64_t longest)>& findings);

// The training length at a scale.
int64_t sector_context(const Plan& plan);

}  // namespace sextant::study
