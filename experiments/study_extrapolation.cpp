// extrapolation: how far beyond its training length a model reads, by position strategy.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "experiments/study_transport.h"

namespace sextant::study {

namespace {

using nlohmann::json;
using Group = TransportVariant::Group;

constexpr double flat = 1.05;  // ratios up to here count as flat

// Perplexity over the perplexity at the training length.
Sample ratio_at(const Results& results, const std::string& variant, int64_t length) {
  return over_seeds(results, variant, length, "ratio_to_training_length");
}

// The paper's ratios, as far as the summary gives them; it does not say whether the random rotations of the 8K figure
// turned the values, too.
const std::map<std::pair<std::string, int64_t>, const char*>& papers_ratios() {
  static const std::map<std::pair<std::string, int64_t>, const char*> ratios = {{{"rope", 8192}, "16.2"},
                                                                                {{"random-qk", 8192}, "1.60"},
                                                                                {{"random-qk", 65536}, "7.49"},
                                                                                {{"random-qkv", 65536}, "1.59"},
                                                                                {{"alibi", 65536}, "0.96"}};
  return ratios;
}

std::string ratio_text(const Sample& ratio) {
  return ratio.count == 0   ? "-"
         : ratio.count == 1 ? number_text(ratio.mean, 3)
                            : number_text(ratio.mean, 3) + " +- " + number_text(ratio.deviation, 2);
}

// "rope 12.3x, alibi 0.98x" at a length; nothing of variants that were not evaluated there.
std::string ratios_text(const Results& results, const std::vector<std::string>& variants, int64_t length) {
  std::string text;
  for (const std::string& variant : variants)
    if (const Sample ratio = ratio_at(results, variant, length); ratio.count > 0)
      text += (text.empty() ? "" : ", ") + variant + " " + ratio_text(ratio) + "x";
  return text.empty() ? "" : fmt::format("at {}: {}", length, text);
}

bool all_there(const Results& results, const std::vector<std::string>& variants, int64_t length) {
  return std::ranges::all_of(variants,
                             [&](const std::string& variant) { return ratio_at(results, variant, length).count > 0; });
}

// Of two variants with seeds: whether all of one's ratios lie below all of the other's.
bool clearly_below(const Results& results, const std::string& low, const std::string& high, int64_t length) {
  double largest = -HUGE_VAL, least = HUGE_VAL;
  for (const json* result : results_of(results, low))
    largest = std::fmax(largest, at_length(*result, length, "ratio_to_training_length"));
  for (const json* result : results_of(results, high))
    least = std::fmin(least, at_length(*result, length, "ratio_to_training_length"));
  return largest < least;
}

Finding accumulated(const Results& results) {
  Finding finding{"8K: random accumulated rotations 1.60x, rope 16.2x",
                  ratios_text(results, {"random-qk", "random-qkv", "rope", "random-qk-by-position"}, 8192),
                  "at 8192 every seed of random-qk has a lower ratio than every seed of rope",
                  {}};
  if (all_there(results, {"rope", "random-qk"}, 8192))
    finding.agrees = clearly_below(results, "random-qk", "rope", 8192);
  return finding;
}

Finding learned(const Results& results) {
  const std::vector<std::string> variants = {"learned-qk", "learned-qkv"};
  Finding finding{"learned token-dependent rotations stay near the training perplexity well beyond the training length",
                  ratios_text(results, {"learned-qk", "learned-qkv", "rope"}, 8192),
                  "at 8192, 16 times the training length, both ratios are below 1.5",
                  {}};
  if (all_there(results, variants, 8192))
    finding.agrees = std::ranges::all_of(
        variants, [&](const std::string& variant) { return ratio_at(results, variant, 8192).mean < 1.5; });
  return finding;
}

Finding with_values(const Results& results) {
  Finding finding{"65K: random rotations 1.59x with the values rotated, 7.49x without",
                  ratios_text(results, {"random-qkv", "random-qk", "learned-qkv", "learned-qk"}, 65536),
                  "at 65,536 every seed of random-qkv has a lower ratio than every seed of random-qk",
                  {}};
  if (all_there(results, {"random-qk", "random-qkv"}, 65536))
    finding.agrees = clearly_below(results, "random-qkv", "random-qk", 65536);
  return finding;
}

Finding limits(const Results& results) {
  const std::vector<std::string> rotations = {"random-qk", "random-qkv", "learned-qk", "learned-qkv"};
  std::vector<std::string> all = rotations;
  all.push_back("alibi");
  Finding finding{"rotation-only models degrade in the end, alibi stays flat (65K: 0.96x)",
                  ratios_text(results, all, 65536),
                  "at 65,536 alibi's ratio is at most 1.05 and that of each of the four rotation-only models is above",
                  {}};
  if (all_there(results, all, 65536))
    finding.agrees = ratio_at(results, "alibi", 65536).mean <= flat &&
                     std::ranges::all_of(rotations, [&](const std::string& variant) {
                       return ratio_at(results, variant, 65536).mean > flat;
                     });
  return finding;
}

Finding combined(const Results& results, int64_t context, int64_t longest) {
  Finding finding{
      "(nobody has published) transport with values and alibi or a gate, jordan with a gate, pj-bias with "
      "transport: which are flat, and at what cost in training-length loss",
      "",
      "no rule: reported; flat means a ratio of at most 1.05 at the longest context",
      {}};
  const Sample rope = over_seeds(results, "rope", context), alibi = over_seeds(results, "alibi", context);
  for (const TransportVariant& variant : transport_variants()) {
    if (variant.group != Group::combination || !variant.controlled) continue;
    const Sample ratio = ratio_at(results, variant.name, longest), loss = over_seeds(results, variant.name, context);
    if (ratio.count == 0) continue;
    finding.here += fmt::format("{}{} {}x ({}), {:.4f} nats", finding.here.empty() ? "" : "; ", variant.name,
                                number_text(ratio.mean, 3), ratio.mean <= flat ? "flat" : "not flat", loss.mean);
    if (alibi.count > 0) finding.here += fmt::format(" ({:+.4f} against alibi)", loss.mean - alibi.mean);
    if (rope.count > 0) finding.here += fmt::format(" ({:+.4f} against rope)", loss.mean - rope.mean);
  }
  if (!finding.here.empty()) finding.here = fmt::format("at {}: ", longest) + finding.here;
  return finding;
}

Section table_of(const Results& results, const std::vector<int64_t>& lengths, int64_t context) {
  Section section{.name = "ratios", .title = "Perplexity over that at the training length", .text = {}};
  section.text = fmt::format(
      "Loss: held-out, nats a token at the training length {}. Ratios: exp of the difference of losses, mean and "
      "deviation over seeds; in brackets what the paper has. Each length is averaged over windows spread over the "
      "held-out text, so that about the same tokens count at every length; a longer window has fewer tokens with "
      "little context, which alone brings ratios slightly below 1.",
      context);
  section.table = Table{{"variant", "SPEC", "seeds", "loss"}, {}};
  for (const int64_t length : lengths) section.table->header.push_back(fmt::format("{}", length));
  for (const TransportVariant& variant : transport_variants()) {
    const auto found = results_of(results, variant.name);
    if (found.empty()) continue;
    const Sample loss = over_seeds(results, variant.name, context);
    std::vector<std::string> row = {variant.name, variant.spec, fmt::format("{}", found.size()),
                                    loss.count == 0 ? "diverged" : text_of(loss)};
    for (const int64_t length : lengths) {
      const auto paper = papers_ratios().find({variant.name, length});
      row.push_back(ratio_text(ratio_at(results, variant.name, length)) +
                    (paper == papers_ratios().end() ? "" : fmt::format(" [{}]", paper->second)));
    }
    section.table->rows.push_back(row);
  }
  return section;
}

Section curves(const Results& results, const std::vector<int64_t>& lengths, const char* name, const char* title,
               const std::function<bool(const TransportVariant&)>& wanted, int64_t context) {
  Section section{.name = name, .title = title, .text = {}};
  Plot plot{.title = title,
            .x_label = "context length (tokens)",
            .y_label = "perplexity ratio",
            .series = {},
            .log_x = true,
            .log_y = true,
            .mark_x = static_cast<double>(context),
            .mark_label = "trained"};
  int look = 0;
  for (const TransportVariant& variant : transport_variants()) {
    if (!wanted(variant)) continue;
    Series series{.label = variant.name, .x = {}, .y = {}, .points = true, .look = look++};
    for (const int64_t length : lengths) {
      const Sample ratio = ratio_at(results, variant.name, length);
      if (ratio.count == 0) continue;
      series.x.push_back(static_cast<double>(length));
      series.y.push_back(ratio.mean);
      series.spread.push_back(ratio.deviation);
    }
    if (!series.x.empty()) plot.series.push_back(series);
  }
  section.plot = plot;
  return section;
}

// What the reach costs where it is not needed.
Section trade(const Results& results, int64_t context, int64_t longest) {
  Section section{.name = "trade", .title = "Loss at the training length against reach", .text = {}};
  section.text = "Sorted by the loss at the training length (nats a token, held out). Flat: a ratio of at most 1.05.";
  section.table =
      Table{{"variant", "loss", "against rope", fmt::format("ratio at {}", longest), "flat", "parameters"}, {}};
  const Sample rope = over_seeds(results, "rope", context);
  std::multimap<double, std::vector<std::string>> sorted;
  for (const TransportVariant& variant : transport_variants()) {
    const Sample loss = over_seeds(results, variant.name, context), ratio = ratio_at(results, variant.name, longest);
    if (loss.count == 0) continue;
    const json& training = results_of(results, variant.name).front()->at("training");
    sorted.emplace(loss.mean,
                   std::vector<std::string>{variant.name, text_of(loss),
                                            rope.count > 0 ? fmt::format("{:+.4f}", loss.mean - rope.mean) : "-",
                                            ratio_text(ratio), ratio.count > 0 && ratio.mean <= flat ? "yes" : "no",
                                            training.at("parameters").dump()});
  }
  for (const auto& [loss, row] : sorted) section.table->rows.push_back(row);
  return section;
}

Outcome outcome(const Plan& plan, const Results& results) {
  const TransportScale scale = transport_scale(plan);
  Outcome made;
  made.notes = transport_notes(plan);
  const std::vector<int64_t> lengths = lengths_of(results);
  made.findings = {accumulated(results), learned(results), with_values(results), limits(results)};
  if (lengths.empty()) return made;
  made.findings.push_back(combined(results, scale.context, lengths.back()));
  made.sections = {table_of(results, lengths, scale.context),
                   curves(
                       results, lengths, "main", "Extrapolation",
                       [](const TransportVariant& variant) { return variant.group == Group::main; }, scale.context),
                   curves(
                       results, lengths, "combinations", "Combinations, and what they are made of",
                       [](const TransportVariant& variant) {
                         const std::string name = variant.name;
                         return variant.group == Group::combination || name == "alibi" || name == "gate" ||
                                name == "learned-qkv";
                       },
                       scale.context),
                   trade(results, scale.context, lengths.back())};
  for (const auto& [key, result] : results)
    if (const std::string folder = plan.out + "/runs/" + key; std::filesystem::exists(folder + "/manifest.json"))
      made.runs.push_back(folder);
  return made;
}

const RegisterStudy registered(
    {.name = "extrapolation",
     .question = "How far beyond the training length does a model read, by position strategy?",
     .protocol = "One model a strategy and seed, trained at context 512 (64 at scale smoke), held-out perplexity by "
                 "context length to 65,536.\nEach trained model is also measured for far-mass and decoherence.",
     .source = "Why Do Accumulated Transformations Extrapolate? (arXiv 2606.24975)",
     .paper = "8K: random accumulated rotations 1.60x, rope 16.2x; 65K: random 1.59x with the values rotated, 7.49x "
              "without; alibi 0.96x; rotation-only models degrade in the end",
     .pieces = [](const Plan& plan) { return transport_pieces(plan); },
     .outcome = outcome,
     .forecast = transport_forecast});

}  // namespace

}  // namespace sextant::study
