// far-mass: how much attention trained models give to far sources as the context grows, and the least that a softmax
// can give them,
//
//   rho_far >= M / (M + K e^{2 lambda})         K near and M far sources, |logit| <= lambda
//
// with the lambda that each head shows. A softmax does not see constants, so half the range of the logits is a lambda,
// too, and a smaller one where a bias or a gate pushes all logits down.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "experiments/study_transport.h"

namespace sextant::study {

namespace {

using nlohmann::json;

constexpr double vacuous = 0.01;          // a bound below this says nothing
constexpr double rounding = 1e-12;        // of sums of up to 65,536 doubles of size 1
constexpr size_t quarter = 0, whole = 1;  // what is near: a quarter of the training length, all of it

std::vector<double> flattened(const json& layers) {
  std::vector<double> all;
  for (const json& heads : layers)
    for (const json& value : heads) all.push_back(value.get<double>());
  return all;
}

double mean_of(const json& layers) {
  return sample_of(flattened(layers)).mean;
}

double largest_of(const json& layers) {
  const std::vector<double> all = flattened(layers);
  return *std::ranges::max_element(all);
}

double median_of(const json& layers) {
  std::vector<double> all = flattened(layers);
  std::ranges::nth_element(all, all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2));
  return all[all.size() / 2];
}

// The measurements of one result, by length; null where it diverged.
const json* rows_of(const json& result) {
  return result.contains("measured") ? &result.at("measured").at("far_mass") : nullptr;
}

const json* row_at(const json& result, int64_t length) {
  if (const json* rows = rows_of(result))
    for (const json& row : *rows)
      if (row.at("length") == length) return &row;
  return nullptr;
}

Sample over_rows(const Results& results, const std::string& variant, int64_t length,
                 const std::function<double(const json& row)>& number) {
  return over_results(results, variant, [&](const json& result) {
    const json* row = row_at(result, length);
    return row == nullptr ? std::nan("") : number(*row);
  });
}

Sample mass_at(const Results& results, const std::string& variant, int64_t length, size_t near = quarter) {
  return over_rows(results, variant, length,
                   [&](const json& row) { return mean_of(row.at("near").at(near).at("mass")); });
}

double least_margin(const Results& results) {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [key, result] : results)
    if (const json* rows = rows_of(result))
      for (const json& row : *rows) {
        least = std::min(least, row.at("margin").get<double>());
        for (const json& near : row.at("near")) {
          const auto mass = flattened(near.at("mass")), bound = flattened(near.at("bound"));
          for (size_t head = 0; head < mass.size(); ++head) least = std::min(least, mass[head] - bound[head]);
        }
      }
  return least;
}

Finding never_violated(const Results& results, double margin) {
  Finding finding{"rho_far >= M / (M + K e^{2 lambda}) under a full softmax",
                  "",
                  "for every query looked at (by half the range of its own logits) and every head (by its largest "
                  "|logit|) the mass is not below the bound by more than rounding, 1e-12; otherwise the exit status is "
                  "1",
                  {}};
  if (!std::isfinite(margin)) return finding;
  finding.here = fmt::format("least mass minus bound: {:.3g}, over {} models", margin, results.size());
  finding.agrees = margin >= -rounding;
  return finding;
}

// How many heads of all models have a bound that says something, at a length.
Finding where_vacuous(const Results& results, int64_t longest) {
  Finding finding{"(not in the summary) whether the bound says anything with the lambda of trained models",
                  "",
                  "no rule: reported; a bound below 0.01 counts as vacuous",
                  {}};
  for (const TransportVariant& variant : transport_variants()) {
    int64_t heads = 0, useful = 0, useful_half = 0;
    for (const json* result : results_of(results, variant.name)) {
      const json* row = row_at(*result, longest);
      if (row == nullptr) continue;
      for (const double bound : flattened(row->at("near").at(quarter).at("bound"))) {
        useful += bound >= vacuous;
        ++heads;
      }
      for (const double bound : flattened(row->at("near").at(quarter).at("bound_half_range")))
        useful_half += bound >= vacuous;
    }
    if (heads > 0)
      finding.here += fmt::format("{}{}: {} of {} heads ({} with half the range)", finding.here.empty() ? "" : "; ",
                                  variant.name, useful, heads, useful_half);
  }
  if (!finding.here.empty())
    finding.here = fmt::format("heads whose bound at {} is not vacuous: ", longest) + finding.here;
  return finding;
}

Finding tends_to_one(const Results& results, int64_t context, int64_t longest) {
  Finding finding{"without explicit control the far mass tends to 1; a bias by distance controls it",
                  "",
                  "from the training length to the longest (at least 64 times as long) the mean far mass of every "
                  "uncontrolled variant grows and ends above 0.9, and alibi's ends below 0.1",
                  {}};
  bool all = true, any = false;
  for (const TransportVariant& variant : transport_variants()) {
    const Sample first = mass_at(results, variant.name, context), last = mass_at(results, variant.name, longest);
    if (last.count == 0) continue;
    finding.here +=
        fmt::format("{}{} {:.3f} -> {:.3f}", finding.here.empty() ? "" : "; ", variant.name, first.mean, last.mean);
    if (!variant.controlled) {
      all = all && last.mean > first.mean && last.mean > 0.9;
      any = true;
    } else if (std::string(variant.name) == "alibi") {
      all = all && last.mean < 0.1;
    }
  }
  if (!finding.here.empty()) finding.here = fmt::format("mean far mass, {} -> {}: ", context, longest) + finding.here;
  if (any && longest >= 64 * context && mass_at(results, "alibi", longest).count > 0) finding.agrees = all;
  return finding;
}

Section curves(const Results& results, const std::vector<int64_t>& lengths, const TransportScale& scale, bool main) {
  const char* title = main ? "Attention on far sources" : "Attention on far sources, combinations";
  Section section{.name = main ? "far-mass" : "far-mass-combinations", .title = title, .text = {}};
  Plot plot{.title = title,
            .x_label = "context length (tokens)",
            .y_label = fmt::format("mass beyond {} tokens", scale.near[quarter]),
            .series = {},
            .log_x = true,
            .mark_x = static_cast<double>(scale.context),
            .mark_label = "trained"};
  int look = 0;
  for (const TransportVariant& variant : transport_variants()) {
    if ((variant.group == TransportVariant::Group::main) != main) continue;
    Series series{.label = variant.name, .x = {}, .y = {}, .points = true, .look = look++};
    for (const int64_t length : lengths) {
      const Sample mass = mass_at(results, variant.name, length);
      if (mass.count == 0) continue;
      series.x.push_back(static_cast<double>(length));
      series.y.push_back(mass.mean);
    }
    if (!series.x.empty()) plot.series.push_back(series);
  }
  section.plot = plot;
  return section;
}

// Mass and bound of the main variants, the head that the bound says most about.
Section bounds(const Results& results, const std::vector<int64_t>& lengths) {
  Section section{.name = "bounds", .title = "The bound, where it says most", .text = {}};
  section.text =
      "Of each variant's first model the head with the largest bound at the longest context: its far mass (marks) and "
      "its bound M / (M + K e^{2 lambda}), lambda half the range of its logits (lines).";
  Plot plot{.title = "Far mass (marks) and bound (lines) of the most bounded head",
            .x_label = "context length (tokens)",
            .y_label = "mass on far sources",
            .series = {},
            .log_x = true,
            .log_y = true};
  int look = 0;
  for (const char* name : {"rope", "random-qk", "learned-qk", "householder", "alibi", "gate"}) {
    const auto found = results_of(results, name);
    if (found.empty() || row_at(*found.front(), lengths.back()) == nullptr) continue;
    const auto last = flattened(row_at(*found.front(), lengths.back())->at("near").at(quarter).at("bound_half_range"));
    const size_t head = static_cast<size_t>(std::ranges::max_element(last) - last.begin());
    Series mass{.label = name, .x = {}, .y = {}, .points = true, .look = look},
        bound{.label = std::string(name) + ", bound", .x = {}, .y = {}, .in_legend = false, .look = look};
    ++look;
    for (const int64_t length : lengths) {
      const json* row = row_at(*found.front(), length);
      if (row == nullptr) continue;
      const json& near = row->at("near").at(quarter);
      for (Series* series : {&mass, &bound}) series->x.push_back(static_cast<double>(length));
      mass.y.push_back(flattened(near.at("mass"))[head]);
      bound.y.push_back(flattened(near.at("bound_half_range"))[head]);
    }
    plot.series.push_back(mass);
    plot.series.push_back(bound);
  }
  section.plot = plot;
  return section;
}

Section table_of(const Results& results, const std::vector<int64_t>& lengths, const TransportScale& scale) {
  Section section{.name = "masses", .title = "Far mass, lambda and bound by length", .text = {}};
  section.text = fmt::format(
      "Means over heads, layers, queries at the end of the window, and seeds. Near: up to {} tokens away, or {}, the "
      "training length. lambda: the largest |logit| of a head, median over heads; half range: half the range of its "
      "logits. Bound: by the latter, mean and largest over heads, near {}.",
      scale.near[quarter], scale.near[whole], scale.near[quarter]);
  section.table =
      Table{{"variant", "length", fmt::format("mass beyond {}", scale.near[quarter]),
             fmt::format("mass beyond {}", scale.near[whole]), "lambda", "half range", "mean bound", "largest bound"},
            {}};
  for (const TransportVariant& variant : transport_variants())
    for (const int64_t length : lengths) {
      if (mass_at(results, variant.name, length).count == 0) continue;
      const auto over = [&](auto number) { return over_rows(results, variant.name, length, number).mean; };
      const auto bound = [&](auto summary) {
        return over([&](const json& row) { return summary(row.at("near").at(quarter).at("bound_half_range")); });
      };
      section.table->rows.push_back(
          {variant.name, fmt::format("{}", length), text_of(mass_at(results, variant.name, length), 3),
           text_of(mass_at(results, variant.name, length, whole), 3),
           number_text(over([](const json& row) { return median_of(row.at("lambda")); }), 3),
           number_text(over([](const json& row) { return median_of(row.at("half_range")); }), 3),
           number_text(bound(mean_of), 3), number_text(bound(largest_of), 3)});
    }
  return section;
}

Outcome outcome(const Plan& plan, const Results& results) {
  const TransportScale scale = transport_scale(plan);
  Outcome made;
  made.notes = transport_notes(plan);
  const double margin = least_margin(results);
  made.findings.push_back(never_violated(results, margin));
  made.passed = !(margin < -rounding);
  const std::vector<int64_t> lengths = lengths_of(results);
  if (lengths.empty()) return made;
  made.findings.push_back(tends_to_one(results, scale.context, lengths.back()));
  made.findings.push_back(where_vacuous(results, lengths.back()));
  made.sections = {curves(results, lengths, scale, true), bounds(results, lengths),
                   curves(results, lengths, scale, false), table_of(results, lengths, scale)};
  return made;
}

const RegisterStudy registered(
    {.name = "far-mass",
     .question = "How much attention goes to far sources as the context grows, and how much must?",
     .protocol = "Softmax mass on far sources by context length in the models of `extrapolation` (--from its folder "
                 "takes them over),\nagainst the bound with each head's measured lambda; exit status 1 when a mass is "
                 "below its bound.",
     .source = "Why Do Accumulated Transformations Extrapolate? (arXiv 2606.24975)",
     .paper = "the mass tends to 1 without explicit control",
     .pieces = [](const Plan& plan) { return transport_pieces(plan); },
     .outcome = outcome,
     .forecast = transport_forecast});

}  // namespace

}  // namespace sextant::study
