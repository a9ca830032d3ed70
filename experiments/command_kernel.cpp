// sextant kernel: how a position strategy answers by lag, as CSV, JSON or a plot.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/file.h"
#include "experiments/command.h"
#include "experiments/kernel_vectors.h"
#include "experiments/plot.h"
#include "nn/checkpoint.h"
#include "positional/response.h"

namespace sextant {

namespace {

struct Request {
  std::string spec;
  std::unique_ptr<PositionStand> stand;
  std::vector<int64_t> lags;
  int64_t query_position = 0;
  std::vector<int> heads;
};

// "A:B" -> A .. B, all of them, or so many that a plot shows every bend: evenly spaced or, with `logarithmic`, by equal
// ratios.
std::vector<int64_t> parse_lags(const std::string& text, bool logarithmic, int64_t points) {
  const size_t colon = text.find(':');
  require(colon != std::string::npos, "--lags: '{}' must be A:B, the first and the last lag", text);
  const int64_t most = int64_t{1} << 24;
  const int64_t first = parse_integer(text.substr(0, colon), "--lags", 0, most),
                last = parse_integer(text.substr(colon + 1), "--lags", 0, most);
  require(first <= last, "--lags: {} must not be above {}", first, last);
  std::vector<int64_t> lags;
  if (last - first < points && !logarithmic) {
    for (int64_t d = first; d <= last; ++d) lags.push_back(d);
    return lags;
  }
  const double low = static_cast<double>(std::max<int64_t>(1, first)),
               high = static_cast<double>(std::max<int64_t>(1, last));
  if (first == 0) lags.push_back(0);
  for (int64_t n = 0; n < points; ++n) {
    const double share = static_cast<double>(n) / static_cast<double>(std::max<int64_t>(1, points - 1));
    const double lag = logarithmic ? low * std::pow(high / low, share)
                                   : static_cast<double>(first) + share * static_cast<double>(last - first);
    lags.push_back(std::clamp(static_cast<int64_t>(std::llround(lag)), first, last));
  }
  std::ranges::sort(lags);
  lags.erase(std::ranges::unique(lags).begin(), lags.end());
  return lags;
}

// The layer of a trained model, converted to f64.
std::unique_ptr<PositionStand> stand_of_checkpoint(const std::string& path, int64_t layer, std::string& spec) {
  const std::unique_ptr<Transformer> model = load_model(path, DType::f64);
  const ModelConfig& config = model->config();
  require(layer < config.layers, "--layer: {} is not there, the model has layers 0..{}", layer, config.layers - 1);
  spec = config.position;
  PositionSettings settings;
  settings.heads = config.heads;
  settings.head_dim = config.head_dim();
  settings.width = config.width;
  settings.vocabulary = config.vocab;
  settings.context = config.context;
  settings.layer = static_cast<int>(layer);
  settings.seed = config.seed;
  auto stand = std::make_unique<PositionStand>(spec, settings);
  Position &to = stand->position(), &from = model->position(static_cast<int>(layer));
  const std::vector<Parameter*> own = to.parameters(), trained = from.parameters();
  for (size_t i = 0; i < own.size(); ++i) own[i]->value.copy_from(trained[i]->value);
  const std::vector<PositionConstant> constants = to.constants(), stored = from.constants();
  for (size_t i = 0; i < constants.size(); ++i) constants[i].value.copy_from(stored[i].value);
  return stand;
}

// With every key and its value, so that "rope" and "rope(base=10000)" are the same.
std::string canonical(const std::string& spec) {
  std::string text;
  for (const TermSpec& term : parse_spec(spec)) text += "+" + term.text();
  return text;
}

Request read_request(const Arguments& arguments) {
  Request request;
  const std::string& checkpoint = arguments.text("checkpoint");
  require(!checkpoint.empty() || !arguments.positionals().empty(),
          "SPEC is missing: the position strategy, or --checkpoint CKPT");
  request.lags = parse_lags(arguments.text("lags"), arguments.flag("log"), arguments.integer("points", 2, 1 << 20));
  request.query_position = arguments.given("at") ? arguments.integer("at", 0, 1 << 24) : request.lags.back();
  if (!checkpoint.empty()) {
    request.stand =
        stand_of_checkpoint(checkpoint_path(checkpoint), arguments.integer("layer", 0, 1 << 20), request.spec);
    require(arguments.positionals().empty() || canonical(arguments.positional(0)) == canonical(request.spec),
            "the checkpoint's position is '{}', not '{}'; leave SPEC out", request.spec,
            arguments.positionals().empty() ? "" : arguments.positional(0));
  } else {
    request.spec = arguments.positional(0);
    PositionSettings settings;
    settings.heads = arguments.integer("heads", 1, 1024);
    settings.head_dim = arguments.integer("head-dim", 1, 4096);
    settings.width = settings.heads * settings.head_dim;
    settings.context = arguments.integer("context", 1, 1 << 24);
    settings.seed = arguments.seed();
    request.stand = std::make_unique<PositionStand>(request.spec, settings);
  }
  const int64_t heads = request.stand->settings().heads;
  if (arguments.given("head"))
    request.heads.push_back(static_cast<int>(arguments.integer("head", 0, heads - 1)));
  else
    for (int h = 0; h < heads; ++h) request.heads.push_back(h);
  return request;
}

std::vector<Response> responses_of(Request& request, uint64_t seed) {
  // The even coordinates: the first of each pair. The second ones answer alike, a quarter turn later.
  std::vector<int64_t> coordinates;
  for (int64_t d = 0; d < request.stand->settings().head_dim; d += 2) coordinates.push_back(d);
  const auto& specs = request.stand->position().specs();
  const bool transforms = std::ranges::any_of(specs, [](const TermSpec& term) {
    return std::ranges::any_of(strategies(), [&](const StrategyInfo& info) {
      return info.name == term.name() &&
             (info.transform_of ? info.transform_of(term) : info.transform) != StrategyInfo::Transform::none;
    });
  });
  std::vector<Response> all;
  const auto append = [&](std::vector<Response> more) { std::ranges::move(more, std::back_inserter(all)); };
  if (transforms)
    append(transform_responses(*request.stand, request.lags, request.query_position, request.heads, coordinates, seed));
  for (const int head : request.heads) {
    append(bias_responses(*request.stand, request.lags, head));
    append(gate_responses(*request.stand, request.lags, request.query_position, head, seed));
  }
  return all;
}

std::string csv_of(const Request& request, const std::vector<Response>& responses) {
  std::string text = "kind,head,component,lag,value\n";
  for (const Response& response : responses)
    for (size_t n = 0; n < request.lags.size(); ++n)
      text += fmt::format("{},{},{},{},{}\n", response.kind, response.head, csv_field(response.component),
                          request.lags[n], response.values[n]);
  return text;
}

nlohmann::json json_of(const Request& request, const std::vector<Response>& responses) {
  nlohmann::json object = {{"position", request.spec},
                           {"heads", request.stand->settings().heads},
                           {"head_dim", request.stand->settings().head_dim},
                           {"context", request.stand->settings().context},
                           {"query_position", request.query_position},
                           {"lags", request.lags},
                           {"responses", nlohmann::json::array()}};
  for (const Response& response : responses)
    object["responses"].push_back({{"kind", response.kind},
                                   {"head", response.head},
                                   {"component", response.component},
                                   {"values", response.values}});
  return object;
}

double energy(const Response& response) {
  double sum = 0;
  for (const double value : response.values) sum += value * value;
  return sum;
}

// How many times a curve goes from one end of its range to the other.
double swings(const Response& response) {
  double way = 0;
  for (size_t n = 1; n < response.values.size(); ++n) way += std::fabs(response.values[n] - response.values[n - 1]);
  const auto [low, high] = std::ranges::minmax(response.values);
  return high > low ? way / (high - low) : 0;
}

// What one picture can hold: a bias by its components, sorted so that a sector's stand together and the sum comes last,
// in front; a transform by its strongest responses, the slow ones in front of the fast ones.
std::vector<Response> readable(std::vector<Response> responses, int head) {
  constexpr size_t most = 12;
  std::erase_if(responses, [&](const Response& response) { return response.head != head; });
  std::ranges::stable_sort(responses, [](const Response& a, const Response& b) {
    if (a.kind != b.kind) return a.kind < b.kind;
    if (a.kind == "bias") return std::pair(a.component == "sum", a.sector) < std::pair(b.component == "sum", b.sector);
    return a.kind == "transform" && energy(a) > energy(b);
  });
  const auto surplus = std::ranges::find_if(
      responses, [count = size_t{0}](const Response& r) mutable { return r.kind == "transform" && ++count > most; });
  if (surplus != responses.end())
    std::erase_if(responses, [&, count = size_t{0}](const Response& r) mutable {
      return r.kind == "transform" && ++count > most;
    });
  std::ranges::stable_sort(responses, [](const Response& a, const Response& b) {
    return a.kind == "transform" && b.kind == "transform" && swings(a) > swings(b);
  });
  return responses;
}

Series series_of(const Request& request, const Response& response, int number, bool logarithmic) {
  constexpr double followed = 40;  // swings that an eye follows across a picture
  const bool transform = response.kind == "transform", sum = response.component == "sum";
  Series series{.label = transform ? response.component : response.kind + " " + response.component,
                .x = {},
                .y = {},
                .look = sum ? black_look : number + (number >= black_look ? 1 : 0),
                .faint = transform && swings(response) > followed};
  for (size_t n = 0; n < request.lags.size(); ++n) {
    if (logarithmic && request.lags[n] == 0) continue;
    series.x.push_back(static_cast<double>(request.lags[n]));
    series.y.push_back(response.values[n]);
  }
  return series;
}

bool coincide(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0, difference = 0;
  for (size_t n = 0; n < a.size(); ++n) {
    most = std::max(most, std::fabs(a[n]));
    difference = std::max(difference, std::fabs(a[n] - b[n]));
  }
  return difference <= 1e-9 * most;
}

// One panel for what is added to logits, one for what transforms rows: their units have nothing in common.
std::vector<Plot> plots_of(const Request& request, const std::vector<Response>& responses, bool logarithmic) {
  const int head = request.heads.front();
  const int64_t context = request.stand->settings().context;
  const std::vector<Response> shown = readable(responses, head);
  std::vector<Plot> panels;
  for (const bool transform : {false, true}) {
    Plot plot{.title = fmt::format("{}, head {}", request.spec, head),
              .x_label = logarithmic ? "lag d in tokens (log)" : "lag d in tokens",
              .y_label = transform ? "response of unit vectors, <q~, k~>" : "added to the logit (nats)",
              .series = {},
              .log_x = logarithmic};
    for (const Response& response : shown) {
      if ((response.kind == "transform") != transform) continue;
      Series series = series_of(request, response, static_cast<int>(plot.series.size()), logarithmic);
      const auto alike =
          std::ranges::find_if(plot.series, [&](const Series& other) { return coincide(other.y, series.y); });
      if (alike == plot.series.end())
        plot.series.push_back(std::move(series));
      else  // one would hide the other
        alike->label += " = " + response.component;
    }
    if (context < request.lags.back() && context > request.lags.front()) {
      plot.mark_x = static_cast<double>(context);
      plot.mark_label = "training context";
    }
    if (!plot.series.empty()) panels.push_back(std::move(plot));
  }
  return panels;
}

// --vectors FILE: of SPEC, or of all registered examples; small sizes unless others are asked for.
int write_vectors(const Arguments& arguments) {
  require(arguments.text("checkpoint").empty() && !arguments.given("plot") && !arguments.given("csv"),
          "--vectors goes with a SPEC or alone, not with --checkpoint, --plot or --csv");
  PositionSettings settings;
  settings.heads = arguments.given("heads") ? arguments.integer("heads", 1, 64) : 2;
  settings.head_dim = arguments.given("head-dim") ? arguments.integer("head-dim", 1, 256) : 8;
  settings.context = arguments.given("context") ? arguments.integer("context", 1, 1 << 24) : 6;
  settings.width = 5;
  settings.vocabulary = 11;
  settings.seed = arguments.seed();
  const std::vector<std::string> specs =
      arguments.positionals().empty() ? registered_examples() : std::vector{arguments.positional(0)};
  const nlohmann::json vectors = kernel_vectors(specs, settings);
  const std::string& path = arguments.text("vectors");
  write_atomically(path, vectors.dump() + "\n");
  arguments.say("{} vectors written to {}; their form: experiments/kernel_vectors.schema.json\n", specs.size(), path);
  arguments.print_json({{"vectors", specs.size()}, {"out", path}});
  return 0;
}

int run(const Arguments& arguments) {
  if (arguments.given("vectors")) return write_vectors(arguments);
  require_svg_name(arguments.text("plot"));
  Request request = read_request(arguments);
  const std::vector<Response> responses = responses_of(request, arguments.seed());
  const std::string table = csv_of(request, responses);
  if (const std::string& path = arguments.text("csv"); !path.empty()) {
    write_atomically(path, table);
    arguments.say("{} curves over {} lags written to {}\n", responses.size(), request.lags.size(), path);
  }
  if (const std::string& path = arguments.text("plot"); !path.empty()) {
    if (const auto svg = draw(plots_of(request, responses, arguments.flag("log")))) {
      write_atomically(path, *svg);
      arguments.say("plot written to {}\n", path);
    } else {
      write_atomically(path + ".csv", table);
      arguments.say("no plot: {}; the numbers are in {}.csv\n",
                    responses.empty() ? "'" + request.spec + "' has no response to show"
                                      : "gnuplot is not installed (apt-get install gnuplot-nox)",
                    path);
    }
  }
  if (arguments.json()) arguments.print_json(json_of(request, responses));
  if (!arguments.json() && arguments.text("csv").empty() && arguments.text("plot").empty()) fmt::print("{}", table);
  return 0;
}

const RegisterCommand registered(
    {.name = "kernel",
     .summary = "how a position strategy answers by lag, as CSV, JSON or a plot",
     .positionals = {{"SPEC", "the position strategy (not with --checkpoint; with --vectors: all, if left out)",
                      false}},
     .options =
         {{"lags", "A:B", "0:256", "the first and the last lag, in tokens"},
          {"points", "N", "1024", "at most so many lags"},
          flag_option("log", "lags by equal ratios, on a logarithmic axis"),
          {"heads", "H", "4", "heads"},
          {"head", "N", "", "this head alone (default: all; a plot shows the first)"},
          {"head-dim", "D", "16", "head dimension"},
          {"context", "N", "256", "training length, the default length scale L"},
          {"at", "N", "",
           "position of the query (default: the last lag); it counts where the answer depends on more than the lag"},
          {"checkpoint", "CKPT", "", "a trained model instead of SPEC"},
          {"layer", "N", "0", "its layer"},
          {"csv", "FILE", "", "writes the table there instead of to stdout"},
          {"plot", "FILE.svg", "", "draws an SVG"},
          {"vectors", "FILE", "",
           "writes conformance vectors as JSON instead: inputs, parameters, logits, output and gradients in f64, of "
           "SPEC "
           "or, without one, of every strategy (default sizes: --heads 2 --head-dim 8 --context 6)"}},
     .run = run,
     .details = "Biases are b_h(d) in nats, by component and as their sum. Transforms are answered by the scores <q~, "
                "k~> of unit vectors q = e_a, k = e_b "
                "(\"q2 k4\"), a and b the first coordinates of their pairs; answers that are zero throughout are left "
                "out. Where a strategy depends on content, "
                "tokens and inputs are random."});

}  // namespace

}  // namespace sextant
