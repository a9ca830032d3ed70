#include "experiments/study_training.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "experiments/evaluate.h"
#include "experiments/interrupt.h"
#include "experiments/manifest.h"
#include "experiments/run_folder.h"
#include "experiments/trainer.h"

namespace sextant::study {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int64_t sector_windows = 16;   // of the training length, for what leaving a component out costs
constexpr double training_share = 0.75;  // of a piece's progress, before its cost is known better

std::unique_ptr<Trainer> open_trainer(const Training& training, const Workplace& place) {
  TrainOptions options = training.options;
  options.out = place.folder;
  if (!fs::exists(options.out + "/checkpoint.safetensors")) return Trainer::start(options, place.command);
  const json stored = to_json(Trainer::stored_options(options.out)), asked = to_json(options);
  require(stored == asked, "{}: holds a run with other options ({}) than are asked for now ({}); choose another --out",
          options.out, stored.dump(), asked.dump());
  return Trainer::resume(options, place.command);
}

json training_json(Trainer& trainer, const std::string& folder) {
  const Metrics metrics = read_run(folder).metrics;
  const size_t steps = metrics.loss.size(), last = std::max<size_t>(1, steps / 10);
  double loss = 0;
  for (size_t i = steps - std::min(steps, last); i < steps; ++i) loss += metrics.loss[i] / static_cast<double>(last);
  return {{"parameters", trainer.model().parameter_count()},
          {"steps", trainer.steps_done()},
          {"tokens", trainer.steps_done() * trainer.options().tokens_per_step()},
          {"seconds", steps > 0 ? metrics.seconds.back() : 0.0},
          {"loss", loss}};
}

std::vector<Position*> layers_of(Transformer& model) {
  std::vector<Position*> layers;
  for (int layer = 0; layer < static_cast<int>(model.config().layers); ++layer)
    layers.push_back(&model.position(layer));
  return layers;
}

// 0 .. 64, then eight a doubling, to four times the training length.
std::vector<int64_t> kernel_lags(int64_t context) {
  std::vector<int64_t> lags;
  for (double lag = 0; lag <= static_cast<double>(4 * context); lag = lag < 64 ? lag + 1 : lag * std::exp2(0.125))
    lags.push_back(std::llround(lag));
  return lags;
}

// b_h(d) of every layer and head as they were learned, from each lag on the mean up to the next: points far apart would
// show fast waves as noise. Null where the strategy has no lag bias.
json kernels_json(Transformer& model) {
  const std::vector<int64_t> lags = kernel_lags(model.config().context);
  const int64_t all = lags.back() + 1;
  json layers = json::array();
  for (Position* layer : layers_of(model)) {
    Tape tape;
    const NoGrad none(tape);
    const Variable bias = layer->lag_bias({&tape, {}, {}, 1, all, 0, all, false, nullptr}, all, nullptr);
    if (!bias.defined()) return {};
    json heads = json::array();
    for (int64_t head = 0; head < model.config().heads; ++head) {
      json values = json::array();
      for (size_t i = 0; i < lags.size(); ++i) {
        const int64_t next = i + 1 < lags.size() ? lags[i + 1] : all;
        double sum = 0;
        for (int64_t lag = lags[i]; lag < next; ++lag) sum += bias.value().at({head, lag});
        values.push_back(sum / static_cast<double>(next - lags[i]));
      }
      heads.push_back(values);
    }
    layers.push_back(heads);
  }
  return {{"lags", lags}, {"layers", layers}};
}

// The shares that the same model had before its first step.
void add_shares_at_start(json& sectors, const Transformer& trained) {
  Transformer model(trained.config());
  const auto start = sector_diagnostics(layers_of(model), model.config().heads, model.config().context);
  for (size_t i = 0; i < start.size(); ++i) sectors.at(i)["mass_share_at_start"] = start[i].mass_share;
}

void evaluate_into(json& result, Trainer& trainer, const Training& training, Progress& progress) {
  Transformer& model = trainer.model();
  const Corpus& corpus = trainer.corpus();
  EvaluateOptions options{.lengths = {},
                          .windows = training.windows,
                          .tokens = training.tokens,
                          .split = held_out_split(corpus),
                          .sectors = false,
                          .interruptible = true};
  for (const int64_t length : training.lengths)
    if (corpus.size(options.split) > length) options.lengths.push_back(length);
  Evaluation evaluation = evaluate(model, corpus, options, progress);
  options.windows = sector_windows;
  options.tokens = 0;
  evaluation.sectors = measure_sectors(model, layers_of(model), corpus, options);
  result["layers"] = json::array();
  for (Position* const layer : layers_of(model))
    result["layers"].push_back(measure_sectors(model, {&layer, 1}, corpus, options));
  add_shares_at_start(evaluation.sectors, model);
  result["sectors"] = evaluation.sectors;
  result["evaluation"] = to_json(evaluation);
  write_atomically(trainer.options().out + "/eval.json", result["evaluation"].dump(2) + "\n");
}

json work_off(const Training& training, const Workplace& place) {
  const std::unique_ptr<Trainer> trainer = open_trainer(training, place);
  json result = {{"evaluation", nullptr}, {"sectors", json::array()}, {"layers", json::array()}, {"kernels", nullptr}};
  try {
    Progress progress(*place.progress, 0, training_share);
    const TrainResult trained = trainer->train(progress);
    if (trained.signal != 0) throw Interrupted(trained.signal);
  } catch (const Error& error) {
    if (error.status() != Status::check_failed) throw;
    result["diverged"] = error.what();  // a result: the other pieces go on
    return result;
  }
  result["training"] = training_json(*trainer, place.folder);
  Progress evaluating(*place.progress, training_share, 1);
  evaluate_into(result, *trainer, training, evaluating);
  result["kernels"] = kernels_json(trainer->model());
  if (training.measure) result["measured"] = training.measure(trainer->model(), trainer->corpus(), evaluating);
  return result;
}

// Products of matrices and attention, in 1e12 operations: 2 a weight and token forward, 4 backward.
double cost_of(const Training& training) {
  const TrainOptions& options = training.options;
  const double layers = static_cast<double>(options.layers), width = static_cast<double>(options.width);
  const double weights = 12 * layers * width * width + 256 * width;
  const auto attention = [&](int64_t length) { return 2 * layers * width * static_cast<double>(length); };
  double sum =
      static_cast<double>(options.steps * options.tokens_per_step()) * (6 * weights + 3.5 * attention(options.context));
  for (const int64_t length : training.lengths)
    sum +=
        static_cast<double>(std::max(training.windows * length, training.tokens)) * (2 * weights + attention(length));
  return 1e-12 * sum * training.cost_factor;
}

// Why a corpus cannot be used; empty when it can.
std::string obstacle(const std::string& data, int64_t context) {
  try {
    const std::shared_ptr<Corpus> corpus = open_corpus(data);
    const Split held_out = held_out_split(*corpus);
    for (const Split split : {Split::train, held_out})
      if (corpus->size(split) <= context)
        return fmt::format("{}: its {} split has {} tokens, and a window of {} needs {}", data, sextant::name_of(split),
                           corpus->size(split), context, context + 1);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

Piece training_piece(const std::string& key, const Training& training) {
  const json settings = {{"training", to_json(training.options)},
                         {"lengths", training.lengths},
                         {"windows", training.windows},
                         {"tokens", training.tokens},
                         {"measurement", training.measurement}};
  return {key, settings, cost_of(training), [training](const Workplace& place) { return work_off(training, place); }};
}

StudyCorpora study_corpora(const Plan& plan, const std::vector<std::string>& names, int64_t context) {
  StudyCorpora corpora;
  if (!plan.data.empty()) {
    const std::string data = data_name(plan.data), why = obstacle(data, context);
    require(why.empty(), "--data {}", why);
    std::string key;
    for (const char c : fs::path(data).stem().string()) key += std::isalnum(static_cast<unsigned char>(c)) ? c : '-';
    corpora.all.push_back({key.empty() ? "data" : key, data});
    return corpora;
  }
  std::string first;
  for (const std::string& name : names) {
    const std::string why = obstacle(name, context);
    if (why.empty()) {
      corpora.all.push_back({name, name});
      continue;
    }
    if (first.empty()) first = why;
    corpora.notes.push_back("Left out: " + why + ".");
  }
  if (!corpora.all.empty()) return corpora;
  require(plan.scale == Scale::smoke, "{}; or use a file or folder of your own with --data", first);
  corpora.all.push_back({"canon", "canon"});
  corpora.notes.push_back("Generated counterpoint stands in for all of them.");
  return corpora;
}

double at_length(const json& result, int64_t length, const char* what) {
  if (!result.at("evaluation").is_object()) return std::nan("");
  for (const json& row : result.at("evaluation").at("lengths"))
    if (row.at("length") == length) return number_at(row, fmt::format("/{}", what));
  return std::nan("");
}

Sample over_seeds(const Results& results, const std::string& prefix, int64_t length, const char* what) {
  std::vector<double> values;
  for (const json* result : results_of(results, prefix))
    if (const double value = at_length(*result, length, what); std::isfinite(value)) values.push_back(value);
  return sample_of(values);
}

std::vector<int64_t> lengths_of(const Results& results) {
  std::set<int64_t> lengths;
  for (const auto& [key, result] : results)
    if (result.at("evaluation").is_object())
      for (const json& row : result.at("evaluation").at("lengths")) lengths.insert(row.at("length").get<int64_t>());
  return {lengths.begin(), lengths.end()};
}

}  // namespace sextant::study
