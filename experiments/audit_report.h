// The audit's results for people, programs and browsers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/audit.h"
#include "experiments/audit_against.h"
#include "experiments/audit_plant.h"

namespace sextant {

// One entry's cases taken together: the worst of each.
struct EntrySummary {
  double central = -1, directional = -1, composed = -1;  // -1: not checked, or it has no twin
  bool repeatable = true, fused = false;
  int64_t entries = 0;                       // gradient entries compared one by one,
  int64_t unconfirmed = 0;                   // and those of them whose digits the differences cannot confirm
  const CaseAudit* worst_central = nullptr;  // null where every case is checked along directions or not at all
  // f32: of the errors of all cases, in ulps
  int64_t f32_entries = 0, cancelled = 0;
  double median_ulps = 0, worst_ulps = 0;
  double excess = 0;  // over the error to be expected, the worst of all cases
  const CaseAudit* worst_f32 = nullptr;
};
EntrySummary summary_of(const EntryAudit& entry);

std::string table_header();
std::string table_row(const EntryAudit& entry);

// Each failure a line, and then which operations they point at.
std::string failure_text(const std::vector<EntryAudit>& entries);

nlohmann::json to_json(const std::vector<EntryAudit>& entries, const AuditSettings& settings);
nlohmann::json to_json(const std::vector<PlantedFault>& faults);
nlohmann::json to_json(const GradientComparison& comparison);

// Writes one self-contained page, and its tables as CSV beside it; returns the paths.
std::vector<std::string> write_audit_page(const std::string& path, const std::vector<EntryAudit>& entries,
                                          const AuditSettings& settings);

}  // namespace sextant
