#include "experiments/study_sectors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace sextant::study {

using nlohmann::json;

namespace {

constexpr Variant variants[] = {
    {"none", "none", false},
    {"rope", "rope", true},
    {"rope+ntk", "rope(scaling=dynamic-ntk)", false},
    {"alibi", "alibi", true},
    {"rope+affine", "rope+affine", true},
    {"ntk+affine", "rope(scaling=dynamic-ntk)+affine", true},
    {"jordan-scaled", "jordan(order=2,mode=scaled)", false},
    {"jordan-stabilized", "jordan(order=2,mode=stabilized)", false},
    {"pj-bias-fj", "pj-bias(jets=3,lc-jets=0,affine=0)", false},
    {"pj-bias-fj+affine", "pj-bias(jets=3,lc-jets=0,affine=1)", true},
    {"pj-bias-lc+affine", "pj-bias(jets=0,lc-jets=2,affine=1)", true},
    {full_variant, "pj-bias(jets=3,lc-jets=2,affine=1)", true},
    {"pj-rotary", "pj-rotary(order=2,affine=1)", false},
};

Training training_of(const Plan& plan, const Variant& variant, const StudyCorpus& corpus, uint64_t seed) {
  Training training;
  TrainOptions& options = training.options;
  options.data = corpus.data;
  options.position = variant.spec;
  options.seed = seed;
  options.context = sector_context(plan);
  options.batch = plan.choose<int64_t>(4, 8, 8);
  // Adam moves a parameter by at most the sum of the learning rates: short runs leave slopes near their start.
  options.steps = plan.choose<int64_t>(30, 1000, 5000);
  options.warmup = plan.choose<int64_t>(3, 50, 100);
  options.save_every = plan.choose<int64_t>(10, 200, 200);
  const int64_t longest = plan.choose<int64_t>(256, 8192, 32768);
  for (int64_t length = options.context; length <= longest; length *= 2) training.lengths.push_back(length);
  training.tokens = plan.choose<int64_t>(1024, 32768, 65536);
  return training;
}

}  // namespace

int64_t sector_context(const Plan& plan) {
  return plan.choose<int64_t>(64, 256, 256);
}

std::span<const Variant> sector_variants() {
  return variants;
}

std::vector<Piece> sector_pieces(const Plan& plan, const StudyCorpora& corpora) {
  const std::vector<uint64_t> seeds = plan.seeds(plan.choose<int64_t>(1, 3, 3));
  std::vector<Piece> all;
  for (const uint64_t seed : seeds)
    for (const StudyCorpus& corpus : corpora.all)
      for (const Variant& variant : variants)
        if (seed == seeds.front() || variant.repeated)
          all.push_back(training_piece(fmt::format("{}/{}/seed-{}", variant.name, corpus.key, seed),
                                       training_of(plan, variant, corpus, seed)));
  return all;
}

std::vector<std::string> corpora_in(const Results& results) {
  std::set<std::string> found;
  for (const auto& [key, result] : results) {
    const size_t begin = key.find('/') + 1;
    found.insert(key.substr(begin, key.find('/', begin) - begin));
  }
  return {found.begin(), found.end()};
}

Sample component(const Results& results, const std::string& prefix, const std::string& sector, int order,
                 const char* what) {
  std::vector<double> values;
  for (const json* result : results_of(results, prefix))
    for (const json& row : result->at("sectors"))
      if (row.at("sector") == sector && row.at("order") == order)
        if (const double value = number_at(row, fmt::format("/{}", what)); std::isfinite(value))
          values.push_back(value);
  return sample_of(values);
}

double share_in(const json& sectors, const char* what,
                const std::function<bool(const std::string& sector, int order)>& counts) {
  double part = 0, all = 0;
  for (const json& row : sectors) {
    const double value = number_at(row, fmt::format("/{}", what));
    all += value;
    if (counts(row.at("sector"), row.at("order"))) part += value;
  }
  return all > 0 ? part / all : std::nan("");
}

Sample share_over_seeds(const Results& results, const std::string& prefix, const char* what,
                        const std::function<bool(const std::string& sector, int order)>& counts) {
  std::vector<double> values;
  for (const json* result : results_of(results, prefix))
    if (const double value = share_in(result->at("sectors"), what, counts); std::isfinite(value))
      values.push_back(value);
  return sample_of(values);
}

bool high_order(const std::string& sector, int order) {
  return sector != "affine" && order > 0;
}

std::vector<Ranked> ranking(const Results& results, const std::string& corpus, int64_t length) {
  std::vector<Ranked> all;
  for (const Variant& variant : variants) {
    const Sample loss = over_seeds(results, fmt::format("{}/{}", variant.name, corpus), length);
    if (loss.count > 0) all.push_back({&variant, loss});
  }
  std::ranges::stable_sort(all, {}, [](const Ranked& each) { return each.loss.mean; });
  return all;
}

void for_each_corpus(const Results& results, const std::string& variant, Finding& finding,
                     const std::function<Seen(const std::string& prefix)>& look) {
  for (const std::string& corpus : corpora_in(results)) {
    const std::string prefix = variant + "/" + corpus;
    if (results_of(results, prefix).empty()) continue;
    const Seen seen = look(prefix);
    finding.here += fmt::format("{}{}: {}", finding.here.empty() ? "" : "; ", corpus, seen.text);
    finding.agrees = finding.agrees.value_or(true) && seen.agrees;
  }
}

Needed most_needed(const Results& results, const std::string& prefix) {
  Needed most;
  for (const json& row : results_of(results, prefix).front()->at("sectors")) {
    const std::string sector = row.at("sector");
    const int order = row.at("order");
    const Sample change = component(results, prefix, sector, order, "leave_one_out_nats_per_token");
    if (most.component.empty() || change.mean > most.change) most = {fmt::format("{} {}", sector, order), change.mean};
  }
  return most;
}

}  // namespace sextant::study
