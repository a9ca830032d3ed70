// What `sextant audit` does: every registered operation, layer and strategy (AUDIT in autograd/gradient_check.h;
// registering is what includes it), at every registered input,
//   - against central differences in f64, entry by entry, and along random directions of all inputs together (large
//   shapes: along directions only),
//   - against its composed twin, where there is one,
//   - two backward passes for the same bits,
//   - gradients that are there already, to which it must add,
//   - f32 against f64.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "autograd/fault.h"
#include "autograd/gradient_check.h"
#include "experiments/audit_precision.h"

namespace sextant {

struct AuditSettings {
  std::string only;  // a pattern with * and ? over "family/name", or a part of it; empty: all
  bool f64 = true, f32 = true;
  double tolerance = 1e-7;  // of finite differences; the twin, whose error is rounding alone, is held to a hundredth
  // Of f32 against f64, over the error to be expected (experiments/audit_precision.h). A sum that is rounded n times on
  // its way stands near the root of n; no case sums more than 256 terms in f32.
  double rounding = 16;
  int64_t entries_per_input = 48;  // entry by entry; larger inputs are sampled
  int directions = 3;
  uint64_t seed = 1;
  Fault* fault = nullptr;  // planted in all cases
};

struct CaseAudit {
  std::string family, name, label;
  std::vector<std::string> operations;  // through which gradients came: "linear, input 1"
  std::vector<std::string> tensors;     // the inputs' names
  std::vector<Shape> shapes;            // and shapes
  std::optional<GradientCheck> central, directional;
  std::optional<double> composed;      // relative difference from the twin
  std::optional<double> accumulation;  // relative error where gradients were there before
  bool fused = false;                  // it has a twin
  std::optional<Precision> precision;
  std::string no_precision;  // why not
  bool repeatable = true;
  std::vector<std::string> failures;  // a phrase each, with the place
  std::vector<std::string> located;   // of a wrong gradient: the contributions that may have made it wrong

  std::string entry() const { return family + "/" + name; }
  std::string place() const;  // of the worst entry: tensor, index, analytic, numeric
};

struct Suspect {
  std::string operation;
  int64_t located = 0;            // cases in which what is wrong was found right behind it
  int64_t failed = 0, cases = 0;  // of the cases that record it
  double score = 0;
};

struct EntryAudit {
  std::string family, name;
  std::vector<CaseAudit> cases;
  double seconds = 0;
  bool passed() const;
};

bool matches_audit(const std::string& pattern, const AuditEntry& entry);

CaseAudit audit_case(const AuditEntry& entry, const AuditCase& audit, const AuditSettings& settings);

// Throws Error when `only` matches nothing that is registered.
void require_audited(const std::string& only);

// Throws Error likewise. `watch`, if any, is called after each entry.
std::vector<EntryAudit> run_audit(const AuditSettings& settings,
                                  const std::function<void(const EntryAudit&)>& watch = {});

// Which contribution to a gradient the failures point at, best first: what stands right behind the wrong gradient
// nearest to the output (nearest_wrong_gradient) in most of them; then what is on the tapes of most failing cases (of
// all, when there is one fault), and of those what is on the fewest others. Score: failed / sqrt(all failed * cases
// with it), 1 when it is in all failing cases and in no other (Ochiai's coefficient, as in spectrum-based fault
// localisation, Abreu et al. 2007).
struct CaseOutcome {
  std::vector<std::string> operations;
  bool failed = false;
  std::vector<std::string> located = {};
};
std::vector<Suspect> suspects(const std::vector<CaseOutcome>& outcomes);

// The contributions that may have made a gradient of the function wrong; empty where none is.
std::vector<std::string> locate(const TapeFunction& function, const AuditCase& audit, const AuditSettings& settings);

std::string contribution_text(const std::string& operation, int input);  // "linear, input 1"
std::string index_text(int64_t flat, const Shape& shape);                // "[1, 4]"

}  // namespace sextant
