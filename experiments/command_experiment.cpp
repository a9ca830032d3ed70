// sextant experiment: a reproduction of what a paper reports, or the list of them.
#include "core/error.h"
#include "experiments/command.h"
#include "experiments/study.h"
#include "experiments/study_page.h"

namespace sextant {

namespace {

using nlohmann::json;

int list(const Arguments& arguments) {
  json all = json::array();
  for (const study::Study& each : study::studies()) {
    arguments.say("{:<18} {}\n{:<18}   the paper saw: {}\n", each.name, each.question, "", each.paper);
    all.push_back({{"name", each.name},
                   {"question", each.question},
                   {"protocol", each.protocol},
                   {"source", each.source},
                   {"paper", each.paper}});
  }
  arguments.print_json({{"experiments", all}});
  return 0;
}

json findings_json(const study::Outcome& outcome) {
  json all = json::array();
  for (const study::Finding& finding : outcome.findings)
    all.push_back({{"paper", finding.paper},
                   {"here", finding.here},
                   {"rule", finding.rule},
                   {"agrees", finding.agrees ? json(*finding.agrees) : json()}});
  return all;
}

int run(const Arguments& arguments) {
  const std::string& name = arguments.positional(0);
  if (name == "list") return list(arguments);
  const study::Study& chosen = study::study_named(name);
  study::Plan plan{.scale = study::scale_from(arguments.text("scale")),
                   .out = arguments.text("out"),
                   .only = arguments.text("only"),
                   .from = arguments.text("from"),
                   .data = arguments.text("data"),
                   .seed = arguments.seed(),
                   .quiet = arguments.quiet(),
                   .command = arguments.command_line()};
  if (plan.out.empty()) plan.out = fmt::format("runs/experiment-{}-{}", name, study::name_of(plan.scale));
  arguments.say("{} ({}): {}\n", name, study::name_of(plan.scale), chosen.question);
  const study::Report report = study::run(chosen, plan, arguments.output(), world());
  for (const study::Finding& finding : report.outcome.findings)
    arguments.say("\n  {:<12} the paper saw: {}\n  {:<12} this run saw:  {}\n", study::verdict(finding), finding.paper,
                  "", finding.here);
  if (report.signal != 0) arguments.say("\nstopped; the same command goes on from here\n");
  arguments.say("\n{}\n", report.page);
  arguments.print_json({{"experiment", name},
                        {"scale", study::name_of(plan.scale)},
                        {"out", plan.out},
                        {"passed", report.outcome.passed},
                        {"worked", report.worked},
                        {"skipped", report.skipped},
                        {"finished", report.signal == 0},
                        {"findings", findings_json(report.outcome)},
                        {"report", report.page},
                        {"files", report.files}});
  if (report.signal != 0) return 128 + report.signal;
  return static_cast<int>(report.outcome.passed ? Status::done : Status::check_failed);
}

const RegisterCommand registered(
    {.name = "experiment",
     .summary = "a reproduction of what a paper reports; `experiment list` names them",
     .positionals = {{"NAME", "the experiment, or `list`"}},
     .options = {{"scale", "SCALE", "smoke", "smoke (seconds), quick (minutes on two cores) or paper (the paper's)"},
                 {"out", "DIR", "", "where results and report go (default: runs/experiment-NAME-SCALE)"},
                 {"only", "TEXT", "", "only the pieces whose name contains this, such as rope+affine or seed-2"},
                 {"from", "DIR", "", "another experiment's folder: its results for the same runs are taken over"},
                 {"data", "NAME_OR_PATH", "", "a corpus in place of the experiment's own"}},
     .run = run,
     .details = "Each piece (variant, corpus, seed) leaves its result in DIR/results; what is there is not worked off "
                "again, so that the same\n"
                "command continues a run that was stopped, training from its last checkpoint. `mpirun -np N` shares "
                "the pieces "
                "over N processes. The exit status is 1 "
                "where a law is checked (closure)\n"
                "and does not hold; a finding that differs from the paper's is a result, not a failure."});

}  // namespace

}  // namespace sextant
