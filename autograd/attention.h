// Causal attention as one operation, and the same composed from elementary ones. What it computes: core/attention.h.
#pragma once

#include "autograd/tape.h"
#include "core/attention.h"

namespace sextant {

struct AttentionArguments {
  Variable q;     // [B, T, H, D]
  Variable k, v;  // [B, S, H, D], S >= T: the queries are the last T of S positions
  Variable bias;  // [H, >= S] or undefined
  Variable gate;  // [B, S, H] f64 prefix sums F, or undefined
  double scale = 1.0;
  TileTransport* transport = nullptr;
};

AttentionInputs values_of(const AttentionArguments& arguments);
Variable attention(const AttentionArguments& arguments);  // [B, T, H, D]
// The same through [B, H, T, S] scores; takes no transport.
Variable attention_composed(const AttentionArguments& arguments);

}  // namespace sextant
