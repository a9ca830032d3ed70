#include "experiments/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numbers>
#include <optional>

#include "core/error.h"
#include "data/batch.h"
#include "experiments/interrupt.h"
#include "experiments/memory.h"
#include "experiments/memory_need.h"
#include "nn/generation.h"

namespace sextant {

using nlohmann::json;

namespace {

void check(const Transformer& model, const Corpus& corpus, const EvaluateOptions& options) {
  require(model.config().vocab == corpus.vocabulary(),
          "{}: {} has a vocabulary of {}, the model one of {}; it was trained on {}", corpus.name(), corpus.name(),
          corpus.vocabulary(), model.config().vocab, model.config().data);
  const int64_t size = corpus.size(options.split);
  for (const int64_t length : options.lengths)
    require(size > length, "length {}: the {} split of {} has {} tokens, and a window of {} needs {}", length,
            name_of(options.split), corpus.name(), size, length, length + 1);
}

struct WindowLoss {
  double all, last;       // mean nats over all positions and over the last quarter
  int64_t not_finite_at;  // the first position whose loss is no finite number; -1: none
};

WindowLoss window_loss(Transformer& model, Tape& tape, const Corpus& corpus, const EvaluateOptions& options,
                       int64_t offset, std::vector<int32_t>& tokens) {
  corpus.read(options.split, offset, tokens);
  const std::vector<double> losses = sequence_losses(model, tape, tokens, options.piece);
  tape.reset();
  const size_t last = std::max<size_t>(1, losses.size() / 4);
  WindowLoss sums{0, 0, -1};
  for (size_t t = 0; t < losses.size(); ++t) {
    if (sums.not_finite_at < 0 && !std::isfinite(losses[t])) sums.not_finite_at = static_cast<int64_t>(t);
    sums.all += losses[t];
    if (t + last >= losses.size()) sums.last += losses[t];
  }
  return {sums.all / static_cast<double>(losses.size()), sums.last / static_cast<double>(last), sums.not_finite_at};
}

// Looks at the model's attention as long as this lives, and has a row for each layer when the last token of a window
// has been read.
class StabilityLook {
 public:
  StabilityLook(Transformer& model, json& rows) : model_(model) {
    model_.set_observer([&rows](const AttentionView& view) {
      if (view.call.first + view.call.length < view.call.total) return;
      const StabilityRow row = stability_of(values_of(view.arguments));
      rows.push_back({{"length", row.position + 1},
                      {"layer", view.layer},
                      {"largest_query", row.largest_query},
                      {"mean_query", row.mean_query},
                      {"largest_key", row.largest_key},
                      {"mean_key", row.mean_key},
                      {"largest_logit", row.largest_logit},
                      {"cached_key_bytes", row.key_bytes * static_cast<double>(view.arguments.k.size(2))}});
    });
  }
  ~StabilityLook() { model_.set_observer({}); }
  StabilityLook(const StabilityLook&) = delete;
  StabilityLook& operator=(const StabilityLook&) = delete;

 private:
  Transformer& model_;
};

int64_t windows_at(int64_t length, const EvaluateOptions& options) {
  return std::max(options.windows, (options.tokens + length - 1) / length);
}

// Each rank works off every size-th window, then all have all. `done` tells how far this rank is. `stability`, if any,
// gets rows of the first window.
std::vector<WindowLoss> window_losses(Transformer& model, const Corpus& corpus, const EvaluateOptions& options,
                                      int64_t length, const std::function<void(size_t, double)>& done,
                                      json* stability) {
  Tape own_tape;
  Tape& tape = options.tape != nullptr ? *options.tape : own_tape;
  std::vector<int32_t> tokens(static_cast<size_t>(length + 1));
  const std::vector<int64_t> offsets = evaluation_offsets(corpus, options.split, length, windows_at(length, options));
  const size_t rank = static_cast<size_t>(options.ranks->rank()), ranks = static_cast<size_t>(options.ranks->size());
  std::vector<WindowLoss> losses(offsets.size());
  std::string own;
  together(*options.ranks, [&] {
    for (size_t i = rank; i < offsets.size(); i += ranks) {
      if (options.interruptible) Interrupt::check();
      std::optional<StabilityLook> look;
      if (i == 0 && stability != nullptr) look.emplace(model, *stability);
      losses[i] = window_loss(model, tape, corpus, options, offsets[i], tokens);
      own.append(reinterpret_cast<const char*>(&losses[i]), sizeof(WindowLoss));
      done(i, losses[i].all);
    }
  });
  if (stability != nullptr) *stability = json::parse(options.ranks->gather(stability->dump()).front());
  const std::vector<std::string> all = options.ranks->gather(own);
  for (size_t i = 0; i < offsets.size(); ++i)
    std::memcpy(&losses[i], all[i % ranks].data() + i / ranks * sizeof(WindowLoss), sizeof(WindowLoss));
  return losses;
}

LengthResult evaluate_length(Transformer& model, const Corpus& corpus, const EvaluateOptions& options, int64_t length,
                             Progress& progress, int64_t& done, int64_t total, json* stability = nullptr) {
  const auto start = std::chrono::steady_clock::now();
  reset_peak_memory();
  LengthResult result{.length = length, .windows = windows_at(length, options)};
  const int64_t before = done;
  const auto report = [&](size_t window, double nats) {
    done = before + static_cast<int64_t>(window + 1) * length;
    progress.update(
        done, total,
        fmt::format("evaluating  length {}  window {}/{}  loss {:.4f}", length, window + 1, result.windows, nats));
  };
  const auto losses = window_losses(model, corpus, options, length, report, stability);
  done = before + result.windows * length;
  double squares = 0;
  int64_t count = 0;
  for (const WindowLoss& loss : losses) {
    ++count;
    const double difference = loss.all - result.nats;
    result.nats += difference / static_cast<double>(count);
    squares += difference * (loss.all - result.nats);
    result.last_nats += (loss.last - result.last_nats) / static_cast<double>(count);
    if (loss.not_finite_at >= 0 && (result.not_finite_at < 0 || loss.not_finite_at < result.not_finite_at))
      result.not_finite_at = loss.not_finite_at;
  }
  if (result.not_finite_at >= 0) {
    for (double* x : {&result.nats, &result.last_nats, &result.standard_error})
      if (std::isnan(*x)) *x = std::nan("");  // without the sign that it has from somewhere
    result.note = fmt::format("the loss is not finite from position {} on", result.not_finite_at);
    if (const std::string why = model.position(0).overflow(length); !why.empty()) result.note += "; " + why;
  }
  if (count > 1)
    result.standard_error = std::sqrt(squares / static_cast<double>(count - 1) / static_cast<double>(count));
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.peak_bytes = peak_memory();
  return result;
}

// What is not finite becomes null when it is written.
json to_json(const LengthResult& result) {
  json object = {{"length", result.length},
                 {"windows", result.windows},
                 {"nats_per_token", result.nats},
                 {"standard_error", result.standard_error},
                 {"last_quarter_nats_per_token", result.last_nats},
                 {"bits_per_token", result.bits()},
                 {"perplexity", result.perplexity()},
                 {"ratio_to_training_length", result.ratio},
                 {"seconds", result.seconds},
                 {"peak_bytes", result.peak_bytes}};
  if (!result.note.empty()) object["note"] = result.note;
  return object;
}

json to_json(const Resolution& one, int64_t length, size_t layer) {
  json object = {{"length", length},
                 {"layer", layer},
                 {"term", one.term},
                 {"chart", one.light_cone ? "light-cone" : "raw"},
                 {"first_lag", one.from},
                 {"last_lag", one.to},
                 {"phase_span", one.light_cone ? one.span.light_cone : one.span.raw},
                 {"phase_span_raw", one.span.raw},
                 {"retrieval_hits", one.hits},
                 {"retrieval_within", one.delta},
                 {"retrieval_noise", one.noise}};
  if (!one.sector.empty()) object["sector"] = one.sector;
  return object;
}

}  // namespace

double LengthResult::bits() const {
  return nats / std::numbers::ln2;
}
double LengthResult::perplexity() const {
  return std::exp(nats);
}

Evaluation evaluate(Transformer& model, const Corpus& corpus, const EvaluateOptions& options, Progress& progress) {
  const Sharing sharing{options.ranks->size(), ranks_on_this_host(*options.ranks)};
  together(*options.ranks, [&] {
    check(model, corpus, options);
    if (!options.lengths.empty())
      require_memory_for_length(model, std::ranges::max(options.lengths), options.piece, sharing);
  });
  const ModelConfig& config = model.config();
  Evaluation evaluation{.data = corpus.name(),
                        .sha256 = corpus.sha256(),
                        .split = options.split,
                        .windows = options.windows,
                        .training_length = config.context,
                        .position = config.position,
                        .reference = {},
                        .lengths = {}};
  // Ascending, so that the peak of a length is its own even where the system does not let us reset it; the training
  // length always, as reference.
  std::vector<int64_t> lengths = options.lengths;
  const bool reference_fits = corpus.size(options.split) > config.context;
  if (reference_fits) lengths.push_back(config.context);
  std::ranges::sort(lengths);
  lengths.erase(std::ranges::unique(lengths).begin(), lengths.end());
  int64_t done = 0, total = 0;
  for (const int64_t length : lengths) total += length * windows_at(length, options);
  for (const int64_t length : lengths) {
    json stability = json::array();
    const LengthResult result =
        evaluate_length(model, corpus, options, length, progress, done, total, options.sectors ? &stability : nullptr);
    for (json& row : stability) evaluation.stability.push_back(std::move(row));
    if (length == config.context) evaluation.reference = result;
    if (std::ranges::count(options.lengths, length) > 0) evaluation.lengths.push_back(result);
  }
  progress.finish();
  for (LengthResult& result : evaluation.lengths)
    result.ratio = reference_fits ? std::exp(result.nats - evaluation.reference.nats) : std::nan("");
  if (options.sectors) {
    std::vector<Position*> layers;
    for (int layer = 0; layer < static_cast<int>(config.layers); ++layer) layers.push_back(&model.position(layer));
    evaluation.sectors = measure_sectors(model, layers, corpus, options);
    for (const int64_t length : lengths)
      for (size_t layer = 0; layer < layers.size(); ++layer)
        for (const Resolution& one : resolution(*layers[layer], length))
          evaluation.resolution.push_back(to_json(one, length, layer));
  }
  return evaluation;
}

json measure_sectors(Transformer& model, std::span<Position* const> layers, const Corpus& corpus,
                     const EvaluateOptions& options) {
  const ModelConfig& config = model.config();
  const std::vector<SectorDiagnostics> sectors = sector_diagnostics(layers, config.heads, config.context);
  json list = json::array();
  if (sectors.empty()) return list;
  std::vector<LeaveOneOut> left_out;
  if (corpus.size(options.split) > config.context) {
    Progress silent(nullptr);
    left_out = leave_one_out(layers, [&] {
      int64_t done = 0;
      return evaluate_length(model, corpus, options, config.context, silent, done, 1).nats;
    });
  }
  for (size_t i = 0; i < sectors.size(); ++i) {
    const SectorDiagnostics& sector = sectors[i];
    json row = {{"term", sector.term},
                {"sector", sector.sector},
                {"order", sector.order},
                {"mass", sector.mass},
                {"mass_share", sector.mass_share},
                {"energy", sector.energy},
                {"energy_share", sector.energy_share},
                {"centred_energy", sector.centred_energy},
                {"cancellation", sector.cancellation}};
    if (!left_out.empty()) row["leave_one_out_nats_per_token"] = left_out[i].change;
    list.push_back(row);
  }
  return list;
}

json to_json(const Evaluation& evaluation) {
  json object = {{"data", evaluation.data},
                 {"sha256", evaluation.sha256},
                 {"split", name_of(evaluation.split)},
                 {"windows", evaluation.windows},
                 {"training_length", evaluation.training_length},
                 {"position", evaluation.position},
                 {"lengths", json::array()}};
  if (evaluation.reference.length > 0) object["training_length_nats_per_token"] = evaluation.reference.nats;
  for (const LengthResult& result : evaluation.lengths) object["lengths"].push_back(to_json(result));
  for (const auto& [name, rows] : {std::pair("sectors", &evaluation.sectors),
                                   {"stability", &evaluation.stability},
                                   {"resolution", &evaluation.resolution}})
    if (!rows->empty()) object[name] = *rows;
  return object;
}

std::string table(const Evaluation& evaluation) {
  std::string text =
      fmt::format("{} ({} split, {} windows), position {}, trained at {} tokens\n\n", evaluation.data,
                  name_of(evaluation.split), evaluation.windows, evaluation.position, evaluation.training_length);
  text += fmt::format("{:>8}  {:>10}  {:>8}  {:>10}  {:>12}  {:>12}  {:>8}  {:>9}\n", "length", "nats/token", "+-",
                      "bits/token", "perplexity", "ratio", "seconds", "peak");
  for (const LengthResult& result : evaluation.lengths)
    text += fmt::format("{:>8}  {:>10.4f}  {:>8.4f}  {:>10.4f}  {:>12.5g}  {:>12.5g}  {:>8.2f}  {:>9}\n", result.length,
                        result.nats, result.standard_error, result.bits(), result.perplexity(), result.ratio,
                        result.seconds, bytes_text(static_cast<double>(result.peak_bytes)));
  for (const LengthResult& result : evaluation.lengths)
    if (!result.note.empty()) text += fmt::format("note: at length {} {}\n", result.length, result.note);
  return text;
}

std::string sector_table(const Evaluation& evaluation) {
  if (evaluation.sectors.empty()) return "";
  std::string text = fmt::format("{:<8}  {:<8}  {:>5}  {:>11}  {:>10}  {:>11}  {:>12}  {:>14}\n", "term", "sector",
                                 "order", "mass", "share", "energy", "cancellation", "left out, nats");
  for (const json& row : evaluation.sectors)
    text += fmt::format("{:<8}  {:<8}  {:>5}  {:>11.4g}  {:>9.1f}%  {:>11.4g}  {:>12.4g}  {:>+14.5f}\n",
                        row.at("term").get<std::string>(), row.at("sector").get<std::string>(),
                        row.at("order").get<int>(), row.at("mass").get<double>(),
                        100 * row.at("mass_share").get<double>(), row.at("energy").get<double>(),
                        row.at("cancellation").get<double>(), row.value("leave_one_out_nats_per_token", 0.0));
  return text;
}

std::vector<int64_t> default_lengths(const Corpus& corpus, Split split, int64_t context) {
  std::vector<int64_t> lengths;
  for (int64_t factor = 1; factor <= 32; factor *= 2)
    if (corpus.size(split) > context * factor) lengths.push_back(context * factor);
  require(!lengths.empty(), "the {} split of {} has {} tokens, and a window of the training length {} needs {}",
          name_of(split), corpus.name(), corpus.size(split), context, context + 1);
  return lengths;
}

Split held_out_split(const Corpus& corpus) {
  return corpus.size(Split::validation) > 0 ? Split::validation : Split::test;
}

}  // namespace sextant
