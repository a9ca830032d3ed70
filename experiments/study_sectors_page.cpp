// The tables and plots of byte-lm and music.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiments/study_sectors.h"

namespace sextant::study {

using nlohmann::json;

namespace {

Section loss_table(const Results& results, const std::string& corpus) {
  Section section{.name = "loss-" + corpus, .title = "Loss by context length: " + corpus, .text = {}};
  section.text = "Held-out loss, nats a token; mean and deviation over seeds where there are several.";
  const std::vector<int64_t> lengths = lengths_of(results);
  section.table = Table{{"strategy", "seeds"}, {}};
  for (const int64_t length : lengths) section.table->header.push_back(fmt::format("{}", length));
  for (const Variant& variant : sector_variants()) {
    const std::string prefix = fmt::format("{}/{}", variant.name, corpus);
    const auto runs = results_of(results, prefix);
    if (runs.empty()) continue;
    std::vector<std::string> row = {variant.name, fmt::format("{}", runs.size())};
    for (const int64_t length : lengths) row.push_back(text_of(over_seeds(results, prefix, length), 3));
    section.table->rows.push_back(row);
  }
  return section;
}

}  // namespace

void add_sector_sections(Outcome& outcome, const Plan&, const Results& results, int64_t) {
  for (const std::string& corpus : corpora_in(results)) outcome.sections.push_back(loss_table(results, corpus));
}

}  // namespace sextant::study
