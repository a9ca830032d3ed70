// What the studies of accumulated transport share (extrapolation, far-mass, decoherence): the variants, how they are
// trained, and what is measured of a trained model. All three train the same runs and store the same results, so that
// one reads what another has made (`sextant experiment far-mass --from DIR`).
#pragma once

#include <string>
#include <vector>

#include "experiments/study_training.h"

namespace sextant::study {

struct TransportVariant {
  const char *name, *spec;
  enum class Group { main, combination } group;  // main: the paper's and its controls, trained with more than one seed
  bool controlled;                               // something bounds the mass of far sources: a bias or a gate
  double cost_factor = 1;
};
const std::vector<TransportVariant>& transport_variants();

struct TransportScale {
  int64_t context;                   // training length
  std::vector<int64_t> lengths;      // to evaluate at, from the training length on
  std::vector<int64_t> near;         // what counts as near, tokens: a quarter of the context, and all of it
  std::vector<int64_t> decoherence;  // lengths of text whose routes are looked at
  TrainOptions options;              // without data, position and seed
};
TransportScale transport_scale(const Plan& plan);
StudyCorpora transport_corpora(const Plan& plan);

// All variants with the first seed, then the main ones with the others; keys "VARIANT/CORPUS/seed-S". `wanted` names
// variants; empty: all.
std::vector<Piece> transport_pieces(const Plan& plan, const std::vector<std::string>& wanted = {});

// What one model and all that are left will take, by measuring two shallower ones: time, memory.
std::string transport_forecast(const Plan& plan, const std::vector<Piece>& left);

// What every report of these studies must say.
std::vector<std::string> transport_notes(const Plan& plan);

// Mean over seeds of numbers of the results "VARIANT/...": `number` gives NaN where there is none.
Sample over_results(const Results& results, const std::string& variant,
                    const std::function<double(const nlohmann::json&)>& number);

}  // namespace sextant::study
