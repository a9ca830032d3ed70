#include "experiments/audit_plant.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/random.h"

namespace sextant {

namespace {

using Gradients = std::vector<std::vector<double>>;

// A case, with the gradients it has when nothing is planted.
struct Field {
  std::string entry;
  AuditCase audit;
  TapeFunction again;  // with every value used once more: for forgotten accumulation
  Gradients right, right_again;
  std::set<std::pair<std::string, int>> contributions;
  std::vector<std::string> operations;
  int64_t size = 0;  // nodes on the tape

  const TapeFunction& function(FaultKind kind) const {
    return kind == FaultKind::forgotten_accumulation ? again : audit.function;
  }
  const Gradients& expected(FaultKind kind) const {
    return kind == FaultKind::forgotten_accumulation ? right_again : right;
  }
};

Gradients gradients(const TapeFunction& function, std::span<const Tensor> inputs, Field* note = nullptr) {
  Tape tape;
  ContributionList list;
  if (note != nullptr) tape.set_witness(&list);
  std::vector<Variable> variables;
  for (const Tensor& input : inputs) variables.push_back(tape.variable(input));
  const Variable output = function(tape, variables);
  if (output.needs_gradient()) {
    const Tensor weights = tape.empty(output.shape(), output.dtype());
    fill_uniform(weights, Random(1, "gradient check"), -1.0, 1.0);
    tape.backward(output, weights);
  }
  if (note != nullptr) {
    note->size = tape.size();
    note->contributions.insert(list.all().begin(), list.all().end());
    for (const auto& [operation, input] : list.all()) note->operations.push_back(contribution_text(operation, input));
  }
  Gradients result;
  for (const Variable& x : variables) {
    const Tensor gradient = x.gradient();
    auto& values = result.emplace_back(static_cast<size_t>(x.value().elements()), 0.0);
    for (size_t i = 0; gradient.defined() && i < values.size(); ++i) values[i] = gradient.flat(static_cast<int64_t>(i));
  }
  return result;
}

// Every case that central differences go through, simplest first. They live in `arena`.
std::vector<Field> all_fields(Arena& arena) {
  std::vector<Field> fields;
  for (const AuditEntry& entry : audit_entries()) {
    for (AuditCase& audit : entry.cases(arena)) {
      if (!audit.differentiable_here || audit.large) continue;
      Field& field = fields.emplace_back();
      field.entry = entry.family + "/" + entry.name;
      field.audit = std::move(audit);
      field.again = with_every_value_used_again(field.audit.function);
      field.right = gradients(field.audit.function, field.audit.inputs, &field);
      field.right_again = gradients(field.again, field.audit.inputs);
    }
  }
  std::ranges::stable_sort(fields, [](const Field& a, const Field& b) { return a.size < b.size; });
  return fields;
}

// By how much entry i of one input's gradient differs, relative to the largest right or wrong entry of that input: as
// the check measures it.
double change(const std::vector<double>& right, const std::vector<double>& wrong, size_t i) {
  double largest = 1e-7;  // a gradient that is zero but for rounding does not change
  for (size_t k = 0; k < right.size(); ++k) largest = std::max(largest, std::abs(wrong[k]));
  return std::abs(right[i] - wrong[i]) / std::max(largest, std::abs(right[i]));
}

double largest_change(const Gradients& right, const Gradients& wrong) {
  double largest = 0;
  for (size_t input = 0; input < right.size(); ++input)
    for (size_t i = 0; i < right[input].size(); ++i) largest = std::max(largest, change(right[input], wrong[input], i));
  return largest;
}

// Those that share the first place.
std::vector<std::string> best(const std::vector<Suspect>& all) {
  std::vector<std::string> names;
  for (const Suspect& suspect : all)
    if (suspect.located == all[0].located && suspect.failed == all[0].failed && suspect.score >= all[0].score - 1e-12)
      names.push_back(suspect.operation);
  return names;
}

PlantedFault plant(const std::vector<Field>& fields, const std::string& operation, int input, FaultKind kind,
                   const AuditSettings& settings) {
  PlantedFault result{operation, input, kind, {}, {}, false, false, false, false, {}, {}};
  Fault fault(operation, input, kind);
  AuditSettings planted = settings;
  planted.fault = &fault;
  std::vector<CaseOutcome> outcomes;
  std::vector<std::pair<const Field*, Gradients>> changed;
  int located = 0;
  for (const Field& field : fields) {
    CaseOutcome& outcome = outcomes.emplace_back(CaseOutcome{field.operations, false});
    if (!field.contributions.contains({operation, input})) continue;
    Gradients wrong = gradients(fault.in(field.function(kind)), field.audit.inputs);
    const double size = largest_change(field.expected(kind), wrong);
    outcome.failed = !(size <= settings.tolerance);
    // In the three simplest cases: the rest would only say it again.
    if (outcome.failed && located++ < 3) outcome.located = locate(field.function(kind), field.audit, planted);
    if (size > 10 * settings.tolerance) changed.emplace_back(&field, std::move(wrong));
  }
  for (const auto& [field, wrong] : changed) {
    result.entry = field->entry;
    result.label = field->audit.label;
    const GradientCheck check =
        check_gradients(fault.in(field->function(kind)), field->audit.inputs,
                        {.step = field->audit.step, .entries_per_input = settings.entries_per_input, .seed = 1});
    result.text = check.text();
    result.caught = !(check.worst_error <= settings.tolerance);
    if (!result.caught) continue;  // at extreme inputs rounding may hide it
    const auto at = static_cast<size_t>(check.input);
    result.placed = change(field->expected(kind)[at], wrong[at], static_cast<size_t>(check.index)) > settings.tolerance;
    break;
  }
  result.harmless = !fault.changed_anything();
  if (changed.empty()) return result;
  result.suspected = best(suspects(outcomes));
  result.named = result.suspected == std::vector{contribution_text(operation, input)};
  return result;
}

}  // namespace

std::vector<PlantedFault> plant_faults(const AuditSettings& settings,
                                       const std::function<void(const PlantedFault&)>& watch) {
  Arena arena;
  const std::vector<Field> fields = all_fields(arena);
  std::set<std::pair<std::string, int>> places;
  for (const Field& field : fields) places.insert(field.contributions.begin(), field.contributions.end());
  std::vector<PlantedFault> results;
  for (const auto& [operation, input] : places) {
    if (!settings.only.empty() && operation.find(settings.only) == std::string::npos) continue;
    for (const FaultKind kind : fault_kinds) {
      results.push_back(plant(fields, operation, input, kind, settings));
      if (watch) watch(results.back());
    }
  }
  require(!results.empty(), "--only: no operation's name contains '{}'", settings.only);
  return results;
}

}  // namespace sextant
