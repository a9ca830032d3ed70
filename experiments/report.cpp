#include "experiments/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "experiments/progress.h"

namespace sextant {

using nlohmann::json;

namespace {

constexpr size_t most_points = 300;  // of a loss curve: more than a screen shows

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// The value under a path of keys, null when there is none: reports are also made of folders that something is missing
// from.
json at(const json& object, std::initializer_list<const char*> keys) {
  const json* here = &object;
  for (const char* key : keys) {
    if (!here->is_object() || !here->contains(key)) return nullptr;
    here = &here->at(key);
  }
  return *here;
}

double number(const json& value) {
  return value.is_number() ? value.get<double>() : 0;
}
std::string short_number(const json& value, const char* format = "{:.4f}") {
  return value.is_number() ? fmt::format(fmt::runtime(format), value.get<double>()) : "";
}

const json& evaluated_lengths(const RunFolder& run) {
  static const json none = json::array();
  return run.evaluation.is_object() && run.evaluation.contains("lengths") && run.evaluation.at("lengths").is_array()
             ? run.evaluation.at("lengths")
             : none;
}

// The sectors' masses and what leaving them out costs, of the runs whose strategy has sectors.
void add_sectors(Page& page, const std::vector<RunFolder>& runs) {
  const std::vector<std::string> labels = run_labels(runs);
  Table table{{"run", "term", "sector", "order", "mass", "share", "energy", "cancellation", "left out: nats/token"},
              {}};
  for (size_t r = 0; r < runs.size(); ++r)
    for (const json& row : at(runs[r].evaluation, {"sectors"}))
      table.rows.push_back(
          {labels[r], plain_text(at(row, {"term"})), plain_text(at(row, {"sector"})), plain_text(at(row, {"order"})),
           short_number(at(row, {"mass"}), "{:.4g}"), short_number(at(row, {"mass_share"}), "{:.3f}"),
           short_number(at(row, {"energy"}), "{:.4g}"), short_number(at(row, {"cancellation"}), "{:.4g}"),
           short_number(at(row, {"leave_one_out_nats_per_token"}), "{:.5f}")});
  if (table.rows.empty()) return;
  page.heading("Sectors of the lag bias");
  page.table(table, "sectors");
}

bool any_evaluation(const std::vector<RunFolder>& runs) {
  return std::ranges::any_of(runs, [](const RunFolder& run) { return !evaluated_lengths(run).empty(); });
}

}  // namespace

void add_configuration(Page& page, const std::vector<RunFolder>& runs) {
  page.heading("Configuration");
  const std::vector<std::string> differing = differing_options(runs);
  const std::vector<std::string> labels = run_labels(runs);
  Table shared{{"setting", "value"}, {}, true};
  for (const auto& [key, value] : runs.front().options().items())
    if (std::ranges::count(differing, key) == 0) shared.rows.push_back({key, plain_text(value)});
  const json& manifest = runs.front().manifest;
  if (std::ranges::count(differing, "data") == 0)
    for (const char* key : {"name", "sha256", "vocabulary", "split_rule"})
      shared.rows.push_back({std::string("data ") + key, plain_text(at(manifest, {"data", key}))});
  page.table(shared);
  if (runs.size() == 1) {
    page.paragraph(fmt::format("{} parameters.", plain_text(at(manifest, {"parameters"}))));
    return;
  }
  page.paragraph(fmt::format("Where the {} runs differ:", runs.size()));
  Table table{{"run"}, {}};
  table.header.insert(table.header.end(), differing.begin(), differing.end());
  table.header.push_back("parameters");
  for (size_t r = 0; r < runs.size(); ++r) {
    std::vector<std::string> row = {runs[r].path};
    for (const std::string& key : differing) row.push_back(plain_text(runs[r].options().value(key, json())));
    row.push_back(plain_text(at(runs[r].manifest, {"parameters"})));
    table.rows.push_back(row);
  }
  page.table(table);
}

void add_training_loss(Page& page, const std::vector<RunFolder>& runs) {
  page.heading("Training");
  const std::vector<std::string> labels = run_labels(runs);
  Plot plot{.title = "Training loss", .x_label = "tokens (millions)", .y_label = "nats per token", .series = {}};
  for (size_t r = 0; r < runs.size(); ++r) {
    Series series{.label = labels[r], .x = {}, .y = runs[r].metrics.loss, .look = static_cast<int>(r)};
    for (const double tokens : runs[r].metrics.tokens) series.x.push_back(tokens / 1e6);
    if (!series.x.empty()) plot.series.push_back(thinned(series, most_points));
    const Metrics& metrics = runs[r].metrics;
    if (runs[r].validation_step.empty() || metrics.step.empty()) continue;
    Series held_out{.label = labels[r] + ", held out",
                    .x = {},
                    .y = runs[r].validation_loss,
                    .points = true,
                    .look = static_cast<int>(r)};
    for (const double step : runs[r].validation_step)
      held_out.x.push_back(step * metrics.tokens[0] / metrics.step[0] / 1e6);
    plot.series.push_back(held_out);
  }
  page.plot(plot, "training-loss");
}

void add_loss_by_length(Page& page, const std::vector<RunFolder>& runs) {
  page.heading("Loss by context length");
  if (!any_evaluation(runs)) return page.paragraph("Not evaluated yet: no eval.json.");
  const std::vector<std::string> labels = run_labels(runs);
  Plot plot{.title = "Held-out loss by context length",
            .x_label = "context length (tokens)",
            .y_label = "nats per token",
            .series = {},
            .log_x = true};
  std::set<double> training_lengths;
  Table table{{"run", "length", "nats/token", "standard error", "bits/token", "perplexity", "ratio", "last quarter",
               "peak memory"},
              {}};
  for (size_t r = 0; r < runs.size(); ++r) {
    Series series{.label = labels[r], .x = {}, .y = {}, .spread = {}, .points = true};
    for (const json& row : evaluated_lengths(runs[r])) {
      series.x.push_back(number(at(row, {"length"})));
      series.y.push_back(number(at(row, {"nats_per_token"})));
      series.spread.push_back(number(at(row, {"standard_error"})));
      table.rows.push_back({labels[r], plain_text(at(row, {"length"})), short_number(at(row, {"nats_per_token"})),
                            short_number(at(row, {"standard_error"})), short_number(at(row, {"bits_per_token"})),
                            short_number(at(row, {"perplexity"}), "{:.5g}"),
                            short_number(at(row, {"ratio_to_training_length"}), "{:.5g}"),
                            short_number(at(row, {"last_quarter_nats_per_token"})),
                            bytes_text(number(at(row, {"peak_bytes"})))});
    }
    if (!series.x.empty()) plot.series.push_back(series);
    training_lengths.insert(number(at(runs[r].evaluation, {"training_length"})));
  }
  if (training_lengths.size() == 1) {
    plot.mark_x = *training_lengths.begin();
    plot.mark_label = fmt::format("trained at {}", *training_lengths.begin());
  }
  const json& first = runs.front().evaluation;
  page.plot(plot, "loss-by-length");
  page.paragraph(fmt::format(
      "Data: {} ({} split, {} windows a length). The ratio is the perplexity over the perplexity at the training "
      "length.",
      plain_text(at(first, {"data"})), plain_text(at(first, {"split"})), plain_text(at(first, {"windows"}))));
  page.table(table, "loss-by-length-table");
  add_sectors(page, runs);
}

void add_throughput(Page& page, const std::vector<RunFolder>& runs) {
  page.heading("Throughput");
  const std::vector<std::string> labels = run_labels(runs);
  Plot plot{.title = "Training throughput", .x_label = "step", .y_label = "tokens per second", .series = {}};
  Table table{{"run", "steps", "tokens", "time in steps", "median tokens/s", "threads", "instruction set"}, {}};
  for (size_t r = 0; r < runs.size(); ++r) {
    const Metrics& metrics = runs[r].metrics;
    if (metrics.step.empty()) continue;
    plot.series.push_back(
        thinned({.label = labels[r], .x = metrics.step, .y = metrics.tokens_per_second}, most_points));
    const json environment = at(runs[r].manifest, {"environment"});
    table.rows.push_back({labels[r], fmt::format("{}", metrics.step.back()), count_text(metrics.tokens.back()),
                          duration_text(metrics.seconds.back()),
                          fmt::format("{:.0f}", median(metrics.tokens_per_second)),
                          plain_text(at(environment, {"threads"})), plain_text(at(environment, {"isa"}))});
  }
  page.plot(plot, "throughput");
  page.table(table);
}

void add_reproduction(Page& page, const std::vector<RunFolder>& runs) {
  page.heading("How to reproduce");
  std::string commands;
  for (const RunFolder& run : runs) commands += plain_text(at(run.manifest, {"command"})) + "\n";
  page.code(commands);
  const json environment = at(runs.front().manifest, {"environment"});
  page.paragraph(
      fmt::format("Made with sextant {} ({}, {}) on {}, {}; products: {}, BLAS: {} ({}). The same command gives the "
                  "same bits on the same machine for any "
                  "number of threads.",
                  plain_text(at(environment, {"version"})), plain_text(at(environment, {"build_type"})),
                  plain_text(at(environment, {"compiler"})), plain_text(at(environment, {"cpu"})),
                  plain_text(at(environment, {"operating_system"})), plain_text(at(environment, {"products"})),
                  plain_text(at(environment, {"blas", "version"})), plain_text(at(environment, {"blas", "kernel"}))));
  size_t resumed = 0;
  for (const RunFolder& run : runs) resumed += at(run.manifest, {"resumed"}).size();
  if (resumed > 0)
    page.paragraph(fmt::format(
        "Interrupted and resumed {} times in all (manifest.json says where), which changes no bit of the result.",
        resumed));
}

std::vector<std::string> write_report(const std::vector<RunFolder>& runs, const std::string& path,
                                      const std::string& title) {
  Page page(path, title);
  if (any_evaluation(runs)) {
    const auto best = std::ranges::min_element(runs, {}, [](const RunFolder& run) {
      const json& lengths = evaluated_lengths(run);
      return lengths.empty() ? 1e300 : number(at(lengths.front(), {"nats_per_token"}));
    });
    const json& row = evaluated_lengths(*best).front();
    page.paragraph(fmt::format("{}{}: {} nats per token ({} bits) on held-out {} at {} tokens of context.",
                               runs.size() > 1 ? "Best of these runs: " : "",
                               plain_text(best->options().value("position", json())),
                               short_number(at(row, {"nats_per_token"})), short_number(at(row, {"bits_per_token"})),
                               plain_text(at(best->evaluation, {"data"})), plain_text(at(row, {"length"}))));
  }
  add_loss_by_length(page, runs);
  add_training_loss(page, runs);
  add_throughput(page, runs);
  add_configuration(page, runs);
  add_reproduction(page, runs);
  return page.write();
}

}  // namespace sextant
