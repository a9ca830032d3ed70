#include "experiments/audit.h"

#include <fnmatch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <tuple>

#include "core/error.h"
#include "positional/spec.h"

namespace sextant {

std::string index_text(int64_t flat, const Shape& shape) {
  std::string text;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    const int64_t size = std::max<int64_t>(1, shape[dim]);
    text = std::to_string(flat % size) + (text.empty() ? "" : ", ") + text;
    flat /= size;
  }
  return "[" + text + "]";
}

std::string contribution_text(const std::string& operation, int input) {
  return fmt::format("{}, input {}", operation, input);
}

namespace {

std::string tensor_name(const AuditCase& audit, int input) {
  const auto place = static_cast<size_t>(input);
  return place < audit.input_names.size() ? audit.input_names[place] : "input " + std::to_string(input);
}

// Through which operations and inputs of theirs gradients come.
std::vector<std::string> operations_of(const TapeFunction& function, std::span<const Tensor> inputs) {
  ContributionList list;
  Tape tape;
  tape.set_witness(&list);
  std::vector<Variable> variables;
  for (const Tensor& input : inputs) variables.push_back(tape.variable(input));
  const Variable output = function(tape, variables);
  if (output.needs_gradient()) tape.backward(output, full(tape.arena(), output.shape(), 1.0, output.dtype()));
  std::vector<std::string> names;
  for (const auto& [operation, input] : list.all()) names.push_back(contribution_text(operation, input));
  return names;
}

void check_f64(CaseAudit& result, const AuditCase& audit, const AuditSettings& settings) {
  const auto planted = [&](const TapeFunction& function) {
    return settings.fault == nullptr ? function : settings.fault->in(function);
  };
  const TapeFunction function = planted(audit.function);
  const auto fail_if = [&](bool failed, std::string phrase) {
    if (failed) result.failures.push_back(std::move(phrase));
  };
  const auto where = [&](const GradientCheck& check) {
    return fmt::format("{} {}: analytic {:.9g}, numeric {:.9g}", tensor_name(audit, check.input),
                       index_text(check.index, audit.inputs[static_cast<size_t>(check.input)].shape()), check.analytic,
                       check.numeric);
  };
  if (audit.differentiable_here && !audit.large) {
    result.central =
        check_gradients(function, audit.inputs,
                        {.step = audit.step, .entries_per_input = settings.entries_per_input, .seed = settings.seed});
    const GradientCheck& check = *result.central;
    result.repeatable = check.repeatable;
    fail_if(!(check.worst_error <= settings.tolerance),
            fmt::format("central differences {:.3g}: {}", check.worst_error, check.input < 0 ? "" : where(check)));
  }
  if (audit.differentiable_here && audit.step == 0 && settings.directions > 0) {
    result.directional = check_directional(function, audit.inputs, settings.directions, settings.seed);
    const GradientCheck& check = *result.directional;
    result.repeatable = result.repeatable && check.repeatable;
    fail_if(!(check.worst_error <= settings.tolerance),
            fmt::format("directional derivative {:.3g}: direction {}: analytic {:.9g}, numeric {:.9g}",
                        check.worst_error, check.index, check.analytic, check.numeric));
  }
  if (audit.composed) {
    result.composed = worst_difference(function, planted(audit.composed), audit.inputs, settings.seed);
    fail_if(!(*result.composed <= settings.tolerance / 100), fmt::format("composed twin: {:.3g}", *result.composed));
  }
  if (audit.differentiable_here && audit.step == 0 && !audit.large) {
    result.accumulation =
        check_directional(with_every_value_used_again(function), audit.inputs, 1, settings.seed).worst_error;
    fail_if(!(*result.accumulation <= settings.tolerance),
            fmt::format("adding to gradients that are there already: {:.3g}", *result.accumulation));
  }
  const bool wrong = !result.failures.empty() && audit.differentiable_here && !audit.large;
  if (wrong) result.located = locate(audit.function, audit, settings);
  if (wrong && result.located.empty())  // right when alone: then where it should have been added
    result.located = locate(with_every_value_used_again(audit.function), audit, settings);
  fail_if(!result.repeatable, "two backward passes differ");
}

void check_f32(CaseAudit& result, const AuditCase& audit, const AuditSettings& settings) {
  try {
    result.precision = compare_precision(audit, settings.seed, result.no_precision);
  } catch (const Error& error) {
    result.failures.push_back(fmt::format("f32: {}", error.what()));
  }
  if (!result.precision) return;
  const Precision& precision = *result.precision;
  if (!(precision.excess <= settings.rounding)) {
    const PrecisionPlace& at = precision.excess_at;
    result.failures.push_back(fmt::format(
        "f32: {:.3g} times the error to be expected in the {} [{}]: f64 {:.9g}, f32 {:.9g}", precision.excess,
        at.tensor < 0 ? "output" : "gradient of " + tensor_name(audit, at.tensor), at.index, at.in_f64, at.in_f32));
  }
  if (!precision.repeatable) result.failures.push_back("two f32 runs differ");
}

}  // namespace

std::string CaseAudit::place() const {
  if (!central || central->input < 0 || central->entries == 0) return "";
  const auto input = static_cast<size_t>(central->input);
  return fmt::format("{}, {} {}: analytic {:.6g}, numeric {:.6g}", label, tensors[input],
                     index_text(central->index, shapes[input]), central->analytic, central->numeric);
}

bool EntryAudit::passed() const {
  return std::ranges::all_of(cases, [](const CaseAudit& one) { return one.failures.empty(); });
}

bool matches_audit(const std::string& pattern, const AuditEntry& entry) {
  const std::string full = entry.family + "/" + entry.name;
  if (pattern.find_first_of("*?[") == std::string::npos) return full.find(pattern) != std::string::npos;
  return ::fnmatch(pattern.c_str(), full.c_str(), 0) == 0 || ::fnmatch(pattern.c_str(), entry.name.c_str(), 0) == 0;
}

std::vector<std::string> locate(const TapeFunction& function, const AuditCase& audit, const AuditSettings& settings) {
  const WrongGradient wrong =
      nearest_wrong_gradient(function, audit.inputs, 10 * settings.tolerance, settings.fault, settings.seed);
  std::vector<std::string> contributions;
  for (const auto& [operation, input] : wrong.contributors)
    contributions.push_back(contribution_text(operation, input));
  return contributions;
}

CaseAudit audit_case(const AuditEntry& entry, const AuditCase& audit, const AuditSettings& settings) {
  CaseAudit result;
  result.family = entry.family;
  result.name = entry.name;
  result.label = audit.label;
  result.fused = static_cast<bool>(audit.composed);
  result.operations = operations_of(audit.function, audit.inputs);
  for (size_t i = 0; i < audit.inputs.size(); ++i) {
    result.tensors.push_back(tensor_name(audit, static_cast<int>(i)));
    result.shapes.push_back(audit.inputs[i].shape());
  }
  if (settings.f64) check_f64(result, audit, settings);
  if (settings.f32) check_f32(result, audit, settings);
  return result;
}

void require_audited(const std::string& only) {
  std::vector<std::string> names;
  for (const AuditEntry& entry : audit_entries()) {
    names.push_back(entry.name);
    if (matches_audit(only, entry)) return;
  }
  fail("--only: nothing registered matches '{}'; the nearest name is '{}'", only, nearest(only, names));
}

std::vector<EntryAudit> run_audit(const AuditSettings& settings, const std::function<void(const EntryAudit&)>& watch) {
  require_audited(settings.only);
  std::vector<EntryAudit> results;
  for (const AuditEntry& entry : audit_entries()) {
    if (!matches_audit(settings.only, entry)) continue;
    const auto start = std::chrono::steady_clock::now();
    Arena arena;
    EntryAudit& result = results.emplace_back();
    result.family = entry.family;
    result.name = entry.name;
    for (const AuditCase& audit : entry.cases(arena)) result.cases.push_back(audit_case(entry, audit, settings));
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (watch) watch(result);
  }
  return results;
}

std::vector<Suspect> suspects(const std::vector<CaseOutcome>& outcomes) {
  std::map<std::string, Suspect> by_name;
  int64_t failed = 0;
  for (const CaseOutcome& outcome : outcomes) {
    failed += outcome.failed;
    for (const std::string& operation : outcome.located) ++by_name[operation].located;
    for (const std::string& operation : outcome.operations) {
      Suspect& suspect = by_name[operation];
      suspect.operation = operation;
      ++suspect.cases;
      suspect.failed += outcome.failed;
    }
  }
  std::vector<Suspect> all;
  for (auto& [name, suspect] : by_name) {
    if (suspect.failed == 0) continue;
    suspect.score = static_cast<double>(suspect.failed) /
                    std::sqrt(static_cast<double>(failed) * static_cast<double>(suspect.cases));
    all.push_back(suspect);
  }
  std::ranges::stable_sort(all, [](const Suspect& a, const Suspect& b) {
    return std::tuple(a.located, a.failed, a.score) > std::tuple(b.located, b.failed, b.score);
  });
  return all;
}

}  // namespace sextant
