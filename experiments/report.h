// The report of one or many runs: configuration, loss curves, loss by context length, throughput, and how to make the
// runs again.
#pragma once

#include <string>
#include <vector>

#include "experiments/page.h"
#include "experiments/run_folder.h"

namespace sextant {

// Writes the page and its CSVs; returns their paths, the page first.
std::vector<std::string> write_report(const std::vector<RunFolder>& runs, const std::string& path,
                                      const std::string& title);

// The sections, for experiments that put them into pages of their own.
void add_configuration(Page& page, const std::vector<RunFolder>& runs);
void add_training_loss(Page& page, const std::vector<RunFolder>& runs);
void add_loss_by_length(Page& page, const std::vector<RunFolder>& runs);
void add_throughput(Page& page, const std::vector<RunFolder>& runs);
void add_reproduction(Page& page, const std::vector<RunFolder>& runs);

}  // namespace sextant
