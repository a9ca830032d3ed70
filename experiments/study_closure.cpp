// closure: the laws of the position space, measured.                                     [position space, invariants]
#include <fmt/format.h>

#include <algorithm>

#include "experiments/study.h"
#include "positional/invariants.h"

namespace sextant::study {

namespace {

using nlohmann::json;

json measured(DType dtype) {
  json rows = json::array();
  for (const InvariantRow& row : measure_invariants(dtype))
    rows.push_back({{"law", row.law}, {"subject", row.subject}, {"error", row.error}, {"tolerance", row.tolerance}});
  return rows;
}

std::vector<Piece> pieces(const Plan&) {
  std::vector<Piece> all;
  for (const DType dtype : {DType::f64, DType::f32}) {
    const char* name = sextant::name_of(dtype);
    all.push_back({name, {{"dtype", name}}, 1, [dtype](const Workplace&) { return measured(dtype); }});
  }
  return all;
}

bool is_law(const json& row) {
  return row.at("tolerance").get<double>() > 0;
}
bool holds(const json& row) {
  return !is_law(row) || row.at("error").get<double>() <= row.at("tolerance").get<double>();
}
bool light_cone(const json& row) {
  const std::string subject = row.at("subject");
  return subject.find("chart=lc") != std::string::npos || subject.starts_with("LC ");
}

Section table_of(const Results& results) {
  Section section{.name = "laws", .title = "The laws, measured", .text = {}};
  section.text =
      "Errors relative to the largest entry of what is compared (closure, inverse: matrices; translation: all logits "
      "with every position shifted by a million; annihilation: the finite-difference operator on the kernel). A row "
      "without a tolerance states a number where no law holds: charts, stabilized jets, and what f32 leaves of logits "
      "a million positions out that are not anchored.";
  section.table = Table{{"dtype", "law", "of", "error", "tolerance", ""}, {}};
  for (const auto& [dtype, rows] : results)
    for (const json& row : rows)
      section.table->rows.push_back({dtype, row.at("law"), row.at("subject"), number_text(row.at("error"), 3),
                                     is_law(row) ? number_text(row.at("tolerance"), 3) : "",
                                     !is_law(row) ? "stated"
                                     : holds(row) ? "holds"
                                                  : "FAILS"});
  return section;
}

Finding exactness(const json& rows, const std::string& family, const std::string& paper) {
  double worst = 0;
  bool all = true, any = false;
  for (const json& row : rows) {
    if (!is_law(row) || row.at("subject").get<std::string>().rfind(family, 0) != 0) continue;
    worst = std::max(worst, row.at("error").get<double>());
    all = all && holds(row);
    any = true;
  }
  Finding finding{paper,
                  fmt::format("largest error of all its laws in f64: {:.1e}", worst),
                  "every law of the family stays below its tolerance in f64",
                  {}};
  if (any) finding.agrees = all;
  return finding;
}

Finding chart(const json& rows) {
  double least = 1e300;
  for (const json& row : rows)
    if (light_cone(row) && row.at("law") != "inverse") least = std::min(least, row.at("error").get<double>());
  Finding finding{"the light cone is a chart, not a representation",
                  fmt::format("its smallest closure, translation or annihilation error in f64: {:.1e}", least),
                  "each of these errors is above 1e-6, a million times the laws' tolerance",
                  {}};
  if (least < 1e300) finding.agrees = least > 1e-6;
  return finding;
}

Outcome outcome(const Plan&, const Results& results) {
  Outcome made;
  for (const auto& [dtype, rows] : results)
    for (const json& row : rows) made.passed = made.passed && holds(row);
  const auto f64 = results.find("f64");
  if (f64 != results.end()) {
    made.findings.push_back(
        exactness(f64->second, "pj-rotary", "PJ-rotary is exact: closure, inverse, translation, containment"));
    made.findings.push_back(exactness(f64->second, "FJ", "a jet of order r is annihilated by (E - e^iw)^(r+1)"));
    made.findings.push_back(chart(f64->second));
  }
  made.sections.push_back(table_of(results));
  return made;
}

const RegisterStudy registered(
    {.name = "closure",
     .question = "Which of the position families are exact representations of the lag?",
     .protocol = "Closure, inverse, translation by a million positions, containment and annihilation, for every family "
                 "in f64 and f32.\nLaws have tolerances, and the exit status is 1 when one fails; charts are stated.",
     .source = "PJ-RoPE (arXiv 2606.05345)",
     .paper = "exact for PJ-rotary; the light cone is a chart, not a representation",
     .pieces = pieces,
     .outcome = outcome});

}  // namespace

}  // namespace sextant::study
