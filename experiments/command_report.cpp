// sextant report: one HTML page from one or many run folders.
#include "experiments/command.h"
#include "experiments/report.h"

namespace sextant {

namespace {

int run(const Arguments& arguments) {
  const std::vector<RunFolder> runs = read_runs(arguments.positionals());
  const std::string path = arguments.given("out") ? arguments.text("out") : arguments.positional(0) + "/report.html";
  const std::string title = arguments.given("title") ? arguments.text("title")
                            : runs.size() == 1       ? "Sextant: " + run_labels(runs)[0]
                                                     : fmt::format("Sextant: {} runs", runs.size());
  const std::vector<std::string> written = write_report(runs, path, title);
  arguments.say("{}\n", written.front());
  arguments.print_json({{"report", written.front()}, {"files", written}, {"runs", runs.size()}});
  return 0;
}

const RegisterCommand registered(
    {.name = "report",
     .summary = "one self-contained HTML page (and CSVs) from one or many run folders",
     .positionals = {{.name = "DIR", .help = "a run folder, or a folder with run folders below it", .repeated = true}},
     .options = {{"out", "FILE", "", "the page (default: report.html in the first DIR)"},
                 {"title", "TEXT", "", "its title"}},
     .run = run});

}  // namespace

}  // namespace sextant
