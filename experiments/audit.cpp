#include "experiments/audit.h"

#include <fnmatch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "core/error.h"
#include "core/random.h"
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

// The gradients of <w, f(inputs)>, of f itself where its output is one number; zeros where f does not depend on an
// input.
std::vector<std::vector<double>> gradients(const TapeFunction& function, std::span<const Tensor> inputs,
                                           Tape::Witness* witness = nullptr) {
  Tape tape;
  tape.set_witness(witness);
  std::vector<Variable> variables;
  for (const Tensor& input : inputs) variables.push_back(tape.variable(input));
  const Variable output = function(tape, variables);
  const Tensor weights = tape.empty(output.shape(), output.dtype());
  fill_uniform(weights, Random(1, "gradient check"), -1.0, 1.0);
  if (output.shape().rank() == 0) weights.fill(1.0);
  if (output.needs_gradient()) tape.backward(output, weights);
  std::vector<std::vector<double>> result;
  for (const Variable& x : variables) {
    const Tensor gradient = x.gradient();
    auto& values = result.emplace_back(static_cast<size_t>(x.value().elements()), 0.0);
    for (size_t i = 0; gradient.defined() && i < values.size(); ++i) values[i] = gradient.flat(static_cast<int64_t>(i));
  }
  return result;
}

// Largest |(gradient of f used again) - 1 - (gradient of f)|, relative to the largest gradient of the same input, or
// to 1.
double accumulation_error(const TapeFunction& function, std::span<const Tensor> inputs) {
  const auto alone = gradients(function, inputs), again = gradients(with_inputs_used_again(function), inputs);
  double worst = 0;
  for (size_t input = 0; input < alone.size(); ++input) {
    double largest = 1;
    for (const double x : alone[input])
      if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    for (size_t i = 0; i < alone[input].size(); ++i) {
      const double error = std::abs(again[input][i] - 1 - alone[input][i]) / largest;
      if (!(error <= worst)) worst = std::isfinite(error) ? error : INFINITY;
    }
  }
  return worst;
}

std::vector<std::string> operations_of(const TapeFunction& function, std::span<const Tensor> inputs) {
  ContributionList list;
  gradients(function, inputs, &list);
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
    result.central = check_gradients(function, audit.inputs,
                                     {.entries_per_input = settings.entries_per_input, .seed = settings.seed});
    const GradientCheck& check = *result.central;
    result.repeatable = check.repeatable;
    fail_if(!(check.worst_error <= settings.tolerance),
            fmt::format("central differences {:.3g}: {}", check.worst_error, check.input < 0 ? "" : where(check)));
  }
  if (audit.differentiable_here && settings.directions > 0) {
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
  result.accumulation = accumulation_error(function, audit.inputs);
  fail_if(audit.differentiable_here && !(*result.accumulation <= 1e-12),
          fmt::format("adding to gradients that are there already: {:.3g}", *result.accumulation));
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
  if (!(precision.worst <= settings.ulps)) {
    const std::string tensor = precision.tensor < 0 ? "output" : "gradient of " + tensor_name(audit, precision.tensor);
    result.failures.push_back(fmt::format("f32: {:.3g} ulps in the {} [{}]: f64 {:.9g}, f32 {:.9g}", precision.worst,
                                          tensor, precision.index, precision.in_f64, precision.in_f32));
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

CaseAudit audit_case(const AuditEntry& entry, const AuditCase& audit, const AuditSettings& settings) {
  CaseAudit result;
  result.family = entry.family;
  result.name = entry.name;
  result.label = audit.label;
  result.operations = operations_of(audit.function, audit.inputs);
  for (size_t i = 0; i < audit.inputs.size(); ++i) {
    result.tensors.push_back(tensor_name(audit, static_cast<int>(i)));
    result.shapes.push_back(audit.inputs[i].shape());
  }
  if (settings.f64) check_f64(result, audit, settings);
  if (settings.f32) check_f32(result, audit, settings);
  return result;
}

std::vector<EntryAudit> run_audit(const AuditSettings& settings, const std::function<void(const EntryAudit&)>& watch) {
  std::vector<EntryAudit> results;
  std::vector<std::string> names;
  for (const AuditEntry& entry : audit_entries()) {
    names.push_back(entry.name);
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
  require(!results.empty(), "--only: nothing registered matches '{}'; the nearest name is '{}'", settings.only,
          nearest(settings.only, names));
  return results;
}

std::vector<Suspect> suspects(const std::vector<CaseOutcome>& outcomes) {
  std::map<std::string, Suspect> by_name;
  int64_t failed = 0;
  for (const CaseOutcome& outcome : outcomes) {
    failed += outcome.failed;
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
    return std::pair(a.failed, a.score) > std::pair(b.failed, b.score);
  });
  return all;
}

}  // namespace sextant
