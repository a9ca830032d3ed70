// What anchoring exact Jordan chains gains and what it costs, for the `stability` study: digits of logits and seconds
// of attention, plain and anchored.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "experiments/study.h"

namespace sextant::study {

// One row a length: the largest error of exact order 2 logits in f32 against f64, relative to the size that a logit of
// its lag can have, and the best of some rounds of transform and fused causal attention over one head of 16 dimensions.
nlohmann::json measure_anchoring(const std::vector<int64_t>& lengths, uint64_t seed);
Finding anchoring_finding(const nlohmann::json& rows);
Section anchoring_section(const nlohmann::json& rows);

}  // namespace sextant::study
