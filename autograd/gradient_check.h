// Checks of hand-written gradients: central differences in f64, entry by entry or along random directions, and the
// registry of what `sextant audit` checks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autograd/tape.h"

namespace sextant {

using TapeFunction = std::function<Variable(Tape&, std::span<const Variable>)>;

struct GradientCheck {
  double worst_error =
      0;           // |analytic - numeric|, less what rounding explains, over the largest gradient of the same input
  int input = -1;  // where: which input, which entry
  int64_t index = -1;
  double analytic = 0, numeric = 0;
  bool repeatable = true;  // two backward passes gave the same bits
  int64_t entries = 0;     // how many were compared
  // Of these, how many have a derivative of which rounding leaves the numeric side not even three digits (it is far
  // smaller than the function's values over the step: saturation, cancellation). There the check bounds the gradient's
  // size and says nothing about its digits.
  int64_t unconfirmed = 0;
  std::string text() const;
};

struct GradientCheckOptions {
  double step = 0;                      // 0: chosen from the entry's size
  int64_t entries_per_input = 1 << 30;  // larger inputs are sampled
  uint64_t seed = 1;
};

// Checks d<w, f(inputs)>/d inputs for a fixed random w against central differences. The inputs must be f64 (throws
// Error on f32: its rounding hides wrong gradients).
GradientCheck check_gradients(const TapeFunction& function, std::span<const Tensor> inputs,
                              const GradientCheckOptions& options = {});

// The same along `directions` random directions of all inputs together: for large shapes.
GradientCheck check_directional(const TapeFunction& function, std::span<const Tensor> inputs, int directions,
                                uint64_t seed = 1);

// Where a wrong gradient comes from: of all nodes on the function's tape, values in between included, the one nearest
// to the output whose gradient disagrees with central differences along random directions. What it contributes to
// further back is then wrong by inheritance; what made it wrong is one of the operations that read it.
struct WrongGradient {
  int node = -1;                     // -1: none
  double analytic = 0, numeric = 0;  // along the direction in which they disagree
  // The operations that contributed to it, each with which of its inputs it is. A view cannot be told from the memory
  // it looks at: operations that read views of it are among them.
  std::vector<std::pair<std::string, int>> contributors;
};
// `spoiler`, if any, watches the backward (autograd/fault.h).
WrongGradient nearest_wrong_gradient(const TapeFunction& function, std::span<const Tensor> inputs, double tolerance,
                                     Tape::Witness* spoiler = nullptr, uint64_t seed = 1);

// Largest |a - b| / max(1, |a|, |b|) over the values and the gradients of two functions that should be the same.
double worst_difference(const TapeFunction& a, const TapeFunction& b, std::span<const Tensor> inputs,
                        uint64_t seed = 1);

// ---- what `audit` runs: registering a case is what includes it -----------------------------------------------------

struct AuditCase {
  std::string label;           // "ordinary", "zero", "huge", ...
  std::vector<Tensor> inputs;  // f64
  TapeFunction function;
  TapeFunction composed;            // may be empty
  bool differentiable_here = true;  // false where finite differences do not apply (kinks, overflow): then only
                                    // finiteness or the twin is checked
  bool large = false;               // too large to go entry by entry: along random directions only
  // For the comparison of f32 with f64: the same function on f32 inputs, where `function` stands on weights or tables
  // in f64 (empty: `function` itself), and which inputs are f64 in f32 models, too.
  TapeFunction function_f32 = {};
  std::vector<int> inputs_f64 = {};
  std::vector<std::string> input_names = {};  // for reports; "input 0", ... where there are none
  // The differences' step, where one chosen from the entries' size would not do; then there is no check along random
  // directions.
  double step = 0;
};

struct AuditEntry {
  std::string name, family;
  std::function<std::vector<AuditCase>(Arena&)> cases;
};

const std::vector<AuditEntry>& audit_entries();
struct RegisterAudit {
  RegisterAudit(std::string name, std::string family, std::function<std::vector<AuditCase>(Arena&)> cases);
};
// AUDIT(gelu, "elementwise") { return {...}; }   with `arena` in scope
#define AUDIT(name, family)                                                                       \
  static std::vector<::sextant::AuditCase> audit_cases_##name(::sextant::Arena& arena);           \
  static const ::sextant::RegisterAudit register_audit_##name(#name, family, audit_cases_##name); \
  static std::vector<::sextant::AuditCase> audit_cases_##name([[maybe_unused]] ::sextant::Arena& arena)

// Inputs for cases, f64, from fixed random numbers.
Tensor sample(Arena& arena, const Shape& shape, double scale = 1.0, uint64_t seed = 7);
Tensor positive_sample(Arena& arena, const Shape& shape, double scale = 1.0, uint64_t seed = 7);

}  // namespace sextant
