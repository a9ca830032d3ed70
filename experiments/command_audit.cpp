// sextant audit: every gradient against finite differences, its composed twin and f32, and the audit itself against
// planted faults.
#include <algorithm>

#include "autograd/formula.h"
#include "core/error.h"
#include "core/parallel.h"
#include "experiments/audit_report.h"
#include "experiments/command.h"
#include "positional/spec.h"

namespace sextant {

namespace {

std::optional<DType> dtype_of_option(const Arguments& arguments) {
  const std::string& text = arguments.text("dtype");
  require(text.empty() || text == "f32" || text == "f64", "--dtype: '{}' is neither f32 nor f64", text);
  if (text.empty()) return std::nullopt;
  return text == "f32" ? DType::f32 : DType::f64;
}

AuditSettings settings_of(const Arguments& arguments) {
  AuditSettings settings;
  settings.only = arguments.text("only");
  const std::optional<DType> dtype = dtype_of_option(arguments);
  settings.f64 = dtype != DType::f32;
  settings.f32 = dtype != DType::f64;
  settings.tolerance = arguments.number("tolerance", 0, 1);
  settings.rounding = arguments.number("rounding", 0);
  settings.seed = arguments.seed();
  return settings;
}

// "wrong sign in linear, input 1" as it is written in reports.
Fault parse_fault(const std::string& text) {
  for (const FaultKind kind : fault_kinds) {
    const std::string start = fmt::format("{} in ", name_of(kind));
    const size_t end = text.rfind(", input ");
    if (!text.starts_with(start) || end == std::string::npos || end <= start.size()) continue;
    const int64_t input = parse_integer(text.substr(end + 8), "--plant: the input's number", 0, 1000);
    const std::string operation = text.substr(start.size(), end - start.size());
    std::vector<std::string> names;
    for (const Formula& formula : formulas()) names.push_back(formula.operation);
    require(formula_of(operation) != nullptr, "--plant: there is no operation '{}'; the nearest name is '{}'",
            operation, nearest(operation, names));
    return Fault(operation, static_cast<int>(input), kind);
  }
  std::string kinds;
  for (const FaultKind kind : fault_kinds) kinds += fmt::format("{}{}", kinds.empty() ? "" : ", ", name_of(kind));
  fail("--plant: '{}' must be 'all' or like 'wrong sign in linear, input 1', with one of: {}", text, kinds);
}

bool on_a_tape(const std::vector<EntryAudit>& entries, const Fault& fault) {
  const std::string contribution = contribution_text(fault.operation(), fault.input());
  return std::ranges::any_of(entries, [&](const EntryAudit& entry) {
    return std::ranges::any_of(entry.cases, [&](const CaseAudit& one) {
      return std::ranges::find(one.operations, contribution) != one.operations.end();
    });
  });
}

int plant_all(const Arguments& arguments) {
  const std::vector<PlantedFault> faults = plant_faults(settings_of(arguments), [&](const PlantedFault& fault) {
    if (!fault.planted() || (fault.caught && fault.placed && fault.named)) return;
    arguments.say("{} {} in {}, input {} ({}, {}): {}; suspected {}\n", fault.caught ? "MISNAMED" : "MISSED",
                  name_of(fault.kind), fault.operation, fault.input, fault.entry, fault.label, fault.text,
                  fmt::join(fault.suspected, ", "));
  });
  const nlohmann::json result = to_json(faults);
  for (const FaultKind kind : fault_kinds) {
    const auto count = [&](auto which) {
      return std::ranges::count_if(faults,
                                   [&](const PlantedFault& fault) { return fault.kind == kind && which(fault); });
    };
    arguments.say("{:<24} {:>4} planted, {:>4} caught, {:>4} placed and named; {:>3} change no number\n", name_of(kind),
                  count([](const PlantedFault& fault) { return fault.planted(); }),
                  count([](const PlantedFault& fault) { return fault.caught; }),
                  count([](const PlantedFault& fault) { return fault.placed && fault.named; }),
                  count([](const PlantedFault& fault) { return !fault.planted(); }));
  }
  arguments.say(
      "{} faults planted, {} caught, {} at the right input, {} named by operation and input. {} more leave every "
      "number "
      "as it is, in all cases: one entry, one axis, equal entries\n",
      result["planted"].get<int64_t>(), result["caught"].get<int64_t>(), result["placed"].get<int64_t>(),
      result["named"].get<int64_t>(), result["tried"].get<int64_t>() - result["planted"].get<int64_t>());
  arguments.print_json(result);
  const bool all = result["caught"] == result["planted"] && result["placed"] == result["planted"] &&
                   result["named"] == result["planted"];
  return static_cast<int>(all ? Status::done : Status::check_failed);
}

int compare_with(const Arguments& arguments) {
  const GradientComparison comparison =
      compare_gradients(arguments.text("against"), arguments.positional(0), dtype_of_option(arguments));
  // In f32 both sides round: a thousand ulps of the largest entry.
  const double tolerance =
      arguments.given("tolerance") || comparison.dtype == DType::f64 ? arguments.number("tolerance", 0, 1) : 1e-4;
  arguments.say("{} against {}: largest difference over the tensor's largest entry\n", comparison.theirs,
                comparison.ours);
  int64_t failed = 0;
  for (const TensorDifference& one : comparison.tensors) {
    const bool bad = !(one.error <= tolerance);
    failed += bad;
    arguments.say("{:<44} {:>9.2e}  {} {}: ours {:.9g}, theirs {:.9g}{}\n", one.name, one.error, one.shape.text(),
                  index_text(one.index, one.shape), one.ours, one.theirs, bad ? "  FAILED" : "");
  }
  for (const std::string& name : comparison.only_ours) arguments.say("{:<44} only ours  FAILED\n", name);
  for (const std::string& name : comparison.only_theirs) arguments.say("{:<44} only theirs  FAILED\n", name);
  failed += static_cast<int64_t>(comparison.only_ours.size() + comparison.only_theirs.size());
  arguments.say("{} tensors compared, {} differ by more than {:g} or lack a partner\n", comparison.tensors.size(),
                failed, tolerance);
  nlohmann::json result = to_json(comparison);
  result["tolerance"] = tolerance;
  result["passed"] = failed == 0;
  arguments.print_json(result);
  return static_cast<int>(failed == 0 ? Status::done : Status::check_failed);
}

int run(const Arguments& arguments) {
  if (!arguments.given("threads")) set_threads(1);  // nearly all cases are too small to share
  require(arguments.given("against") || arguments.positionals().empty(),
          "'{}' needs --against FILE.safetensors to be compared with", arguments.positional(0));
  if (arguments.given("against")) {
    for (const char* other : {"only", "html", "plant", "rounding"})
      require(!arguments.given(other), "--{} has no meaning with --against, which compares with a file", other);
    return compare_with(arguments);
  }
  if (arguments.text("plant") == "all") return plant_all(arguments);
  AuditSettings settings = settings_of(arguments);
  std::optional<Fault> fault;
  if (arguments.given("plant")) settings.fault = &fault.emplace(parse_fault(arguments.text("plant")));
  require_audited(settings.only);
  arguments.say("{}", table_header());
  const std::vector<EntryAudit> entries =
      run_audit(settings, [&](const EntryAudit& entry) { arguments.say("{}", table_row(entry)); });
  require(!fault || on_a_tape(entries, *fault), "--plant: no audited case has a gradient of {}",
          contribution_text(fault ? fault->operation() : "", fault ? fault->input() : 0));
  const nlohmann::json result = to_json(entries, settings);
  const bool passed = result["passed"];
  if (!passed) arguments.say("\n{}", failure_text(entries));
  arguments.say("{} entries with {} cases: {}\n", entries.size(), result["cases"].get<int64_t>(),
                passed ? "all within tolerance" : "FAILED");
  if (arguments.given("html"))
    for (const std::string& path : write_audit_page(arguments.text("html"), entries, settings))
      arguments.say("wrote {}\n", path);
  arguments.print_json(result);
  return static_cast<int>(passed ? Status::done : Status::check_failed);
}

const RegisterCommand registered(
    {.name = "audit",
     .summary = "every differentiable piece against finite differences in f64, its composed twin, and f32",
     .positionals = {{"OURS", "with --against: a checkpoint, a run folder or a file that `sextant grads` wrote",
                      false}},
     .options = {{"only", "PATTERN", "",
                  "part of FAMILY/NAME, or a pattern with * and ?, as 'strategy/*' or 'linear*'"},
                 {"dtype", "TYPE", "", "f64: gradients alone; f32: its distance from f64 alone (default: both)"},
                 {"tolerance", "X", "1e-7",
                  "largest error of a gradient, relative to its tensor's largest; the twin is held to X/100"},
                 {"rounding", "N", "16",
                  "largest error of f32, over what moving each number by half an ulp makes of the same case"},
                 {"html", "FILE", "",
                  "writes the results as one self-contained page, with its tables as CSV beside it"},
                 {"plant", "FAULT", "",
                  "'all': plants faults in each operation in turn and counts those caught; or one, as 'wrong sign in "
                  "linear, input 1'"},
                 {"against", "FILE", "",
                  "compares with the gradients grad.NAME in this safetensors file, by name, worst first"}},
     .run = run,
     .details = "The table's columns: the worst error against central differences, entry by entry; along random "
                "directions; against the composed twin; the distance of f32 from f64 in ulps of each tensor's largest "
                "entry, median and max, and over the error to be expected of it; whether two backward passes agree bit "
                "for bit; where the worst entry is.\n"
                "Exit status 1 when anything exceeds its tolerance.\n"
                "--against alone computes ours from FILE itself: weights by name, `config` in its metadata, `tokens` "
                "[B, T+1] of integers."});

}  // namespace

}  // namespace sextant
