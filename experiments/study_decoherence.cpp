// decoherence: how fast scores fade along a route, for random steps and for those that models have learned.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiments/study_random_steps.h"
#include "experiments/study_transport.h"

namespace sextant::study {

namespace {

using nlohmann::json;

// Those whose transport is looked at (that of random-qkv is random-qk's: a constant of the seed); rope as the one that
// does not depend on content.
const std::vector<std::string>& trained_variants() {
  static const std::vector<std::string> names = {"random-qk",   "learned-qk", "learned-qkv",
                                                 "householder", "path",       "rope"};
  return names;
}

const json* routes_of(const json& result) {
  return result.contains("measured") ? &result.at("measured").at("decoherence") : nullptr;
}

// The first seed's, which stands for the variant in the plots.
const json* first_routes(const Results& results, const std::string& variant) {
  for (const json* result : results_of(results, variant))
    if (const json* routes = routes_of(*result)) return routes;
  return nullptr;
}

std::vector<double> gaps_of(const json& routes) {
  std::vector<double> gaps;
  for (const json& layer : routes.at("layers"))
    for (const json& gap : layer.at("gaps")) gaps.push_back(gap);
  return gaps;
}

double median(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

// Mean over layers of one of their curves; empty where they have none.
std::vector<double> over_layers(const json& routes, const char* what) {
  std::vector<double> mean;
  for (const json& layer : routes.at("layers")) {
    const json& curve = layer.at(what);
    mean.resize(curve.size(), 0.0);
    for (size_t n = 0; n < curve.size(); ++n)
      mean[n] += curve[n].get<double>() / static_cast<double>(routes.at("layers").size());
  }
  return mean;
}

std::vector<int64_t> windows_of(const json& routes, const char* what) {
  std::vector<int64_t> windows;
  for (const json& context : routes.at("contexts"))
    windows.push_back(context.at(what).empty() ? -1 : mixing_window_of(routes.at("lengths"), context.at(what)));
  return windows;
}

std::string windows_text(const std::vector<int64_t>& windows) {
  std::string text;
  for (const int64_t window : windows)
    text += (text.empty() ? "" : ", ") + (window < 0 ? std::string("none") : fmt::format("{}", window));
  return text;
}

std::string contexts_text(const json& routes) {
  std::string text;
  for (const json& context : routes.at("contexts")) text += (text.empty() ? "" : ", ") + context.at("context").dump();
  return text;
}

Finding trained_windows(const Results& results) {
  Finding finding{"in trained models, too, the window is finite and independent of the context length",
                  "",
                  "for random, learned and Householder transport the window of the transport itself (one probe vector, "
                  "mean over heads and layers, first seed) exists at the two longest contexts, and the two are within "
                  "a factor of 1.5",
                  {}};
  bool all = true;
  int64_t count = 0;
  for (const std::string variant : {"random-qk", "learned-qk", "learned-qkv", "householder"}) {
    const json* routes = first_routes(results, variant);
    if (routes == nullptr) continue;
    const std::vector<int64_t> windows = windows_of(*routes, "probe");
    const double last = static_cast<double>(windows.back()), before = static_cast<double>(windows[windows.size() - 2]);
    const bool steady = last > 0 && before > 0 && std::max(last / before, before / last) < 1.5;
    finding.here += fmt::format("{}{} {}", finding.here.empty() ? "" : "; ", variant, windows_text(windows));
    if (!steady) finding.here += " (not)";
    all = all && steady;
    ++count;
  }
  if (const json* routes = first_routes(results, "random-qk"))
    finding.here = fmt::format("windows at contexts {}: ", contexts_text(*routes)) + finding.here;
  if (count == 4) finding.agrees = all;
  return finding;
}

// The gap says how fast independent steps decohere; text repeats itself.
Finding real_tokens(const Results& results) {
  Finding finding{"(not in the summary) steps of real text are not independent: what the gap predicts, and what is",
                  "",
                  "no rule: reported, as the largest difference between the probe's mean score and that of independent "
                  "steps with the same means, over all routes, and the windows of both",
                  {}};
  for (const std::string variant : {"random-qk", "learned-qk", "learned-qkv"}) {
    const json* routes = first_routes(results, variant);
    if (routes == nullptr) continue;
    const std::vector<double> probe = over_layers(*routes, "probe"), predicted = over_layers(*routes, "predicted");
    double worst = 0;
    for (size_t n = 0; n < probe.size(); ++n) worst = std::max(worst, std::fabs(probe[n] - predicted[n]));
    finding.here += fmt::format("{}{} {:.3f} (windows {} and {})", finding.here.empty() ? "" : "; ", variant, worst,
                                windows_text({mixing_window_of(routes->at("lengths"), probe)}),
                                windows_text({mixing_window_of(routes->at("lengths"), predicted)}));
  }
  return finding;
}

Finding learned_against_random(const Results& results) {
  Finding finding{"near routes stay close to the identity and far ones decorrelate, also when the steps are learned",
                  "",
                  "in learned-qk and learned-qkv (first seed) the probe's mean score is above 0.5 for routes of 1 to 4 "
                  "tokens and at most 0.1 at the longest route",
                  {}};
  bool all = true;
  int64_t count = 0;
  for (const std::string variant : {"learned-qk", "learned-qkv"}) {
    const json* routes = first_routes(results, variant);
    if (routes == nullptr) continue;
    const std::vector<double> probe = over_layers(*routes, "probe");
    const double near = (probe[1] + probe[2] + probe[3] + probe[4]) / 4, far = probe.back();
    finding.here += fmt::format("{}{} near {:.3f}, at {} tokens {:.3f}", finding.here.empty() ? "" : "; ", variant,
                                near, routes->at("lengths").back().get<int64_t>(), far);
    all = all && near > 0.5 && std::fabs(far) <= mixed;
    ++count;
  }
  if (count == 2) finding.agrees = all;
  return finding;
}

// ---- tables and plots -----------------------------------------------------------------------------------------------

void add_curve(Plot& plot, const json& routes, const std::vector<double>& values, const std::string& label, bool points,
               int look) {
  if (values.empty()) return;
  Series series{.label = label, .x = {}, .y = {}, .points = points, .in_legend = points, .look = look};
  for (size_t n = 1; n < values.size(); ++n) {
    series.x.push_back(routes.at("lengths")[n]);
    series.y.push_back(values[n]);
  }
  plot.series.push_back(series);
}

Section trained_curves(const Results& results, const char* what, const char* name, const char* title,
                       const char* text) {
  Section section{.name = name, .title = title, .text = text};
  Plot plot = score_plot(title);
  int look = 0;
  for (const std::string& variant : trained_variants()) {
    const json* routes = first_routes(results, variant);
    if (routes == nullptr) continue;
    const bool prediction = std::string(what) == "probe";
    add_curve(plot, *routes, over_layers(*routes, what), variant, true, look);
    if (prediction)
      add_curve(plot, *routes, over_layers(*routes, "predicted"), variant + ", independent steps", false, look);
    ++look;
  }
  section.plot = plot;
  return section;
}

Section layers_of(const Results& results, const std::string& variant) {
  const std::string title = fmt::format("{}, layer by layer", variant);
  Section section{.name = "layers-" + variant, .title = title, .text = {}};
  section.text =
      "Marks: the probe's mean score, mean over the heads of a layer; lines: the bound (1 - gap)^n by the gap of each "
      "head, which its slowest pair decides.";
  Plot plot = score_plot(title);
  const json& routes = *first_routes(results, variant);
  for (size_t layer = 0; layer < routes.at("layers").size(); ++layer)
    for (const char* what : {"probe", "bound"})
      add_curve(plot, routes, routes.at("layers")[layer].at(what).get<std::vector<double>>(),
                fmt::format("layer {}{}", layer, what == std::string("bound") ? ", bound" : ""),
                what == std::string("probe"), static_cast<int>(layer));
  section.plot = plot;
  return section;
}

Section trained_window_plot(const Results& results) {
  Section section{.name = "trained-windows", .title = "Mixing window by context length, trained models", .text = {}};
  section.text =
      "Window of the transport itself (one probe vector at all positions; first seed), over the first tokens of the "
      "held-out text; lines: that of independent steps with the same mean rotation of each pair, by the longest text.";
  Plot plot = window_plot("Mixing window of trained models");
  int look = 0;
  for (const std::string& variant : trained_variants()) {
    const json* routes = first_routes(results, variant);
    if (routes == nullptr) continue;
    const std::vector<double> curve = over_layers(*routes, "predicted");
    const int64_t line = curve.empty() ? -1 : mixing_window_of(routes->at("lengths"), curve);
    std::vector<double> contexts;
    for (const json& context : routes->at("contexts")) contexts.push_back(context.at("context"));
    add_windows(plot, variant, contexts, windows_of(*routes, "probe"), line < 0 ? INFINITY : static_cast<double>(line),
                look++);
  }
  section.plot = plot;
  return section;
}

Section trained_table(const Results& results) {
  Section section{.name = "trained", .title = "Spectral gaps and windows of trained models", .text = {}};
  section.text =
      "First seed. Gap of a head: 1 - ||mean step||, over the longest text; for rotations the slowest pair's. Windows "
      "by context length: of the transport (probe), and of the model's own normalised scores, which contain what all "
      "queries and keys have in common and need not go to 0.";
  section.table = Table{{"variant", "least gap", "median gap", "largest gap", "contexts", "windows, transport",
                         "windows, scores", "predicted"},
                        {}};
  for (const std::string& variant : trained_variants()) {
    const json* routes = first_routes(results, variant);
    if (routes == nullptr) continue;
    const std::vector<double> gaps = gaps_of(*routes), predicted = over_layers(*routes, "predicted");
    const auto gap_text = [&](double gap) { return gaps.empty() ? std::string("-") : number_text(gap, 3); };
    section.table->rows.push_back(
        {variant, gap_text(gaps.empty() ? 0 : *std::ranges::min_element(gaps)), gap_text(median(gaps)),
         gap_text(gaps.empty() ? 0 : *std::ranges::max_element(gaps)), contexts_text(*routes),
         windows_text(windows_of(*routes, "probe")), windows_text(windows_of(*routes, "score")),
         predicted.empty() ? "-" : windows_text({mixing_window_of(routes->at("lengths"), predicted)})});
  }
  return section;
}

std::vector<Piece> pieces(const Plan& plan) {
  std::vector<Piece> all = random_step_pieces(plan);
  for (Piece& piece : transport_pieces(plan, trained_variants())) all.push_back(std::move(piece));
  return all;
}

Outcome outcome(const Plan& plan, const Results& results) {
  Outcome made;
  made.notes = transport_notes(plan);
  add_random_step_sections(made, results);
  made.findings.push_back(trained_windows(results));
  made.findings.push_back(learned_against_random(results));
  made.findings.push_back(real_tokens(results));
  const bool trained = std::ranges::any_of(
      trained_variants(), [&](const std::string& variant) { return first_routes(results, variant) != nullptr; });
  if (!trained) return made;
  made.sections.push_back(trained_window_plot(results));
  made.sections.push_back(trained_curves(
      results, "probe", "trained-probe", "Decoherence of trained transport",
      "One probe vector as query and key at every position of held-out text, mean over heads and layers (marks); "
      "lines: independent steps with the same mean rotation of each pair."));
  made.sections.push_back(trained_curves(results, "score", "trained-score", "Scores of trained models by route length",
                                         "The models' own queries and keys: cosine of the transformed query and key, "
                                         "mean over positions, heads and layers."));
  for (const char* variant : {"learned-qk", "learned-qkv"})
    if (first_routes(results, variant) != nullptr) made.sections.push_back(layers_of(results, variant));
  made.sections.push_back(trained_table(results));
  return made;
}

const RegisterStudy registered(
    {.name = "decoherence",
     .question = "How fast do scores fade along a route, and does the window in which they do depend on the context?",
     .protocol = "Random steps (rotations, reflections, Haar) against their spectral gap; then the transport of the "
                 "models of `extrapolation`\non held-out text (--from its folder takes them over).",
     .source = "Why Do Accumulated Transformations Extrapolate? (arXiv 2606.24975)",
     .paper = "the mixing window is finite and independent of the context length",
     .pieces = pieces,
     .outcome = outcome,
     .forecast = transport_forecast});

}  // namespace

}  // namespace sextant::study
