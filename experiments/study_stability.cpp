// stability: what a transform costs at long range, and what bounding it loses.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "experiments/study.h"
#include "experiments/study_anchoring.h"
#include "positional/diagnostics.h"

namespace sextant::study {

namespace {

using nlohmann::json;

constexpr int64_t head_dim = 16, context = 256;

struct Variant {
  const char *name, *spec;
};
constexpr Variant variants[] = {{"rope", "rope"},
                                {"jordan-exact", "jordan(order=2,mode=exact)"},
                                {"jordan-scaled", "jordan(order=2,mode=scaled)"},
                                {"jordan-stabilized", "jordan(order=2,mode=stabilized)"},
                                {"jordan-anchored", "jordan(order=2,mode=exact,anchored=1)"},
                                {"light-cone", "pj-rotary(order=2,chart=lc,affine=0)"},
                                {"light-cone+affine", "pj-rotary(order=2,chart=lc,affine=1)"}};

// The last position of each length: 255, 511, ... up to the longest.
std::vector<int64_t> positions(const Plan& plan) {
  std::vector<int64_t> all;
  for (int64_t length = context; length <= plan.choose<int64_t>(4096, 32768, 32768); length *= 2)
    all.push_back(length - 1);
  return all;
}

// Norms of unit queries and keys as they are cached; and the largest entry of the response matrix q -> k, over sqrt(D).
json scales(const std::string& spec, const std::vector<int64_t>& at, uint64_t seed) {
  PositionSettings settings;
  settings.head_dim = settings.width = head_dim;
  settings.context = context;
  PositionStand stand(spec, settings);
  std::vector<int64_t> coordinates(head_dim);
  std::iota(coordinates.begin(), coordinates.end(), 0);
  const std::vector<int> heads = {0};
  const auto responses = transform_responses(stand, at, at.back(), heads, coordinates, seed);
  json rows = json::array();
  const auto norms = stability(stand, at, seed);
  for (size_t i = 0; i < norms.size(); ++i) {
    double logit = 0;
    for (const Response& response : responses) logit = std::max(logit, std::fabs(response.values[i]));
    rows.push_back({{"length", norms[i].position + 1},
                    {"largest_query", norms[i].largest_query},
                    {"mean_query", norms[i].mean_query},
                    {"largest_key", norms[i].largest_key},
                    {"mean_key", norms[i].mean_key},
                    {"largest_logit", logit / std::sqrt(static_cast<double>(head_dim))},
                    {"cached_key_bytes", norms[i].key_bytes}});
  }
  return rows;
}

// Windows of 64 lags that end at each length: the phase that the slowest and the middle frequency turn by, and how
// often the features of a lag are told from those of its neighbours within 4.
json resolution(const std::vector<int64_t>& at, int64_t trials, uint64_t seed) {
  const int64_t frequencies = head_dim / 2, width = 64, delta = 4;
  json rows = json::array();
  for (const int64_t last : at) {
    std::vector<int64_t> lags(width);
    std::iota(lags.begin(), lags.end(), last + 1 - width);
    const PhaseSpan span = phase_span(0.1, context, lags.front(), lags.back());
    for (const double noise : {0.01, 0.03, 0.1}) {
      json row = {{"length", last + 1},
                  {"noise", noise},
                  {"trials", trials},
                  {"span_raw", span.raw},
                  {"span_light_cone", span.light_cone}};
      for (const bool light_cone : {false, true})
        row[light_cone ? "hits_light_cone" : "hits_raw"] =
            retrieval_accuracy(phase_features(lags, frequencies, context, light_cone), delta, noise, trials, seed);
      rows.push_back(row);
    }
  }
  return rows;
}

std::vector<Piece> pieces(const Plan& plan) {
  const std::vector<int64_t> at = positions(plan);
  std::vector<Piece> all;
  for (const Variant& variant : variants)
    all.push_back({variant.name,
                   {{"spec", variant.spec}, {"positions", at}, {"head_dim", head_dim}, {"seed", plan.seed}},
                   1,
                   [=, seed = plan.seed](const Workplace&) { return scales(variant.spec, at, seed); }});
  const int64_t trials = plan.choose<int64_t>(500, 4000, 20000);
  all.push_back({"resolution",
                 {{"positions", at}, {"trials", trials}, {"seed", plan.seed}},
                 1,
                 [=, seed = plan.seed](const Workplace&) { return resolution(at, trials, seed); }});
  const std::vector<int64_t> lengths =
      plan.scale == Scale::smoke ? std::vector<int64_t>{2048, 4096} : std::vector<int64_t>{4096, 32768, 65536};
  all.push_back({"anchoring", {{"lengths", lengths}, {"seed", plan.seed}}, 4, [=, seed = plan.seed](const Workplace&) {
                   return measure_anchoring(lengths, seed);
                 }});
  return all;
}

double growth(const json& rows, const char* what) {
  return rows.back().at(what).get<double>() / rows.front().at(what).get<double>();
}

// How many times as large the three scales are at the longest length; nothing without that variant.
struct Growth {
  double query, key, logit;
  std::string text() const {
    return fmt::format("queries {:.3g}, keys {:.3g}, logits {:.3g} times as large", query, key, logit);
  }
};
std::optional<Growth> growth_of(const Results& results, const char* variant) {
  const auto rows = results.find(variant);
  if (rows == results.end()) return {};
  return Growth{growth(rows->second, "largest_query"), growth(rows->second, "largest_key"),
                growth(rows->second, "largest_logit")};
}

// The claim is about the chart. The affine block beside it is linear in the lag by definition, bounded by nothing.
Finding bounded_scales(const Results& results) {
  Finding finding{
      "the light cone bounds the scales at 32,768",
      "",
      "the largest query, key and logit of the chart alone grow less than twofold from 256 tokens to the longest",
      {}};
  const auto cone = growth_of(results, "light-cone");
  if (!cone) return finding;
  finding.here =
      fmt::format("from 256 tokens to {}: {}", results.at("light-cone").back().at("length").dump(), cone->text());
  if (const auto with_affine = growth_of(results, "light-cone+affine"))
    finding.here += fmt::format("; with the affine block: {}", with_affine->text());
  if (const auto raw = growth_of(results, "jordan-scaled"))
    finding.here += fmt::format("; scaled Jordan: {}", raw->text());
  finding.agrees = std::max({cone->query, cone->key, cone->logit}) < 2;
  return finding;
}

Finding lost_span(const json& rows) {
  const json& far = rows.back();
  const double ratio = far.at("span_light_cone").get<double>() / far.at("span_raw").get<double>();
  return {"the light cone loses far-range phase span",
          fmt::format("over 63 lags at {} a frequency of 0.1 turns by {:.3g} rad raw and {:.3g} rad in the chart",
                      far.at("length").get<int64_t>(), far.at("span_raw").get<double>(),
                      far.at("span_light_cone").get<double>()),
          "less than half of the raw span is left in the farthest window", ratio < 0.5};
}

Finding lost_retrieval(const json& rows) {
  const json& far = rows[rows.size() - 2];  // the middle noise
  const double raw = far.at("hits_raw"), cone = far.at("hits_light_cone"), trials = far.at("trials");
  const double error = std::sqrt((raw * (1 - raw) + cone * (1 - cone)) / trials);
  return {"the light cone loses retrieval resolution",
          fmt::format("hits among hard negatives at {}, noise {}: {:.3f} raw, {:.3f} in the chart",
                      far.at("length").get<int64_t>(), far.at("noise").get<double>(), raw, cone),
          "raw hits exceed the chart's by more than three standard errors, at the middle noise, farthest window",
          raw - cone > 3 * error};
}

Finding anchored_keys(const Results& results) {
  Finding finding{"(not in the paper) anchoring keeps cached keys bounded where the exact chain's grow",
                  "",
                  "from 256 tokens to the longest, the anchored keys grow less than twofold and the plain ones more",
                  {}};
  const auto plain = growth_of(results, "jordan-exact"), anchored = growth_of(results, "jordan-anchored");
  if (!plain || !anchored) return finding;
  finding.here = fmt::format(
      "largest key: anchored {:.3g}, plain {:.3g} times as large; the logits of both are the group's and grow {:.3g} "
      "times",
      anchored->key, plain->key, plain->logit);
  finding.agrees = anchored->key < 2 && plain->key > 2;
  return finding;
}

Section scales_section(const Results& results, const char* what, const char* title, const char* label) {
  Section section{.name = what, .title = title, .text = {}};
  Plot plot{.title = title,
            .x_label = "context length (tokens)",
            .y_label = label,
            .series = {},
            .log_x = true,
            .log_y = true};
  for (const Variant& variant : variants) {
    const auto rows = results.find(variant.name);
    if (rows == results.end()) continue;
    Series series{.label = variant.name, .x = {}, .y = {}, .points = true};
    for (const json& row : rows->second) {
      series.x.push_back(row.at("length"));
      series.y.push_back(row.at(what));
    }
    plot.series.push_back(series);
  }
  section.plot = plot;
  return section;
}

Section scales_table(const Results& results) {
  Section section{.name = "scales", .title = "Scales by length", .text = {}};
  section.text =
      "Norms of unit queries and keys as they are cached, over the last 64 positions of each length; the "
      "logit is the largest entry of the response of unit queries to unit keys at that lag, over sqrt(D).";
  section.table = Table{
      {"variant", "length", "largest query", "mean query", "largest key", "mean key", "largest logit", "cached keys"},
      {}};
  for (const Variant& variant : variants) {
    const auto rows = results.find(variant.name);
    if (rows == results.end()) continue;
    for (const json& row : rows->second)
      section.table->rows.push_back({variant.name, row.at("length").dump(), number_text(row.at("largest_query")),
                                     number_text(row.at("mean_query")), number_text(row.at("largest_key")),
                                     number_text(row.at("mean_key")), number_text(row.at("largest_logit")),
                                     bytes_text(row.at("cached_key_bytes"))});
  }
  return section;
}

const char* shown(const std::string& kind) {
  return kind == "raw" ? "raw" : "light cone";
}

Section resolution_table(const json& rows) {
  Section section{.name = "resolution", .title = "Resolution at long range", .text = {}};
  section.text =
      "Windows of 64 lags that end at each length. Span: radians that a frequency of 0.1 turns by. Hits: how "
      "often the features of a lag, with noise, are told from those of the 8 lags around it (a guess: 0.11; noise "
      "above the whole span throws the nearest to the ends of the range, and hits fall below that).";
  section.table = Table{{"length", "noise", "span raw", "span light cone", "hits raw", "hits light cone"}, {}};
  Plot plot{
      .title = "Hard-negative retrieval", .x_label = "lag", .y_label = "share of hits", .series = {}, .log_x = true};
  for (const char* kind : {"raw", "light_cone"}) {
    Series series{.label = fmt::format("{}, noise 0.03", shown(kind)), .x = {}, .y = {}, .points = true};
    for (const json& row : rows) {
      if (row.at("noise") != 0.03) continue;
      series.x.push_back(row.at("length"));
      series.y.push_back(row.at(std::string("hits_") + kind));
    }
    plot.series.push_back(series);
  }
  for (const json& row : rows)
    section.table->rows.push_back({row.at("length").dump(), row.at("noise").dump(), number_text(row.at("span_raw")),
                                   number_text(row.at("span_light_cone")), number_text(row.at("hits_raw")),
                                   number_text(row.at("hits_light_cone"))});
  section.plot = plot;
  return section;
}

// What a window's phase span is worth: hits against radians, every length and noise.
Section span_against_retrieval(const json& rows) {
  Plot plot{.title = "Phase span and retrieval",
            .x_label = "phase span of the window (radians)",
            .y_label = "share of hits",
            .series = {}};
  for (const double noise : {0.01, 0.03, 0.1})
    for (const char* kind : {"raw", "light_cone"}) {
      Series series{.label = fmt::format("{}, noise {}", shown(kind), noise), .x = {}, .y = {}, .points = true};
      for (const json& row : rows) {
        if (row.at("noise") != noise) continue;
        series.x.push_back(row.at(std::string("span_") + kind));
        series.y.push_back(row.at(std::string("hits_") + kind));
      }
      plot.series.push_back(series);
    }
  return {.name = "span-retrieval",
          .title = "Phase span against retrieval",
          .text = "Each point is a window of 64 lags that ends at one length.",
          .plot = plot};
}

Outcome outcome(const Plan&, const Results& results) {
  Outcome made;
  made.findings.push_back(bounded_scales(results));
  const auto resolved = results.find("resolution");
  if (resolved != results.end()) {
    made.findings.push_back(lost_span(resolved->second));
    made.findings.push_back(lost_retrieval(resolved->second));
  }
  made.findings.push_back(anchored_keys(results));
  const auto anchoring = results.find("anchoring");
  if (anchoring != results.end()) made.findings.push_back(anchoring_finding(anchoring->second));
  made.sections.push_back(scales_section(results, "largest_key", "Size of cached keys", "largest norm of a unit key"));
  made.sections.push_back(scales_section(results, "largest_logit", "Size of logits", "largest |logit|"));
  made.sections.push_back(scales_table(results));
  if (anchoring != results.end()) made.sections.push_back(anchoring_section(anchoring->second));
  if (resolved != results.end()) {
    made.sections.push_back(resolution_table(resolved->second));
    made.sections.push_back(span_against_retrieval(resolved->second));
  }
  return made;
}

const RegisterStudy registered(
    {.name = "stability",
     .question = "How large do queries, keys and logits become at long range, and what does bounding them lose?",
     .protocol = "Norms, logits and cached keys of RoPE, Jordan chains and the light cone by length, one head of 16 "
                 "dimensions,\ntrained length 256; phase span and retrieval among hard negatives in far windows; "
                 "digits and seconds of "
                 "anchored chains.",
     .source = "PJ-RoPE (arXiv 2606.05345)",
     .paper = "the light cone bounds the scales at 32,768 and loses far-range phase span and retrieval resolution",
     .pieces = pieces,
     .outcome = outcome});

}  // namespace

}  // namespace sextant::study
