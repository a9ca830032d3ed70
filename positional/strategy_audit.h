// Audit cases for any registered strategy.
#pragma once

#include <vector>

#include "autograd/gradient_check.h"
#include "positional/strategy.h"

namespace sextant {

// Each example SPEC around an attention of two sequences, of a single token, and of more tokens than a tile holds.
std::vector<AuditCase> strategy_audit_cases(const StrategyInfo& info, Arena& arena);

}  // namespace sextant
