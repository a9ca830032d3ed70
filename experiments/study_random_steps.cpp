#include "experiments/study_random_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "experiments/study_transport_measure.h"
#include "positional/mechanism.h"

namespace sextant::study {

namespace {

using nlohmann::json;

struct Steps {
  const char *name, *label;
  std::function<mechanism::Step(const Random& random, int64_t dim)> make;
  std::function<double(int64_t dim)> gap;  // 1 - ||E M||
};

Steps gaussian(const char* name, const char* label, double deviation) {
  return {name, label,
          [=](const Random& random, int64_t) { return mechanism::gaussian_rotation_steps(random, deviation); },
          [=](int64_t) { return 1 - std::exp(-deviation * deviation / 2); }};
}

std::vector<double> rope_angles(int64_t dim) {
  std::vector<double> angles;
  for (int64_t pair = 0; pair < dim / 2; ++pair)
    angles.push_back(std::pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(dim)));
  return angles;
}

std::vector<Steps> kinds() {
  return {
      gaussian("rotation-0.1", "random angles, std 0.1", 0.1),
      gaussian("rotation-0.25", "random angles, std 0.25", 0.25),
      gaussian("rotation-0.5", "random angles, std 0.5", 0.5),
      // E M = (1 - 2/D) I
      {"householder", "random reflections",
       [](const Random& random, int64_t) { return mechanism::uniform_reflection_steps(random); },
       [](int64_t dim) { return 2 / static_cast<double>(dim); }},
      {"haar", "Haar matrices", [](const Random& random, int64_t dim) { return mechanism::haar_steps(random, dim); },
       [](int64_t) { return 1.0; }},
      {"rope", "rope's fixed angles",
       [](const Random&, int64_t dim) { return mechanism::fixed_rotation_steps(rope_angles(dim)); },
       [](int64_t) { return 0.0; }}};
}

// C_t^T p for a probe p = (1, .., 1), as features: <q~_i, k~_j> = p^T C_i C_j^T p = p^T M_i .. M_{j+1} p. Row d of the
// transposed product is carried as a vector of its own.
Tensor features_of(Arena& arena, const mechanism::Step& step, int64_t tokens, int64_t dim) {
  const Tensor features = empty(arena, {tokens, dim}, DType::f64);
  std::vector<std::vector<double>> columns(static_cast<size_t>(dim), std::vector<double>(static_cast<size_t>(dim)));
  for (size_t c = 0; c < columns.size(); ++c) columns[c][c] = 1;
  for (int64_t t = 0; t < tokens; ++t) {
    const mechanism::Map map = step(t);
    for (size_t c = 0; c < columns.size(); ++c) {
      if (t > 0) map(columns[c]);
      features.set_flat(t * dim + static_cast<int64_t>(c), std::accumulate(columns[c].begin(), columns[c].end(), 0.0));
    }
  }
  return features;
}

json measure(const Steps& kind, int64_t dim, const std::vector<int64_t>& contexts, int64_t tokens, uint64_t seed,
             Progress& progress) {
  const std::vector<int64_t> lengths = route_lengths(contexts.back() / 2);
  const auto step = [&](const std::string& draw) {
    return kind.make(Random(seed, fmt::format("steps/{}/{}", kind.name, draw)), dim);
  };
  json curves = json::array();
  for (const int64_t context : contexts) {
    std::vector<int64_t> within;
    std::ranges::copy_if(lengths, std::back_inserter(within), [&](int64_t length) { return length <= context / 2; });
    std::vector<double> mean(within.size(), 0.0), square(within.size(), 0.0);
    const int64_t draws = std::max<int64_t>(1, tokens / context);
    for (int64_t draw = 0; draw < draws; ++draw) {
      Arena arena;
      const Tensor features = features_of(arena, step(fmt::format("{}/{}", context, draw)), context, dim);
      const auto curve = mechanism::decoherence_of_features(features, features, static_cast<double>(dim), within);
      for (size_t n = 0; n < within.size(); ++n) {
        const double weight = 1 / static_cast<double>(draws);
        mean[n] += weight * curve.mean[n];
        square[n] += weight * (curve.mean[n] * curve.mean[n] + curve.deviation[n] * curve.deviation[n]);
      }
    }
    for (size_t n = 0; n < within.size(); ++n) square[n] = std::sqrt(std::max(0.0, square[n] - mean[n] * mean[n]));
    curves.push_back({{"context", context}, {"mean", mean}, {"deviation", square}});
    progress.update(context, contexts.back(), kind.label);
  }
  return {{"dim", dim},
          {"gap", mechanism::spectral_gap(step("gap"), std::min<int64_t>(tokens, 20000), dim)},
          {"closed_form", kind.gap(dim)},
          {"lengths", lengths},
          {"contexts", curves}};
}

const json* result_of(const Results& results, const Steps& kind) {
  const auto found = results.find(std::string("steps/") + kind.name);
  return found == results.end() ? nullptr : &found->second;
}

int64_t window_at(const json& result, const json& context) {
  return mixing_window_of(result.at("lengths"), context.at("mean"));
}

Finding independent_of_context(const Results& results) {
  Finding finding{"the mixing window is finite and does not depend on the context length",
                  "",
                  "for each kind of random steps the windows (mean score at most 0.1 from there on), at all context "
                  "lengths of at least four predicted windows, are within 25 % or 2 tokens of the prediction "
                  "log 0.1 / log(1 - gap)",
                  {}};
  bool all = true;
  int64_t count = 0;
  for (const Steps& kind : kinds()) {
    const json* result = result_of(results, kind);
    if (result == nullptr || kind.gap(16) == 0) continue;
    const double predicted = predicted_window(kind.gap(result->at("dim")));
    std::string windows;
    for (const json& context : result->at("contexts")) {
      if (context.at("context").get<double>() < 4 * predicted) continue;
      const int64_t window = window_at(*result, context);
      windows += fmt::format("{}{}", windows.empty() ? "" : ", ", window);
      all = all && window >= 0 && std::fabs(static_cast<double>(window) - predicted) <= std::max(2.0, 0.25 * predicted);
    }
    finding.here +=
        fmt::format("{}{}: {} (predicted {:.3g})", finding.here.empty() ? "" : "; ", kind.label, windows, predicted);
    ++count;
  }
  if (count == 5) finding.agrees = all;
  return finding;
}

Finding follows_the_gap(const Results& results) {
  Finding finding{"accumulated products decorrelate at the rate of the spectral gap",
                  "",
                  "at the longest context the mean score differs from (1 - gap)^n, with the gap in closed form, by at "
                  "most 0.05 at every route length",
                  {}};
  double worst = 0;
  int64_t count = 0;
  for (const Steps& kind : kinds()) {
    const json* result = result_of(results, kind);
    if (result == nullptr || kind.gap(16) == 0) continue;
    const json& mean = result->at("contexts").back().at("mean");
    for (size_t n = 0; n < mean.size(); ++n)
      worst = std::max(worst, std::fabs(mean[n].get<double>() - std::pow(1 - kind.gap(result->at("dim")),
                                                                         result->at("lengths")[n].get<double>())));
    ++count;
  }
  finding.here = fmt::format("largest difference of {} kinds: {:.3f}", count, worst);
  if (count == 5) finding.agrees = worst <= 0.05;
  return finding;
}

Finding concentrates(const Results& results) {
  Finding finding{"scores of far sources concentrate around 0 in high dimension (Levy, Hoeffding)",
                  "",
                  "beyond four predicted windows the deviation of single scores is within 10 % of 1 / sqrt(D), for "
                  "each kind of random steps",
                  {}};
  bool all = true;
  int64_t count = 0;
  for (const Steps& kind : kinds()) {
    const json* result = result_of(results, kind);
    if (result == nullptr || kind.gap(16) == 0) continue;
    const double dim = result->at("dim"), far = 4 * predicted_window(kind.gap(result->at("dim")));
    const json& deviation = result->at("contexts").back().at("deviation");
    std::vector<double> values;
    for (size_t n = 0; n < deviation.size(); ++n)
      if (result->at("lengths")[n].get<double>() > far) values.push_back(deviation[n]);
    if (values.empty()) continue;
    const double mean = sample_of(values).mean;
    all = all && std::fabs(mean * std::sqrt(dim) - 1) < 0.1;
    finding.here += fmt::format("{}{} {:.3f} (1 / sqrt(D) = {:.3f})", finding.here.empty() ? "" : "; ", kind.label,
                                mean, 1 / std::sqrt(dim));
    ++count;
  }
  if (count == 5) finding.agrees = all;
  return finding;
}

Section curves(const Results& results) {
  Section section{.name = "random-steps", .title = "Mean score of random steps by route length", .text = {}};
  section.text =
      "The same vector as query and key at every position, longest context; marks: measured, lines: (1 - gap)^n with "
      "the gap in closed form. rope's angles are the same at every step: no gap, no decay that would not come back.";
  Plot plot = score_plot("Decoherence of random steps");
  int look = 0;
  for (const Steps& kind : kinds()) {
    const json* result = result_of(results, kind);
    if (result == nullptr) continue;
    const double gap = kind.gap(result->at("dim"));
    Series measured{.label = kind.label, .x = {}, .y = {}, .points = true, .look = look},
        predicted{
            .label = std::string(kind.label) + ", (1 - gap)^n", .x = {}, .y = {}, .in_legend = false, .look = look};
    ++look;
    const json& mean = result->at("contexts").back().at("mean");
    for (size_t n = 1; n < mean.size(); ++n) {
      const double length = result->at("lengths")[n];
      measured.x.push_back(length);
      measured.y.push_back(mean[n]);
      predicted.x.push_back(length);
      predicted.y.push_back(std::pow(1 - gap, length));
    }
    plot.series.push_back(measured);
    if (gap > 0 && gap < 1) plot.series.push_back(predicted);
  }
  section.plot = plot;
  return section;
}

Section windows(const Results& results) {
  Section section{.name = "random-windows", .title = "Mixing window by context length, random steps", .text = {}};
  section.text =
      "Window: the shortest route from which on the mean score stays at or below 0.1 (marks), and its prediction from "
      "the spectral gap, log 0.1 / log(1 - gap) (lines). Each context length is measured on as many tokens in all. "
      "Route lengths go by steps of 9 %. A dash: no such route within half the context.";
  section.table =
      Table{{"steps", "dimension", "gap, measured", "gap, closed form", "context", "window", "predicted"}, {}};
  Plot plot = window_plot("Mixing window of random steps");
  int look = 0;
  for (const Steps& kind : kinds()) {
    const json* result = result_of(results, kind);
    if (result == nullptr) continue;
    const double predicted = predicted_window(kind.gap(result->at("dim")));
    std::vector<double> contexts;
    std::vector<int64_t> found;
    for (const json& context : result->at("contexts")) {
      const int64_t window = window_at(*result, context);
      section.table->rows.push_back({kind.label, result->at("dim").dump(), number_text(result->at("gap")),
                                     number_text(result->at("closed_form")), context.at("context").dump(),
                                     window < 0 ? "-" : fmt::format("{}", window),
                                     std::isfinite(predicted) ? number_text(predicted, 3) : "none"});
      contexts.push_back(context.at("context"));
      found.push_back(std::isfinite(predicted) ? window : -1);
    }
    add_windows(plot, kind.label, contexts, found, predicted, look++);
  }
  section.plot = plot;
  return section;
}

}  // namespace

std::vector<Piece> random_step_pieces(const Plan& plan) {
  const int64_t dim = plan.choose<int64_t>(16, 16, 64), tokens = plan.choose<int64_t>(8192, 262144, 262144);
  const std::vector<int64_t> contexts =
      plan.scale == Scale::smoke ? std::vector<int64_t>{512, 2048} : std::vector<int64_t>{512, 2048, 8192, 65536};
  std::vector<Piece> pieces;
  for (const Steps& kind : kinds())
    pieces.push_back(
        {std::string("steps/") + kind.name,
         {{"steps", kind.name}, {"dim", dim}, {"contexts", contexts}, {"tokens", tokens}, {"seed", plan.seed}},
         0.1,
         [=, seed = plan.seed](const Workplace& place) {
           return measure(kind, dim, contexts, tokens, seed, *place.progress);
         }});
  return pieces;
}

int64_t mixing_window_of(const json& lengths, const json& mean) {
  mechanism::Decoherence curve;
  for (size_t n = 0; n < mean.size(); ++n) {
    curve.lengths.push_back(lengths[n]);
    curve.mean.push_back(mean[n]);
  }
  return mechanism::mixing_window(curve, mixed);
}

double predicted_window(double gap) {
  if (gap <= 0) return std::numeric_limits<double>::infinity();
  return gap >= 1 ? 1.0 : std::max(1.0, std::log(mixed) / std::log1p(-gap));
}

Plot score_plot(const std::string& title) {
  return {.title = title,
          .x_label = "route length n (tokens)",
          .y_label = "mean normalised score",
          .series = {},
          .log_x = true};
}

Plot window_plot(const std::string& title) {
  return {.title = title,
          .x_label = "context length (tokens)",
          .y_label = "mixing window (tokens)",
          .series = {},
          .log_x = true,
          .log_y = true};
}

void add_windows(Plot& plot, const std::string& label, const std::vector<double>& contexts,
                 const std::vector<int64_t>& windows, double predicted, int look) {
  Series measured{.label = label, .x = {}, .y = {}, .points = true, .look = look},
      line{.label = label + ", predicted", .x = {}, .y = {}, .in_legend = false, .look = look};
  for (size_t c = 0; c < contexts.size(); ++c) {
    if (windows[c] >= 0) {
      measured.x.push_back(contexts[c]);
      measured.y.push_back(static_cast<double>(windows[c]));
    }
    if (std::isfinite(predicted)) {
      line.x.push_back(contexts[c]);
      line.y.push_back(std::max(predicted, 1.0));  // the axis is logarithmic
    }
  }
  if (!measured.x.empty()) plot.series.push_back(measured);
  if (!line.x.empty()) plot.series.push_back(line);
}

void add_random_step_sections(Outcome& made, const Results& results) {
  if (std::ranges::none_of(results, [](const auto& each) { return each.first.starts_with("steps/"); })) return;
  made.findings.push_back(independent_of_context(results));
  made.findings.push_back(follows_the_gap(results));
  made.findings.push_back(concentrates(results));
  made.sections.push_back(windows(results));
  made.sections.push_back(curves(results));
}

}  // namespace sextant::study
