// The page of an experiment: what the paper saw beside what this run saw.
#pragma once

#include "experiments/study.h"

namespace sextant::study {

// OUT/report.html, findings and tables as Markdown, the tables as CSV and the plots as SVG and CSV beside it. `pieces`:
// how many results it is made from; `asked`: what goes into experiment.json. Returns all paths, the page first.
std::vector<std::string> write_page(const Study& study, const Plan& plan, const Outcome& outcome, int64_t pieces,
                                    const nlohmann::json& asked);

// "agrees", "differs" or "cannot tell".
std::string verdict(const Finding& finding);

}  // namespace sextant::study
