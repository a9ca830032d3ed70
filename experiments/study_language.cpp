// byte-lm and music: the variants trained on corpora, and their held-out loss by context length.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "core/error.h"
#include "data/corpus.h"
#include "experiments/evaluate.h"
#include "experiments/study.h"
#include "experiments/study_training.h"
#include "experiments/trainer.h"

namespace sextant::study {

namespace {

using nlohmann::json;

struct Variant {
  const char *name, *spec;
};
constexpr Variant variants[] = {{"none", "none"},
                                {"rope", "rope"},
                                {"rope+ntk", "rope(scaling=dynamic-ntk)"},
                                {"alibi", "alibi"},
                                {"rope+affine", "rope+affine"},
                                {"ntk+affine", "rope(scaling=dynamic-ntk)+affine"},
                                {"jordan-scaled", "jordan(order=2,mode=scaled)"},
                                {"jordan-stabilized", "jordan(order=2,mode=stabilized)"},
                                {"pj-fj", "pj-bias(jets=2,lc-jets=0,affine=0)"},
                                {"pj-fj+affine", "pj-bias(jets=2,lc-jets=0,affine=1)"},
                                {"pj-lc+affine", "pj-bias(jets=0,lc-jets=2,affine=1)"},
                                {"pj-all", "pj-bias(jets=2,lc-jets=2,affine=1)"},
                                {"pj-rotary", "pj-rotary(order=2)"}};

// What tells the two experiments apart.
struct Subject {
  std::string name;
  std::vector<std::string> corpora;
};

TrainOptions options_of(const Plan& plan, const std::string& corpus, const std::string& spec, uint64_t seed) {
  TrainOptions options;
  options.data = corpus;
  options.position = spec;
  options.seed = seed;
  options.layers = plan.choose<int64_t>(2, 3, 3);
  options.width = plan.choose<int64_t>(32, 64, 64);
  options.heads = plan.choose<int64_t>(2, 4, 4);
  options.context = plan.choose<int64_t>(32, 256, 256);
  options.batch = plan.choose<int64_t>(2, 8, 16);
  options.steps = plan.choose<int64_t>(8, 300, 5000);
  options.warmup = options.steps / 10;
  options.save_every = 200;
  return options;
}

// Those of the study that are here; all others' names go to `missing`. At smoke the embedded corpus stands in for them.
std::vector<std::string> corpora_of(const Subject& subject, const Plan& plan, std::vector<std::string>* missing) {
  if (!plan.data.empty()) return {corpus_name(plan.data)};
  if (plan.scale == Scale::smoke) return {"canon"};
  std::vector<std::string> here;
  std::string first_message;
  for (const std::string& name : subject.corpora) {
    try {
      open_corpus(name);
      here.push_back(name);
    } catch (const Error& error) {
      if (first_message.empty()) first_message = error.what();
      if (missing != nullptr) missing->push_back(name);
    }
  }
  require(!here.empty(), "{}; or give another corpus by --data", first_message);
  if (plan.scale == Scale::quick) here.resize(1);
  return here;
}

std::vector<int64_t> lengths_of(const Plan& plan, const Corpus& corpus, int64_t context) {
  std::vector<int64_t> lengths;
  for (int64_t length = context; length <= context * plan.choose<int64_t>(4, 16, 128); length *= 2)
    if (corpus.size(held_out_split(corpus)) > length) lengths.push_back(length);
  return lengths;
}

std::vector<Piece> pieces(const Subject& subject, const Plan& plan) {
  std::vector<Piece> all;
  for (const std::string& corpus : corpora_of(subject, plan, nullptr)) {
    const std::shared_ptr<Corpus> opened = open_corpus(corpus);
    for (const uint64_t seed : plan.seeds(plan.choose<int64_t>(1, 3, 3))) {
      for (const Variant& variant : variants) {
        TrainingTask task{options_of(plan, corpus, variant.spec, seed), {}, plan.choose<int64_t>(2, 4, 8)};
        task.lengths = lengths_of(plan, *opened, task.options.context);
        all.push_back({fmt::format("{}/{}/seed-{}", variant.name, short_name(corpus), seed), settings_of(task, *opened),
                       1, [task](const Workplace& place) { return train_and_evaluate(task, place); }});
      }
    }
  }
  return all;
}

// ---- what came out ---------------------------------------------------------------------------------------------------

// Results of one variant (on one corpus, or on all for ""), every seed.
std::vector<const json*> results_of(const Results& results, const std::string& variant, const std::string& corpus = "") {
  std::vector<const json*> found;
  for (const auto& [key, result] : results)
    if (key.starts_with(variant + "/" + corpus) && !result.contains("failed")) found.push_back(&result);
  return found;
}

Sample loss_at(const Results& results, const std::string& variant, const std::string& corpus, int64_t length) {
  std::vector<double> losses;
  for (const json* result : results_of(results, variant, corpus))
    for (const json& row : result->at("evaluation").at("lengths"))
      if (row.at("length") == length) losses.push_back(row.at("nats_per_token"));
  return sample_of(losses);
}

std::set<int64_t> lengths_in(const Results& results, const std::string& corpus) {
  std::set<int64_t> lengths;
  for (const Variant& variant : variants)
    for (const json* result : results_of(results, variant.name, corpus))
      for (const json& row : result->at("evaluation").at("lengths")) lengths.insert(row.at("length").get<int64_t>());
  return lengths;
}

// Of every layer of every seed and corpus: the share of mass in the components that `chosen` takes.
std::vector<double> shares(const Results& results, const std::string& variant,
                           const std::function<bool(const std::string& sector, int order)>& chosen) {
  std::vector<double> all;
  for (const json* result : results_of(results, variant))
    for (const json& layer : result->at("layers")) {
      double share = 0;
      for (const json& row : layer)
        if (chosen(row.at("sector"), row.at("order"))) share += row.at("mass_share").get<double>();
      all.push_back(share);
    }
  return all;
}

// A comparison is only made with three seeds of a variant.
bool enough_seeds(const Results& results, const std::string& variant, const std::string& corpus = "") {
  return results_of(results, variant, corpus).size() >= 3;
}

Finding affine_dominates(const Results& results) {
  const auto part = [&](const std::string& sector) {
    return sample_of(shares(results, "pj-all", [&](const std::string& name, int) { return name == sector; }));
  };
  const Sample affine = part("affine"), fj = part("FJ"), lc = part("LC");
  Finding finding{"affine recency dominates; FJ and LC mass is a small correction",
                  fmt::format("pj-all, share of mass by layer: affine {}, FJ {}, LC {}", text_of(affine, 3),
                              text_of(fj, 3), text_of(lc, 3)),
                  "affine has more than half of the mass and FJ and LC together less than a quarter (3 seeds or more)",
                  {}};
  if (enough_seeds(results, "pj-all")) finding.agrees = affine.mean > 0.5 && fj.mean + lc.mean < 0.25;
  return finding;
}

Finding high_orders(const Results& results) {
  const auto all = shares(results, "pj-all", [](const std::string& sector, int order) {
    return sector != "affine" && order > 0;
  });
  const double least = all.empty() ? 0 : *std::ranges::min_element(all);
  Finding finding{"small but consistently nonzero high-order mass",
                  fmt::format("pj-all, share of FJ and LC orders above 0: {} over layers and seeds, least {:.3f}",
                              text_of(sample_of(all), 3), least),
                  "the mean is below a quarter and every layer of every seed is above 0.01 (3 seeds or more)",
                  {}};
  if (enough_seeds(results, "pj-all")) finding.agrees = sample_of(all).mean < 0.25 && least > 0.01;
  return finding;
}

// The variants by their mean loss at a length, best first.
std::vector<std::pair<double, std::string>> ranking(const Results& results, const std::string& corpus, int64_t length) {
  std::vector<std::pair<double, std::string>> order;
  for (const Variant& variant : variants) {
    const Sample loss = loss_at(results, variant.name, corpus, length);
    if (loss.count > 0) order.emplace_back(loss.mean, variant.name);
  }
  std::ranges::sort(order);
  return order;
}

Finding place_of(const Results& results, const std::string& corpus, const std::string& variant, bool longest,
                 size_t within, const std::string& paper) {
  const std::set<int64_t> lengths = lengths_in(results, corpus);
  const int64_t length = lengths.empty() ? 0 : longest ? *lengths.rbegin() : *lengths.begin();
  const auto order = ranking(results, corpus, length);
  const auto found = std::ranges::find(order, variant, &std::pair<double, std::string>::second);
  Finding finding{fmt::format("{} ({})", paper, corpus), "",
                  fmt::format("{} is among the best {} by mean loss at the {} length, or within one deviation of them "
                              "(3 seeds or more)",
                              variant, within, longest ? "longest" : "training"),
                  {}};
  if (found == order.end()) return finding;
  const size_t place = static_cast<size_t>(found - order.begin());
  const Sample own = loss_at(results, variant, corpus, length);
  finding.here = fmt::format("at {} tokens: {} of {}, {} nats a token; best: {} with {:.4f}", length, place + 1,
                             order.size(), text_of(own), order[0].second, order[0].first);
  const size_t last = std::min(within, order.size()) - 1;
  if (order.size() > within && enough_seeds(results, variant, corpus))
    finding.agrees = place < within || found->first - own.deviation <= order[last].first;
  return finding;
}

Section losses(const Results& results, const std::string& corpus) {
  Section section{.name = "loss-" + corpus, .title = "Held-out loss by context length: " + corpus, .text = {}};
  section.text = "Nats per token, mean and deviation over seeds.";
  const std::set<int64_t> lengths = lengths_in(results, corpus);
  Table table{{"variant", "seeds"}, {}};
  for (const int64_t length : lengths) table.header.push_back(fmt::format("{}", length));
  Plot plot{.title = "Held-out loss: " + corpus, .x_label = "context length (tokens)", .y_label = "nats per token",
            .series = {}, .log_x = true};
  for (const Variant& variant : variants) {
    const size_t seeds = results_of(results, variant.name, corpus).size();
    if (seeds == 0) continue;
    table.rows.push_back({variant.name, fmt::format("{}", seeds)});
    Series series{.label = variant.name, .x = {}, .y = {}, .spread = {}, .points = true};
    for (const int64_t length : lengths) {
      const Sample loss = loss_at(results, variant.name, corpus, length);
      table.rows.back().push_back(text_of(loss));
      if (loss.count == 0) continue;
      series.x.push_back(static_cast<double>(length));
      series.y.push_back(loss.mean);
      series.spread.push_back(loss.deviation);
    }
    plot.series.push_back(series);
  }
  section.plot = plot;
  section.table = table;
  return section;
}

Section masses(const Results& results) {
  Section section{.name = "masses", .title = "Sector masses by layer", .text = {}};
  section.text = "Share of the effective mass, and of the energy over the lags of the training length; mean and deviation "
                 "over seeds and corpora.";
  section.table = Table{{"variant", "layer", "sector", "order", "mass share", "energy share"}, {}};
  for (const Variant& variant : variants) {
    std::map<std::tuple<size_t, std::string, int>, std::pair<std::vector<double>, std::vector<double>>> cells;
    for (const json* result : results_of(results, variant.name))
      for (size_t layer = 0; layer < result->at("layers").size(); ++layer)
        for (const json& row : result->at("layers")[layer]) {
          auto& cell = cells[{layer, row.at("sector").get<std::string>(), row.at("order").get<int>()}];
          cell.first.push_back(row.at("mass_share"));
          cell.second.push_back(row.at("energy_share"));
        }
    for (const auto& [place, cell] : cells)
      section.table->rows.push_back({variant.name, fmt::format("{}", std::get<0>(place)), std::get<1>(place),
                                     fmt::format("{}", std::get<2>(place)), text_of(sample_of(cell.first), 3),
                                     text_of(sample_of(cell.second), 3)});
  }
  return section;
}

void add_notes(const Subject& subject, const Plan& plan, const std::vector<std::string>& missing,
               const Results& results, Outcome& made) {
  if (!plan.data.empty())
    made.notes.push_back(fmt::format("{} stands in for the paper's corpora.", plan.data));
  else if (plan.scale == Scale::smoke)
    made.notes.push_back("The embedded corpus canon (events, not bytes) stands in for the paper's corpora.");
  else if (plan.scale == Scale::quick)
    made.notes.push_back(fmt::format("Only the first corpus that is here, of {}.", fmt::join(subject.corpora, ", ")));
  if (!missing.empty()) made.notes.push_back(fmt::format("Not here, left out: {}.", fmt::join(missing, ", ")));
  for (const auto& [key, result] : results)
    if (result.contains("failed"))
      made.notes.push_back(fmt::format("{} failed: {}", key, result.at("failed").get<std::string>()));
}

Outcome outcome(const Subject& subject, const Plan& plan, const Results& results) {
  Outcome made;
  std::vector<std::string> missing;
  const std::vector<std::string> corpora = corpora_of(subject, plan, &missing);
  made.findings.push_back(subject.name == "music" ? high_orders(results) : affine_dominates(results));
  for (const std::string& corpus : corpora) {
    const std::string name = short_name(corpus);
    made.findings.push_back(subject.name == "music"
                                ? place_of(results, name, "pj-lc+affine", false, 3, "LC+affine is strong")
                                : place_of(results, name, "ntk+affine", true, 1,
                                           "NTK-style scaling with affine recency is best at long context"));
    made.sections.push_back(losses(results, name));
  }
  made.sections.push_back(masses(results));
  for (const auto& [key, result] : results)
    if (!result.contains("failed")) made.runs.push_back(plan.out + "/runs/" + key);
  add_notes(subject, plan, missing, results, made);
  return made;
}

Study study_of(const Subject& subject, const std::string& question, const std::string& paper) {
  return {.name = subject.name,
          .question = question,
          .protocol = fmt::format("Small causal Transformers (3 layers, width 64, 4 heads, context 256) trained on {}, {} "
                                  "position variants,\n3 seeds; held-out loss from the training length up; sector masses "
                                  "by layer.",
                                  fmt::join(subject.corpora, ", "), std::size(variants)),
          .source = "PJ-RoPE (arXiv 2606.05345)",
          .paper = paper,
          .pieces = [=](const Plan& plan) { return pieces(subject, plan); },
          .outcome = [=](const Plan& plan, const Results& results) { return outcome(subject, plan, results); }};
}

const RegisterStudy text(study_of({"byte-lm", {"tiny-shakespeare", "wikitext-2", "war-and-peace"}},
                                  "Which position variant models text best, at and beyond the training length?",
                                  "affine recency dominates; FJ and LC mass is a small correction; NTK-style scaling "
                                  "with affine recency is best at long context"));
const RegisterStudy music(study_of({"music", {"maestro", "musicnet"}},
                                   "Which position variant models music best, and does it use high orders?",
                                   "LC+affine strong; small but consistently nonzero high-order mass"));

}  // namespace

}  // namespace sextant::study
