// music: the models of byte-lm on streams of musical events; which sectors music uses.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiments/study_sectors.h"

namespace sextant::study {

namespace {

using nlohmann::json;

constexpr const char* light_cone_variant = "pj-bias-lc+affine";

StudyCorpora corpora_of(const Plan& plan) {
  StudyCorpora corpora = study_corpora(plan, {"maestro", "musicnet"}, sector_context(plan));
  if (plan.scale == Scale::smoke) corpora.all.resize(1);
  return corpora;
}

Finding light_cone_is_strong(const Results& results, int64_t longest) {
  Finding finding{
      "the light cone with affine recency is strong",
      "",
      fmt::format("{} has one of the three lowest mean losses of all strategies at {} tokens, in every corpus",
                  light_cone_variant, longest),
      {}};
  for_each_corpus(results, light_cone_variant, finding, [&](const std::string& prefix) {
    const std::vector<Ranked> all = ranking(results, prefix.substr(prefix.find('/') + 1), longest);
    const auto own = std::ranges::find(all, std::string(light_cone_variant),
                                       [](const Ranked& each) { return std::string(each.variant->name); });
    if (own == all.end()) return Seen{"no finite loss", false};
    return Seen{fmt::format("place {} of {} ({}; lowest {} with {})", own - all.begin() + 1, all.size(),
                            text_of(own->loss, 3), all.front().variant->name, text_of(all.front().loss, 3)),
                own - all.begin() < 3};
  });
  return finding;
}

Finding high_orders_have_mass(const Results& results) {
  Finding finding{
      "high-order mass is small but consistently not zero",
      "",
      fmt::format("orders above 0 of the Fourier-jet and light-cone sectors have between 1 % and 25 % of the "
                  "mass of {}, for every corpus and seed",
                  full_variant),
      {}};
  for_each_corpus(results, full_variant, finding, [&](const std::string& prefix) {
    bool within = true;
    for (const json* run : results_of(results, prefix)) {
      const double share = share_in(run->at("sectors"), "mass_share", high_order);
      within = within && share > 0.01 && share < 0.25;
    }
    return Seen{text_of(share_over_seeds(results, prefix, "mass_share", high_order), 3), within};
  });
  return finding;
}

Finding high_orders_are_needed(const Results& results) {
  Finding finding{"(by need, not in the paper's words) the high orders are used",
                  "",
                  fmt::format("leaving out some order above 0 of {} raises the held-out loss by more than 0.001 nats, "
                              "for every corpus and seed",
                              full_variant),
                  {}};
  for_each_corpus(results, full_variant, finding, [&](const std::string& prefix) {
    std::vector<double> most;
    for (const json* run : results_of(results, prefix)) {
      double largest = -INFINITY;
      for (const json& row : run->at("sectors"))
        if (high_order(row.at("sector"), row.at("order")))
          largest = std::max(largest, number_at(row, "/leave_one_out_nats_per_token"));
      most.push_back(largest);
    }
    return Seen{fmt::format("at most {} nats", text_of(sample_of(most), 4)),
                std::ranges::all_of(most, [](double change) { return change > 0.001; })};
  });
  return finding;
}

Outcome outcome(const Plan& plan, const Results& results) {
  return sector_outcome(plan, results, corpora_of(plan), [&](int64_t longest) -> std::vector<Finding> {
    return {light_cone_is_strong(results, longest), high_orders_have_mass(results), high_orders_are_needed(results)};
  });
}

const RegisterStudy registered(
    {.name = "music",
     .question = "Which position sectors do models of musical event streams use, and which strategy reaches farthest?",
     .protocol = "3 layers of width 64, 4 heads, context 256 (64 at scale smoke), one model a strategy, corpus and "
                 "seed, the same batches for all;\nheld-out loss by context length, mass, energy and need of the "
                 "sectors.",
     .source = "PJ-RoPE (arXiv 2606.05345)",
     .paper = "the light cone with affine recency is strong; small but consistently nonzero high-order mass",
     .pieces = [](const Plan& plan) { return sector_pieces(plan, corpora_of(plan)); },
     .outcome = outcome});

}  // namespace

}  // namespace sextant::study
