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

// Plots that random and trained steps share, and one curve of the second: marks where there is a window (>= 0), a line
// at the prediction where it is finite.
Plot score_plot(const std::string& title);
Plot window_plot(const std::string& title);
void add_windows(Plot& plot, const std::string& label, const std::vector<double>& contexts,
                 const std::vector<int64_t>& windows, double predicted, int look);

void add_random_step_sections(Outcome& made, const Results& results);

}  // namespace sextant::study
