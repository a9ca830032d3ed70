#include "experiments/audit_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiments/page.h"

namespace sextant {

namespace {

std::vector<Suspect> suspects_of(const std::vector<EntryAudit>& entries) {
  std::vector<CaseOutcome> outcomes;
  for (const EntryAudit& entry : entries)
    for (const CaseAudit& one : entry.cases) outcomes.push_back({one.operations, !one.failures.empty()});
  return suspects(outcomes);
}

std::string f32_place(const CaseAudit& one) {
  const Precision& precision = *one.precision;
  const std::string tensor =
      precision.tensor < 0 ? "output" : "gradient of " + one.tensors[static_cast<size_t>(precision.tensor)];
  return fmt::format("{}: {} [{}]: f64 {:.9g}, f32 {:.9g}", one.label, tensor, precision.index, precision.in_f64,
                     precision.in_f32);
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
    if (one.central && one.central->entries > 0) {
      result.entries += one.central->entries;
      if (result.worst_central == nullptr || one.central->worst_error > result.central) result.worst_central = &one;
      result.central = std::max(result.central, one.central->worst_error);
    }
    if (one.directional) result.directional = std::max(result.directional, one.directional->worst_error);
    if (one.composed) result.composed = std::max(result.composed, *one.composed);
    if (!one.precision) continue;
    errors.insert(errors.end(), one.precision->errors.begin(), one.precision->errors.end());
    result.cancelled += one.precision->cancelled;
    if (result.worst_f32 == nullptr || one.precision->worst > result.worst_ulps) result.worst_f32 = &one;
    result.worst_ulps = std::max(result.worst_ulps, one.precision->worst);
  }
  std::ranges::sort(errors);
  result.f32_entries = static_cast<int64_t>(errors.size());
  if (!errors.empty()) result.median_ulps = errors[errors.size() / 2];
  return result;
}

std::string table_header() {
  return fmt::format("{:<34} {:>5} {:>8} {:>8} {:>8} {:>7} {:>7} {:>5}  {}\n", "", "cases", "central", "along", "twin",
                     "ulps", "ulps", "same", "") +
         fmt::format("{:<34} {:>5} {:>8} {:>8} {:>8} {:>7} {:>7} {:>5}  {}\n", "", "", "differ.", "direct.", "",
                     "median", "max", "bits", "worst entry");
}

std::string table_row(const EntryAudit& entry) {
  const EntrySummary all = summary_of(entry);
  return fmt::format("{:<34} {:>5} {:>8} {:>8} {:>8} {:>7.2g} {:>7.3g} {:>5}  {}{}\n", entry.family + "/" + entry.name,
                     entry.cases.size(), error_text(all.central), error_text(all.directional), error_text(all.composed),
                     all.median_ulps, all.worst_ulps, all.repeatable ? "yes" : "NO", entry.passed() ? "" : "FAILED  ",
                     all.worst_central == nullptr ? "" : all.worst_central->place());
}

std::string failure_text(const std::vector<EntryAudit>& entries) {
  std::string text;
  for (const EntryAudit& entry : entries)
    for (const CaseAudit& one : entry.cases)
      for (const std::string& failure : one.failures)
        text += fmt::format("FAILED {} ({}): {}\n", one.entry(), one.label, failure);
  const std::vector<Suspect> all = suspects_of(entries);
  for (size_t i = 0; i < std::min<size_t>(3, all.size()); ++i)
    text += fmt::format("suspect {}: {} (of {} cases that record it {} fail; score {:.2f})\n", i + 1, all[i].operation,
                        all[i].cases, all[i].failed, all[i].score);
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
    if (settings.f64) item["central"] = all.central, item["directional"] = all.directional;
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
      item["f32"] = {{"median_ulps", all.median_ulps},
                     {"max_ulps", all.worst_ulps},
                     {"entries", all.f32_entries},
                     {"cancelled", all.cancelled},
                     {"worst", f32_place(*all.worst_f32)}};
    item["failures"] = nlohmann::json::array();
    for (const CaseAudit& one : entry.cases)
      for (const std::string& failure : one.failures)
        item["failures"].push_back({{"case", one.label}, {"what", failure}});
    list.push_back(std::move(item));
  }
  for (const Suspect& suspect : suspects_of(entries))
    suspected.push_back({{"operation", suspect.operation},
                         {"failed", suspect.failed},
                         {"cases", suspect.cases},
                         {"score", suspect.score}});
  return {{"passed", passed},      {"tolerance", settings.tolerance},
          {"ulps", settings.ulps}, {"cases", count_cases(entries)},
          {"suspects", suspected}, {"audited", list}};
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
      "composed twin, {:g} ulps for f32; {:.1f} seconds.",
      entries.size(), cases, checked, failed == 0 ? "all within tolerance" : fmt::format("{} FAILED", failed),
      settings.tolerance, settings.tolerance / 100, settings.ulps, seconds));
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

void add_precision(Page& page, const std::vector<EntryAudit>& entries, const AuditSettings& settings) {
  page.heading("What f32 costs");
  page.paragraph(
      "The same inputs, rounded to f32 beforehand, through the f32 and the f64 code; all outputs and gradients "
      "compared. The unit is the ulp of the tensor: "
      "the distance between neighbouring f32 numbers at its largest entry, 2^(floor(log2 max|x|) - 23). A gradient "
      "that is zero but for cancellation "
      "(below 2^-24 of the largest entry of all tensors) is measured at that largest entry.");
  page.paragraph(
      "Cancelled: entries of which 12 or more of their own 24 bits are wrong in f32, because terms larger than the "
      "result cancel (1 - tanh^2 far out, a "
      "softmax gradient, the mean taken out by a layer norm, long sums). They are right to the unit above and not to "
      "their own digits; an f32 check of "
      "such entries, relative to their own size, says nothing about the code. This is why gradients are checked in f64 "
      "here.");
  Table table{{"audited", "entries", "median ulps", "max ulps", "cancelled"}, {}};
  Table places{{"audited", "worst entry in f32"}, {}, true};
  std::string skipped;
  for (const EntryAudit& entry : entries) {
    const EntrySummary all = summary_of(entry);
    const std::string name = entry.family + "/" + entry.name;
    if (all.worst_f32 != nullptr) {
      table.rows.push_back({name, std::to_string(all.f32_entries), fmt::format("{:.2f}", all.median_ulps),
                            fmt::format("{:.1f}", all.worst_ulps), std::to_string(all.cancelled)});
      if (all.worst_ulps > 8) places.rows.push_back({name, f32_place(*all.worst_f32)});
    }
    for (const CaseAudit& one : entry.cases)
      if (!one.no_precision.empty()) skipped += fmt::format("{} ({}): {}\n", name, one.label, one.no_precision);
  }
  page.table(table, "f32");
  page.heading("Where f32 loses more than 3 bits");
  page.table(places, "f32-places");
  if (!skipped.empty()) page.paragraph("Not compared in f32:"), page.code(skipped);
  page.heading("Where a check is weak");
  page.paragraph(
      fmt::format("Central differences have an error of their own: truncation grows with the step and rounding with "
                  "its inverse, which leaves about 1e-10 of the largest "
                  "gradient of a tensor. Entries much smaller than that largest one are checked to it, not to their "
                  "own digits. Cases marked as not differentiable (kinks, "
                  "no direction) have their twin checked alone. Along a direction a wrong entry is diluted by the "
                  "others of its tensor: a relative error e in one of N "
                  "entries of equal size shows as e / sqrt(N); the tolerance there is {:g} as well, so an error of "
                  "1e-5 in one of a thousand entries would still show.",
                  settings.tolerance));
}

}  // namespace

std::vector<std::string> write_audit_page(const std::string& path, const std::vector<EntryAudit>& entries,
                                          const AuditSettings& settings) {
  Page page(path, "Gradient audit");
  add_summary(page, entries, settings);
  if (settings.f64) add_gradients(page, entries);
  if (settings.f32) add_precision(page, entries, settings);
  return page.write();
}

}  // namespace sextant
