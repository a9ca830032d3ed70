// Audit cases for any registered strategy.
#pragma once

#include <vector>

#include "autograd/attention.h"
#include "autograd/gradient_check.h"
#include "positional/strategy.h"

namespace sextant {

// What the model's self-attention makes of q, k, v [B, T, H, D] and a position layer: transformed features, bias, gate
// and transport. The output still has to go through position.restore().
AttentionArguments attention_arguments(Position& position, const PositionCall& call, Features features);

// Each example SPEC around an attention of two sequences, of a single token, and of more tokens than a tile holds.
std::vector<AuditCase> strategy_audit_cases(const StrategyInfo& info, Arena& arena);

}  // namespace sextant
