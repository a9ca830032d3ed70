// RoPE's frequencies under its scalings, for whoever compares with them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "positional/phase.h"

namespace sextant {

// Radians a position for each of the D/2 pairs; scaling as in the SPEC (dynamic-ntk with its factor at the length in
// question).
std::vector<DoubleDouble> rope_frequencies(double base, const std::string& scaling, DoubleDouble factor,
                                           int64_t head_dim, int64_t context);

}  // namespace sextant
