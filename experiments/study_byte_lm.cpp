// byte-lm: language models of bytes with each position strategy; which sectors they use, and how far they reach.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiments/study_sectors.h"

namespace sextant::study {

namespace {

using nlohmann::json;

StudyCorpora corpora_of(const Plan& plan) {
  StudyCorpora corpora = study_corpora(plan, {"tiny-shakespeare", "wikitext-2", "war-and-peace"}, sector_context(plan));
  if (plan.scale == Scale::smoke) corpora.all.resize(1);
  return corpora;
}

bool affine(const std::string& sector, int) {
  return sector == "affine";
}

// The affine sector's share, by mass or by energy.
Finding affine_dominates(const Results& results, const char* what, const std::string& measure) {
  Finding finding{fmt::format("affine recency dominates (by {})", measure),
                  "",
                  fmt::format("the affine sector has more than half of the {} of {} in every corpus (mean over seeds)",
                              measure, full_variant),
                  {}};
  for_each_corpus(results, full_variant, finding, [&](const std::string& prefix) {
    const Sample share = share_over_seeds(results, prefix, what, affine);
    return Seen{text_of(share, 3), share.mean > 0.5};
  });
  return finding;
}

Finding affine_is_needed(const Results& results) {
  Finding finding{
      "affine recency dominates (by what is needed)",
      "",
      fmt::format("no component of {} costs more than the affine slope when it is left out, in every corpus",
                  full_variant),
      {}};
  for_each_corpus(results, full_variant, finding, [&](const std::string& prefix) {
    const Needed most = most_needed(results, prefix);
    return Seen{fmt::format("{} ({:+.4f} nats)", most.component, most.change), most.component == "affine 1"};
  });
  return finding;
}

// Recency that any sector may carry: a sum of slow damped waves falls with the lag as a slope does.
Finding kernels_fall(const Results& results, int64_t context) {
  Finding finding{
      "(not in the paper) the learned kernel as a whole is recency, whichever sector carries it",
      "",
      fmt::format("in nine of ten heads of {} or more, the mean over lags {} to {} lies below the mean over "
                  "the first {}, in every corpus",
                  full_variant, context / 2, context, context / 16),
      {}};
  for_each_corpus(results, full_variant, finding, [&](const std::string& prefix) {
    int64_t heads = 0, falling = 0;
    for (const json* run : results_of(results, prefix)) {
      if (!run->at("kernels").is_object()) continue;
      const auto lags = run->at("kernels").at("lags").get<std::vector<int64_t>>();
      for (const json& layer : run->at("kernels").at("layers"))
        for (const json& head : layer) {
          Sample near, far;
          for (size_t i = 0; i < lags.size(); ++i) {
            if (lags[i] >= context / 16 && (lags[i] < context / 2 || lags[i] >= context)) continue;
            Sample& part = lags[i] < context / 16 ? near : far;
            part.mean += (head[i].get<double>() - part.mean) / static_cast<double>(++part.count);
          }
          ++heads;
          falling += far.mean < near.mean;
        }
    }
    return Seen{count_of(falling, heads, "heads"), 10 * falling >= 9 * heads};
  });
  return finding;
}

Finding high_orders_are_small(const Results& results) {
  Finding finding{
      "high-order Fourier-jet and light-cone mass is a small correction",
      "",
      fmt::format("orders above 0 of both have less than a quarter of the mass of {} in every corpus", full_variant),
      {}};
  for_each_corpus(results, full_variant, finding, [&](const std::string& prefix) {
    const Sample share = share_over_seeds(results, prefix, "mass_share", high_order);
    return Seen{text_of(share, 3), share.mean < 0.25};
  });
  return finding;
}

Finding ntk_with_affine_is_best(const Results& results, int64_t longest) {
  Finding finding{"NTK-style scaling with affine recency is best at long context",
                  "",
                  fmt::format("its mean loss at {} tokens is the lowest, or above the lowest by less than its own or "
                              "that one's deviation over seeds, in every corpus",
                              longest),
                  {}};
  for_each_corpus(results, "ntk+affine", finding, [&](const std::string& prefix) {
    const Sample own = over_seeds(results, prefix, longest);
    const std::vector<Ranked> all = ranking(results, prefix.substr(prefix.find('/') + 1), longest);
    if (all.empty() || own.count == 0) return Seen{"no finite loss", false};
    const Ranked& best = all.front();
    return Seen{fmt::format("{}, lowest {} with {}", text_of(own, 3), best.variant->name, text_of(best.loss, 3)),
                own.mean - best.loss.mean <= std::max(own.deviation, best.loss.deviation)};
  });
  return finding;
}

Finding exact_transforms_degrade(const Results& results, int64_t context, int64_t longest) {
  Finding finding{"exact feature transforms without stabilization can degrade sharply at long context",
                  "",
                  fmt::format("the loss of pj-rotary at {} tokens is more than 0.1 nats above that at {}, in every "
                              "corpus",
                              longest, context),
                  {}};
  for_each_corpus(results, "pj-rotary", finding, [&](const std::string& prefix) {
    const Sample near = over_seeds(results, prefix, context), far = over_seeds(results, prefix, longest);
    return Seen{fmt::format("{} to {}", text_of(near, 3), text_of(far, 3)),
                far.count == 0 || far.mean > near.mean + 0.1};
  });
  return finding;
}

Outcome outcome(const Plan& plan, const Results& results) {
  return sector_outcome(plan, results, corpora_of(plan), [&](int64_t longest) -> std::vector<Finding> {
    const int64_t context = sector_context(plan);
    return {affine_dominates(results, "mass", "mass"),
            affine_dominates(results, "centred_energy", "energy without its mean"),
            affine_is_needed(results),
            kernels_fall(results, context),
            high_orders_are_small(results),
            ntk_with_affine_is_best(results, longest),
            exact_transforms_degrade(results, context, longest)};
  });
}

const RegisterStudy registered(
    {.name = "byte-lm",
     .question = "Which position sectors do language models of bytes use, and which strategy reaches farthest?",
     .protocol = "3 layers of width 64, 4 heads, context 256 (64 at scale smoke), one model a strategy, corpus and "
                 "seed, the same batches for all;\nheld-out loss by context length, mass, energy and need of the "
                 "sectors.",
     .source = "PJ-RoPE (arXiv 2606.05345)",
     .paper = "affine recency dominates; Fourier-jet and light-cone mass is a small correction; NTK-style scaling with "
              "affine recency is best at long context",
     .pieces = [](const Plan& plan) { return sector_pieces(plan, corpora_of(plan)); },
     .outcome = outcome});

}  // namespace

}  // namespace sextant::study
