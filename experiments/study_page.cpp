#include "experiments/study_page.h"

#include <filesystem>

#include "core/file.h"
#include "experiments/report.h"
#include "experiments/run_folder.h"

namespace sextant::study {

namespace {

Table findings_table(const Outcome& outcome) {
  Table table{{"the paper saw", "this run saw", "", "agreement means"}, {}, true};
  for (const Finding& finding : outcome.findings)
    table.rows.push_back({finding.paper, finding.here, verdict(finding), finding.rule});
  return table;
}

void add_findings(Page& page, const Plan& plan, const Outcome& outcome) {
  page.heading("What the paper saw, and what this run saw");
  int64_t agreeing = 0, differing = 0;
  for (const Finding& finding : outcome.findings) {
    agreeing += finding.agrees.value_or(false);
    differing += !finding.agrees.value_or(true);
  }
  page.paragraph(fmt::format("{} of {} statements agree, {} differ, about {} this run cannot tell.", agreeing,
                             outcome.findings.size(), differing,
                             static_cast<int64_t>(outcome.findings.size()) - agreeing - differing));
  page.table(findings_table(outcome), "findings");
  if (plan.scale == Scale::smoke)
    page.paragraph(
        "Scale smoke shows that everything works, within seconds. Where a comparison hangs on training, it is no "
        "evidence for or against the paper.");
  if (plan.scale == Scale::quick)
    page.paragraph("Scale quick is far smaller than the paper's; what differs here may come from that.");
}

void add_section(Page& page, const Section& section) {
  page.heading(section.title);
  if (!section.text.empty()) page.paragraph(section.text);
  if (section.plot) page.plot(*section.plot, section.name + "-plot");
  if (section.table) page.table(*section.table, section.name);
}

// Findings and tables as Markdown, to be quoted elsewhere.
std::string markdown(const Study& study, const Plan& plan, const Outcome& outcome, const nlohmann::json& environment) {
  std::string text = fmt::format(
      "## {} ({})\n\n{} {}\n\n`sextant {}`, version {}, {}, {}\n\n{}", study.name, name_of(plan.scale), study.question,
      study.protocol, plan.command, plain_text(environment.value("version", nlohmann::json())),
      plain_text(environment.value("cpu", nlohmann::json())),
      plain_text(environment.value("compiler", nlohmann::json())), findings_table(outcome).markdown());
  for (const std::string& note : outcome.notes) text += "\n" + note + "\n";
  for (const Section& section : outcome.sections) {
    if (!section.table) continue;
    text += fmt::format("\n### {}\n\n{}{}{}", section.title, section.text, section.text.empty() ? "" : "\n\n",
                        section.table->markdown());
  }
  return text;
}

std::vector<std::string> write_drawings(const Plan& plan, const Outcome& outcome) {
  std::vector<std::string> written;
  for (const Section& section : outcome.sections) {
    if (!section.plot) continue;
    const auto picture = draw(*section.plot);
    if (!picture) continue;
    written.push_back(plan.out + "/report-" + section.name + ".svg");
    write_atomically(written.back(), *picture);
  }
  return written;
}

}  // namespace

std::string verdict(const Finding& finding) {
  return !finding.agrees ? "cannot tell" : *finding.agrees ? "agrees" : "differs";
}

std::vector<std::string> write_page(const Study& study, const Plan& plan, const Outcome& outcome, int64_t pieces,
                                    const nlohmann::json& asked) {
  Page page(plan.out + "/report.html", fmt::format("Experiment {} ({})", study.name, name_of(plan.scale)));
  page.paragraph(study.question);
  page.paragraph(study.protocol);
  page.paragraph(fmt::format("Source: {}. It saw: {}.", study.source, study.paper));
  add_findings(page, plan, outcome);
  for (const std::string& note : outcome.notes) page.paragraph(note);
  for (const Section& section : outcome.sections) add_section(page, section);
  if (!outcome.runs.empty()) {
    const std::vector<RunFolder> runs = read_runs(outcome.runs);
    add_configuration(page, runs);
  }
  page.heading("How to reproduce");
  page.code("sextant " + plan.command);
  const nlohmann::json& environment = asked.at("environment");
  page.paragraph(
      fmt::format("{} results, in results/. Made with sextant {} ({}) on {}. Finished results are not worked "
                  "off again; remove results/ to have them made anew.",
                  pieces, plain_text(environment.value("version", nlohmann::json())),
                  plain_text(environment.value("compiler", nlohmann::json())),
                  plain_text(environment.value("cpu", nlohmann::json()))));
  std::vector<std::string> files = page.write();
  files.push_back(plan.out + "/report.md");
  write_atomically(files.back(), markdown(study, plan, outcome, environment));
  const std::vector<std::string> drawings = write_drawings(plan, outcome);
  files.insert(files.end(), drawings.begin(), drawings.end());
  return files;
}

}  // namespace sextant::study
