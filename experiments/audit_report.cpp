#include "experiments/audit_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiments/audit_limits.h"
#include "experiments/page.h"

namespace sextant {

namespace {

std::vector<Suspect> suspects_of(const std::vector<EntryAudit>& entries) {
  std::vector<CaseOutcome> outcomes;
  for (const EntryAudit& entry : entries)
    for (const CaseAudit& one : entry.cases) outcomes.push_back({one.operations, !one.failures.empty(), one.located});
  return suspects(outcomes);
}

std::string f32_place(const CaseAudit& one) {
  const PrecisionPlace& at = one.precision->excess_at;
  const std::string tensor = at.tensor < 0 ? "output" : "gradient of " + one.tensors[static_cast<size_t>(at.tensor)];
  return fmt::format("{}: {} [{}]: f64 {:.9g}, f32 {:.9g}", one.label, tensor, at.index, at.in_f64, at.in_f32);
}

std::string error_text(double error) {
  return error < 0 ? "-" : error == 0 ? "0" : fmt::format("{:.1e}", error);
}

int64_t count_cases(const std::vector<EntryAudit>& entries) {
  int64_t count = 0;
  for (const EntryAudit& entry : entries) count += static_cast<int64_t>(entry.cases.size());
  return count;
}

}  // namespace

EntrySummary summary_of(const EntryAudit& entry) {
  EntrySummary result;
  std::vector<double> errors;
  for (const CaseAudit& one : entry.cases) {
    result.repeatable = result.repeatable && one.repeatable && (!one.precision || one.precision->repeatable);
    result.fused = result.fused || one.fused;
    if (one.central && one.central->entries > 0) {
      result.entries += one.central->entries;
      result.unconfirmed += one.central->unconfirmed;
      if (result.worst_central == nullptr || one.central->worst_error > result.central) result.worst_central = &one;
      result.central = std::max(result.central, one.central->worst_error);
    }
    if (one.directional) result.directional = std::max(result.directional, one.directional->worst_error);
    if (one.composed) result.composed = std::max(result.composed, *one.composed);
    if (!one.precision) continue;
    errors.insert(errors.end(), one.precision->errors.begin(), one.precision->errors.end());
    result.cancelled += one.precision->cancelled;
    if (result.worst_f32 == nullptr || one.precision->excess > result.excess) result.worst_f32 = &one;
    result.excess = std::max(result.excess, one.precision->excess);
    result.worst_ulps = std::max(result.worst_ulps, one.precision->worst);
  }
  std::ranges::sort(errors);
  result.f32_entries = static_cast<int64_t>(errors.size());
  if (!errors.empty()) result.median_ulps = errors[errors.size() / 2];
  return result;
}

std::string table_header() {
  constexpr const char* line = "{:<34} {:>5} {:>8} {:>8} {:>8} {:>7} {:>7} {:>6} {:>5}  {}\n";
  return fmt::format(fmt::runtime(line), "", "cases", "central", "along", "twin", "ulps", "ulps", "over", "same", "") +
         fmt::format(fmt::runtime(line), "", "", "differ.", "direct.", "", "median", "max", "expec.", "bits",
                     "worst entry");
}

std::string table_row(const EntryAudit& entry) {
  const EntrySummary all = summary_of(entry);
  const auto f32 = [&](double number) { return all.f32_entries == 0 ? "-" : fmt::format("{:.2g}", number); };
  return fmt::format("{:<34} {:>5} {:>8} {:>8} {:>8} {:>7} {:>7} {:>6} {:>5}  {}{}\n", entry.family + "/" + entry.name,
                     entry.cases.size(), error_text(all.central), error_text(all.directional), error_text(all.composed),
                     f32(all.median_ulps), f32(all.worst_ulps), f32(all.excess), all.repeatable ? "yes" : "NO",
                     entry.passed() ? "" : "FAILED  ", all.worst_central == nullptr ? "" : all.worst_central->place());
}

std::string failure_text(const std::vector<EntryAudit>& entries) {
  std::string text;
  for (const EntryAudit& entry : entries)
    for (const CaseAudit& one : entry.cases)
      for (const std::string& failure : one.failures)
        text += fmt::format("FAILED {} ({}): {}\n", one.entry(), one.label, failure);
  const std::vector<Suspect> all = suspects_of(entries);
  for (size_t i = 0; i < std::min<size_t>(3, all.size()); ++i) {
    if (all[0].located > 0 && all[i].located == 0) break;
    text += fmt::format("suspect {}: {} (right behind what is wrong in {} cases; of {} that record it {} fail)\n",
                        i + 1, all[i].operation, all[i].located, all[i].cases, all[i].failed);
  }
  return text;
}

nlohmann::json to_json(const std::vector<EntryAudit>& entries, const AuditSettings& settings) {
  nlohmann::json list = nlohmann::json::array(), suspected = nlohmann::json::array();
  bool passed = true;
  for (const EntryAudit& entry : entries) {
    const EntrySummary all = summary_of(entry);
    passed = passed && entry.passed();
    nlohmann::json item = {{"family", entry.family},   {"name", entry.name},           {"cases", entry.cases.size()},
                           {"passed", entry.passed()}, {"repeatable", all.repeatable}, {"entries", all.entries},
                           {"seconds", entry.seconds}};
    if (all.central >= 0) item["central"] = all.central;
    if (all.directional >= 0) item["directional"] = all.directional;
    if (settings.f64) item["unconfirmed"] = all.unconfirmed;
    if (all.composed >= 0) item["composed"] = all.composed;
    if (settings.f64 && all.worst_central != nullptr) {
      const GradientCheck& check = *all.worst_central->central;
      item["worst"] = {{"case", all.worst_central->label},
                       {"tensor", all.worst_central->tensors[static_cast<size_t>(check.input)]},
                       {"index", check.index},
                       {"analytic", check.analytic},
                       {"numeric", check.numeric}};
    }
    if (all.worst_f32 != nullptr)
      item["f32"] = {{"median_ulps", all.median_ulps}, {"max_ulps", all.worst_ulps},
                     {"over_expected", all.excess},    {"entries", all.f32_entries},
                     {"cancelled", all.cancelled},     {"worst", f32_place(*all.worst_f32)}};
    item["failures"] = nlohmann::json::array();
    for (const CaseAudit& one : entry.cases)
      for (const std::string& failure : one.failures)
        item["failures"].push_back({{"case", one.label}, {"what", failure}});
    list.push_back(std::move(item));
  }
  for (const Suspect& suspect : suspects_of(entries))
    suspected.push_back({{"operation", suspect.operation},
                         {"located", suspect.located},
                         {"failed", suspect.failed},
                         {"cases", suspect.cases},
                         {"score", suspect.score}});
  return {{"passed", passed},
          {"tolerance", settings.tolerance},
          {"rounding", settings.rounding},
          {"cases", count_cases(entries)},
          {"suspects", suspected},
          {"audited", list}};
}

nlohmann::json to_json(const std::vector<PlantedFault>& faults) {
  nlohmann::json list = nlohmann::json::array();
  for (const PlantedFault& fault : faults)
    list.push_back({{"operation", fault.operation},
                    {"input", fault.input},
                    {"kind", name_of(fault.kind)},
                    {"planted", fault.planted()},
                    {"caught", fault.caught},
                    {"placed", fault.placed},
                    {"named", fault.named},
                    {"entry", fault.entry},
                    {"case", fault.label},
                    {"suspected", fault.suspected}});
  const auto count = [&](auto which) { return std::ranges::count_if(faults, which); };
  return {{"tried", faults.size()},
          {"planted", count([](const PlantedFault& fault) { return fault.planted(); })},
          {"caught", count([](const PlantedFault& fault) { return fault.caught; })},
          {"placed", count([](const PlantedFault& fault) { return fault.placed; })},
          {"named", count([](const PlantedFault& fault) { return fault.named; })},
          {"faults", list}};
}

nlohmann::json to_json(const GradientComparison& comparison) {
  nlohmann::json list = nlohmann::json::array();
  for (const TensorDifference& one : comparison.tensors)
    list.push_back(
        {{"name", one.name}, {"error", one.error}, {"index", one.index}, {"ours", one.ours}, {"theirs", one.theirs}});
  return {{"theirs", comparison.theirs},       {"ours", comparison.ours},
          {"worst", comparison.worst()},       {"tensors", list},
          {"only_ours", comparison.only_ours}, {"only_theirs", comparison.only_theirs}};
}

namespace {

void add_summary(Page& page, const std::vector<EntryAudit>& entries, const AuditSettings& settings) {
  const int64_t cases = count_cases(entries),
                failed = std::ranges::count_if(entries, [](const EntryAudit&entry) { return !entry.passed(); });
  double seconds = 0;
  int64_t checked = 0;
  for (const EntryAudit& entry : entries) seconds += entry.seconds, checked += summary_of(entry).entries;
  page.paragraph(fmt::format(
      "{} operations, layers and position strategies at {} inputs, {} gradient entries one by one: {}. Tolerance {:g} "
      "for finite differences, {:g} for the "
      "composed twin, {:g} times the expected error for f32; {:.1f} seconds.",
      entries.size(), cases, checked, failed == 0 ? "all within tolerance" : fmt::format("{} FAILED", failed),
      settings.tolerance, settings.tolerance / 100, settings.rounding, seconds));
  if (failed > 0) page.code(failure_text(entries));
}

void add_gradients(Page& page, const std::vector<EntryAudit>& entries) {
  page.heading("Gradients in f64");
  page.paragraph(
      "Worst error over all inputs of each: against 4-point central differences entry by entry; along random "
      "directions of all inputs together (the only "
      "check at large shapes); and against the same function composed of elementary operations. An error is the "
      "difference, less what rounding explains, "
      "over the largest gradient of the same tensor: 0 means that rounding explains all of it.");
  Table table{{"audited", "cases", "central", "directional", "twin", "same bits"}, {}};
  Table places{{"audited", "worst entry against central differences"}, {}, true};
  for (const EntryAudit& entry : entries) {
    const EntrySummary all = summary_of(entry);
    const std::string name = entry.family + "/" + entry.name + (entry.passed() ? "" : " (failed)");
    table.rows.push_back({name, std::to_string(entry.cases.size()), error_text(all.central),
                          error_text(all.directional), error_text(all.composed), all.repeatable ? "yes" : "no"});
    if (all.worst_central != nullptr && all.central > 0) places.rows.push_back({name, all.worst_central->place()});
  }
  page.table(table, "gradients");
  page.heading("Where the worst entries are");
  page.paragraph(
      "Case, tensor, and the analytic and the numeric derivative, for those whose error is more than rounding.");
  page.table(places, "places");
}

// What "expected" is, and the tables of f32.
void add_precision(Page& page, const std::vector<EntryAudit>& entries, const AuditSettings& settings) {
  page.heading("What f32 costs");
  page.paragraph(
      "The same inputs, rounded to f32 beforehand, through the f32 and the f64 code; all outputs and gradients "
      "compared. The unit is the ulp of the tensor: the distance between neighbouring f32 numbers at its largest "
      "entry, 2^(floor(log2 max|x|) - 23). A gradient that is zero but for cancellation (below 2^-24 of the largest "
      "entry of all tensors) is measured at that largest entry.");
  page.paragraph(fmt::format(
      "How many ulps are right depends on the numbers: terms that cancel cost what they cost. So each case is also run "
      "in f64 with every input, value and gradient on its tape moved by up to 2^-24 of its size, which is what one "
      "rounding to f32 may do, eight times over; and so is its composed twin, whose tape shows what a fused operation "
      "has inside. The largest move of a tensor's entries is the error to be expected of it, half an ulp at least; "
      "'over expected' is the largest error of f32 over it. A careful f32 code stands near 1, one that rounds n "
      "terms of a sum one after the other near the root of n, one that loses bits it need not lose far above. The "
      "limit here is {:g}; no case sums more than 256 terms in f32.",
      settings.rounding));
  page.paragraph(
      "Cancelled: entries of which 12 or more of their own 24 bits are wrong in f32, because terms larger than the "
      "result cancel (1 - tanh^2 far out, a softmax gradient, the mean taken out by a layer norm, long sums). They are "
      "right to the unit above and not to their own digits; an f32 check of such entries, relative to their own size, "
      "says nothing about the code. This is why gradients are checked in f64 here.");
  Table table{{"audited", "fused", "entries", "median ulps", "max ulps", "over expected", "cancelled"}, {}};
  Table places{{"audited", "max ulps", "worst entry in f32"}, {}, true};
  std::string skipped;
  for (const EntryAudit& entry : entries) {
    const EntrySummary all = summary_of(entry);
    const std::string name = entry.family + "/" + entry.name;
    if (all.worst_f32 != nullptr) {
      table.rows.push_back({name, all.fused ? "yes" : "", std::to_string(all.f32_entries),
                            fmt::format("{:.2f}", all.median_ulps), fmt::format("{:.1f}", all.worst_ulps),
                            fmt::format("{:.2f}", all.excess), std::to_string(all.cancelled)});
      if (all.worst_ulps > 8)
        places.rows.push_back({name, fmt::format("{:.1f}", all.worst_ulps), f32_place(*all.worst_f32)});
    }
    for (const CaseAudit& one : entry.cases)
      if (!one.no_precision.empty()) skipped += fmt::format("{} ({}): {}\n", name, one.label, one.no_precision);
  }
  page.table(table, "f32");
  page.heading("Where f32 loses more than 3 bits");
  page.paragraph(
      "The case, tensor and entry that stand furthest over what is expected, of those with more than 8 ulps.");
  page.table(places, "f32-places");
  if (!skipped.empty()) page.paragraph("Not compared in f32:"), page.code(skipped);
}

// Where a check is unreliable: measured on the cases themselves, and on functions made for it.
void add_limits(Page& page, const std::vector<EntryAudit>& entries, const AuditSettings& settings) {
  page.heading("Where a check says little");
  page.paragraph(fmt::format(
      "Central differences have an error of their own: truncation grows with the step and rounding with its inverse, "
      "which leaves about 1e-10 of the largest gradient of a tensor. Entries much smaller than that largest one are "
      "checked to it, not to their own digits. Along a direction a wrong entry is diluted by the others of its tensor: "
      "a relative error e in one of N entries of equal size shows as e / sqrt(N); the tolerance there is {:g} as well, "
      "so an error of 1e-5 in one of a thousand entries still shows.",
      settings.tolerance));
  Table table{{"audited", "entries", "unconfirmed"}, {}};
  for (const EntryAudit& entry : entries) {
    const EntrySummary all = summary_of(entry);
    if (all.unconfirmed > 0)
      table.rows.push_back(
          {entry.family + "/" + entry.name, std::to_string(all.entries), std::to_string(all.unconfirmed)});
  }
  if (!table.rows.empty()) {
    page.paragraph(
        "Unconfirmed: entries whose derivative is so small beside the function's values that rounding leaves the "
        "difference not even three digits of it (saturated functions, huge inputs, sums that cancel). For these the "
        "check bounds the gradient's size; that its digits are right follows from other entries of the same formula "
        "and from the composed twin.");
    page.table(table, "unconfirmed");
  }
  page.heading("Saturation");
  page.paragraph(
      "Functions that flatten: the derivative by f32, and by central differences in f64 with the audit's step, "
      "relative "
      "to the derivative itself. The difference of nearly equal values loses the digits that the derivative has; f32 "
      "loses them where the formula subtracts (1 - tanh^2) and keeps them where it does not (sigmoid(-x) for 1 - "
      "sigmoid(x)).");
  page.table(saturation_limits(), "saturation");
  page.heading("Kinks");
  page.paragraph(
      "|x| = sqrt(x^2) with a step of 1e-5: the four points reach two steps to each side, and within that the "
      "difference mixes both slopes. No operation here has a kink; a strategy that brings one has to keep its audit "
      "cases two steps away from it, or mark them as not differentiable there.");
  page.table(kink_limits(), "kink");
  page.heading("Large constants");
  page.paragraph(
      "A constant beside the function changes no derivative and takes the difference's digits. The audit subtracts "
      "from "
      "each error what rounding explains, so such a case passes without having been checked to more than that.");
  page.table(constant_limits(), "constant");
  page.heading("The step");
  page.plot(step_limits(), "step");
}

}  // namespace

std::vector<std::string> write_audit_page(const std::string& path, const std::vector<EntryAudit>& entries,
                                          const AuditSettings& settings) {
  Page page(path, "Gradient audit");
  add_summary(page, entries, settings);
  if (settings.f64) add_gradients(page, entries);
  if (settings.f32) add_precision(page, entries, settings);
  if (settings.f64) add_limits(page, entries, settings);
  return page.write();
}

}  // namespace sextant
