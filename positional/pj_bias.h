// The scalar learnable kernel of PJ-RoPE as an operation: phase-jet (FJ), affine and light-cone (LC) sectors of a lag
// bias.
#pragma once

#include <vector>

#include "autograd/tape.h"
#include "positional/phase.h"

namespace sextant {

// What the kernel reads. A sector that is absent has undefined variables.
struct PjBiasVariables {
  Variable gate;                        // [3] raw, before the sigmoid: FJ, affine, LC
  Variable fj_cos, fj_sin;              // [H, K, R+1]
  Variable damping;                     // [K] raw, before softplus; with fj_cos
  Variable affine_const, affine_slope;  // [H]; slope raw, before softplus
  Variable lc_cos, lc_sin;              // [H, K, R'+1]
  Variable log_frequency;               // [K], when frequencies are learned
  Variable log_scale;                   // [1], when L is learned
};

// What it is evaluated with besides: the fixed frequencies and L (read unless they are learned), and where tables may
// be shared by layers (or null).
struct PjBiasSettings {
  int64_t heads = 1;
  std::vector<DoubleDouble> frequencies;  // w_k, K of them
  double length_scale = 1;                // L in tokens
  PositionTables* tables = nullptr;
};

// b [H, lags] of the gate's dtype; all inner arithmetic is in double.
Variable pj_bias(const PjBiasVariables& in, const PjBiasSettings& settings, int64_t lags);
Variable pj_bias_composed(const PjBiasVariables& in, const PjBiasSettings& settings, int64_t lags);

}  // namespace sextant
