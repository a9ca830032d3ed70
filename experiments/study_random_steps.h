// Decoherence of random steps, where everything is known: the part of the decoherence study that trains nothing.
#pragma once

#include "experiments/study.h"

namespace sextant::study {

constexpr double mixed = 0.1;  // a mean score from here down counts as mixed

// Pieces "steps/NAME": a spectral gap, and curves by context length.
//   {"dim", "gap" (measured), "closed_form", "lengths",
//    "contexts": [{"context", "mean": [..], "deviation": [..]}]}       routes up to half the context
std::vector<Piece> random_step_pieces(const Plan& plan);

// The first route length n with |mean score| <= `mixed` from there on; -1: none.
int64_t mixing_window_of(const nlohmann::json& lengths, const nlohmann::json& mean);
// Where (1 - gap)^n comes down to `mixed`; infinite without a gap.
double predicted_window(double gap);

void add_random_step_sections(Outcome& made, const Results& results);

}  // namespace sextant::study
