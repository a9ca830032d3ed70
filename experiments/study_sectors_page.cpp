// The tables and plots of byte-lm and music.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "experiments/study_sectors.h"

namespace sextant::study {

using nlohmann::json;

namespace {

std::string prefix_of(const Variant& variant, const std::string& corpus) {
  return fmt::format("{}/{}", variant.name, corpus);
}
std::string full_of(const std::string& corpus) {
  return fmt::format("{}/{}", full_variant, corpus);
}
bool is_kernel(const Variant& variant) {
  return std::string(variant.name).starts_with("pj-") || std::string(variant.name).starts_with("jordan");
}
std::string component_name(const json& row) {
  return fmt::format("{} {}", row.at("sector").get<std::string>(), row.at("order").get<int>());
}

Section loss_table(const Results& results, const std::string& corpus) {
  Section section{.name = "loss-" + corpus, .title = "Loss by context length: " + corpus, .text = {}};
  section.text =
      "Held-out loss in nats a token over the whole window, mean and deviation over seeds where there are several; the "
      "lowest of each length is marked.";
  const std::vector<int64_t> lengths = lengths_of(results);
  Table table{{"strategy", "seeds"}, {}};
  for (const int64_t length : lengths) table.header.push_back(fmt::format("{}", length));
  std::vector<double> lowest(lengths.size(), std::numeric_limits<double>::infinity());
  std::vector<size_t> lowest_row(lengths.size());
  for (const Variant& variant : sector_variants()) {
    const std::string prefix = prefix_of(variant, corpus);
    const auto runs = results_of(results, prefix);
    if (runs.empty()) continue;
    std::vector<std::string> row = {variant.name, fmt::format("{}", runs.size())};
    for (size_t i = 0; i < lengths.size(); ++i) {
      const Sample loss = over_seeds(results, prefix, lengths[i]);
      row.push_back(text_of(loss, 3));
      if (loss.count > 0 && loss.mean < lowest[i]) lowest[i] = loss.mean, lowest_row[i] = table.rows.size();
    }
    table.rows.push_back(row);
  }
  for (size_t i = 0; i < lengths.size(); ++i)
    if (std::isfinite(lowest[i])) table.best.insert({lowest_row[i], i + 2});
  section.table = table;
  return section;
}

// Two pictures a corpus: thirteen lines in one cannot be told apart.
Section loss_plot(const Results& results, const std::string& corpus, bool kernels, int64_t context) {
  const char* which = kernels ? "jets, PJ-bias and PJ-rotary" : "characters and recency";
  Plot plot{.title = fmt::format("{}: {}", corpus, which),
            .x_label = "context length (tokens)",
            .y_label = "held-out loss (nats a token)",
            .series = {},
            .log_x = true,
            .mark_x = static_cast<double>(context),
            .mark_label = "trained here"};
  const std::vector<int64_t> lengths = lengths_of(results);
  double lowest = std::numeric_limits<double>::infinity(), highest = 0;
  for (const Variant& variant : sector_variants()) {
    if (is_kernel(variant) != kernels) continue;
    Series series{.label = variant.name, .x = {}, .y = {}, .points = true};
    for (const int64_t length : lengths) {
      const Sample loss = over_seeds(results, prefix_of(variant, corpus), length);
      if (loss.count == 0) continue;
      series.x.push_back(static_cast<double>(length));
      series.y.push_back(loss.mean);
      series.spread.push_back(loss.deviation);
      lowest = std::min(lowest, loss.mean);
      highest = std::max(highest, loss.mean);
    }
    if (!series.x.empty()) plot.series.push_back(series);
  }
  constexpr double height = 2;  // nats
  if (highest > lowest + height) plot.y_top = lowest + height;
  return {.name = fmt::format("loss-{}-{}", corpus, kernels ? "jets" : "characters"),
          .title = fmt::format("Loss by context length: {}, {}", corpus, which),
          .text = plot.y_top ? "Lines that leave the picture at the top: see the table." : "",
          .plot = plot};
}

// The mean share of each component of a layer's mass (layer -1: of the whole model), over seeds.
std::vector<double> shares(const std::vector<const json*>& runs, int layer, const char* what) {
  std::vector<double> mean;
  double count = 0;
  for (const json* run : runs) {
    const json& sectors = layer < 0 ? run->at("sectors") : run->at("layers").at(static_cast<size_t>(layer));
    double sum = 0;
    std::vector<double> values;
    for (const json& row : sectors) {
      // What leaving a component out gains is no share of what is needed.
      const double value = number_at(row, fmt::format("/{}", what));
      values.push_back(std::isfinite(value) ? std::max(0.0, value) : 0.0);
      sum += values.back();
    }
    if (values.empty()) continue;
    mean.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) mean[i] += sum > 0 ? values[i] / sum : 0;
    ++count;
  }
  for (double& value : mean) value /= std::max(1.0, count);
  return mean;
}

std::vector<std::string> components_of(const Results& results) {
  std::vector<std::string> names;
  for (const auto& [key, result] : results)
    if (key.starts_with(std::string(full_variant) + "/") && names.empty())
      for (const json& row : result.at("sectors")) names.push_back(component_name(row));
  return names;
}

Section mass_by_layer(const Results& results, const std::vector<std::string>& corpora) {
  Plot plot{.title = "Where the mass lies",
            .x_label = "",
            .y_label = "share of the mass",
            .series = {},
            .y_top = 1.0,
            .stacked = true};
  for (const std::string& name : components_of(results)) plot.series.push_back({.label = name, .x = {}, .y = {}});
  for (const std::string& corpus : corpora) {
    const auto runs = results_of(results, full_of(corpus));
    const size_t layers = runs.empty() ? 0 : runs.front()->at("layers").size();
    for (size_t layer = 0; layer < layers; ++layer) {
      const std::vector<double> mass = shares(runs, static_cast<int>(layer), "mass");
      if (mass.size() != plot.series.size()) continue;
      plot.categories.push_back(fmt::format("{} {}", corpus, layer + 1));
      for (size_t i = 0; i < mass.size(); ++i) plot.series[i].y.push_back(mass[i]);
    }
  }
  return {.name = "mass-by-layer",
          .title = "Sector mass by corpus and layer",
          .text = fmt::format("Of {}, mean over seeds. The number behind the corpus is the layer, from the input on.",
                              full_variant),
          .plot = plot};
}

Section mass_energy_need(const Results& results, const std::string& corpus) {
  Plot plot{.title = fmt::format("Mass, energy and need: {}", corpus),
            .x_label = "",
            .y_label = "share",
            .series = {},
            .categories = components_of(results)};
  const auto runs = results_of(results, full_of(corpus));
  for (const auto& [label, what] : {std::pair{"mass", "mass"}, std::pair{"energy without its mean", "centred_energy"},
                                    std::pair{"loss when left out", "leave_one_out_nats_per_token"}}) {
    Series series{.label = label, .x = {}, .y = shares(runs, -1, what)};
    if (series.y.size() == plot.categories.size()) plot.series.push_back(series);
  }
  Section section{.name = "sectors-" + corpus, .title = "Mass against energy against need: " + corpus, .text = {}};
  section.text =
      "Mass is what the parameters allocate, energy what is realised over the window (without its mean, which a "
      "softmax "
      "ignores), left out the rise of the held-out loss at the training length when the component is set to zero in "
      "all "
      "layers. Mean and deviation over seeds.";
  section.plot = plot;
  section.table = Table{{"strategy", "component", "mass", "share of mass at start", "share of mass", "share of energy",
                         "cancellation", "left out, nats"},
                        {}};
  for (const Variant& variant : sector_variants()) {
    const std::string prefix = prefix_of(variant, corpus);
    const auto all = results_of(results, prefix);
    if (all.empty()) continue;
    for (const json& row : all.front()->at("sectors")) {
      const auto cell = [&](const char* what, int digits) {
        return text_of(component(results, prefix, row.at("sector"), row.at("order"), what), digits);
      };
      section.table->rows.push_back({variant.name, component_name(row), cell("mass", 3), cell("mass_share_at_start", 3),
                                     cell("mass_share", 3), cell("energy_share", 3), cell("cancellation", 3),
                                     cell("leave_one_out_nats_per_token", 4)});
    }
  }
  return section;
}

// b_h(d) - b_h(0) of every head at the first seed; heads of a layer share a colour.
Section kernel_shapes(const Results& results, const std::string& corpus, const char* variant, int64_t context) {
  Plot plot{.title = fmt::format("{}: kernels of {}", corpus, variant),
            .x_label = "lag (tokens)",
            .y_label = "b(lag) - b(0), nats",
            .series = {},
            .log_x = true,
            .mark_x = static_cast<double>(context),
            .mark_label = "trained to here"};
  const auto runs = results_of(results, fmt::format("{}/{}", variant, corpus));
  if (!runs.empty() && runs.front()->at("kernels").is_object()) {
    const json& kernels = runs.front()->at("kernels");
    for (size_t layer = 0; layer < kernels.at("layers").size(); ++layer)
      for (const json& head : kernels.at("layers")[layer]) {
        Series series{.label = "", .x = {}, .y = {}, .look = static_cast<int>(layer)};
        if (&head == &kernels.at("layers")[layer].front()) series.label = fmt::format("layer {}", layer + 1);
        for (size_t i = 1; i < head.size(); ++i) {
          series.x.push_back(kernels.at("lags")[i].get<double>());
          series.y.push_back(head[i].get<double>() - head[0].get<double>());
        }
        plot.series.push_back(series);
      }
  }
  return {.name = fmt::format("kernels-{}-{}", corpus, variant),
          .title = fmt::format("Kernels learned: {}, {}", corpus, variant),
          .text =
              "Every head at the first seed; beyond 64 tokens the mean of eight ranges of lags a doubling. Only "
              "differences between lags matter to a softmax.",
          .plot = plot};
}

std::string account(const Results& results) {
  double tokens = 0, seconds = 0;
  int64_t diverged = 0;
  for (const auto& [key, result] : results) {
    diverged += result.contains("diverged");
    if (!result.contains("training")) continue;
    tokens += result.at("training").at("tokens").get<double>();
    seconds += result.at("training").at("seconds").get<double>();
  }
  return fmt::format("{} runs, {} tokens and {} of training in all{}.", results.size(), count_text(tokens),
                     duration_text(seconds), diverged > 0 ? fmt::format("; {} diverged", diverged) : "");
}

void add_sections(Outcome& outcome, const Results& results, int64_t context) {
  const std::vector<std::string> corpora = corpora_in(results);
  outcome.notes.push_back(account(results));
  for (const std::string& corpus : corpora) {
    outcome.sections.push_back(loss_table(results, corpus));
    outcome.sections.push_back(loss_plot(results, corpus, false, context));
    outcome.sections.push_back(loss_plot(results, corpus, true, context));
  }
  if (components_of(results).empty()) return;
  outcome.sections.push_back(mass_by_layer(results, corpora));
  for (const std::string& corpus : corpora) {
    if (results_of(results, full_of(corpus)).empty()) continue;
    outcome.sections.push_back(mass_energy_need(results, corpus));
    for (const char* variant : {full_variant, "pj-bias-lc+affine"})
      if (!results_of(results, fmt::format("{}/{}", variant, corpus)).empty())
        outcome.sections.push_back(kernel_shapes(results, corpus, variant, context));
  }
}

}  // namespace

Outcome sector_outcome(const Plan& plan, const Results& results, const StudyCorpora& corpora,
                       const std::function<std::vector<Finding>(int64_t longest)>& findings) {
  Outcome made;
  made.notes = corpora.notes;
  if (const std::vector<int64_t> lengths = lengths_of(results); !lengths.empty()) {
    made.findings = findings(lengths.back());
    if (plan.scale == Scale::smoke)
      for (Finding& finding : made.findings) finding.agrees.reset();  // thirty steps are no evidence
  }
  add_sections(made, results, sector_context(plan));
  return made;
}

}  // namespace sextant::study
