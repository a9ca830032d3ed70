// The cumulative gate as a term, for whoever contains one (transport with gate=1).
#pragma once

#include <memory>
#include <vector>

#include "positional/strategy.h"

namespace sextant {

std::unique_ptr<Term> make_gate(const PositionSettings& settings);

// The decay lengths tau_h, in tokens, with which the gates of the heads start: log f_h = -1/tau_h, geometric from
// min(8, context) to the context.
std::vector<double> initial_decay_lengths(int64_t heads, int64_t context);

}  // namespace sextant
