// Attention mass on far sources, and its bound; the routes are in study_transport_routes.cpp.
#include "experiments/study_transport_measure.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "data/batch.h"
#include "experiments/evaluate.h"
#include "experiments/interrupt.h"
#include "positional/logits.h"
#include "positional/mechanism.h"

namespace sextant::study {

using nlohmann::json;

namespace {

template <class T>
using PerHead = std::vector<std::vector<T>>;  // [layer][head]

template <class T>
PerHead<T> per_head(const ModelConfig& config, const T& value) {
  return PerHead<T>(static_cast<size_t>(config.layers), std::vector<T>(static_cast<size_t>(config.heads), value));
}

// ---- far mass -----------------------------------------------------------------------------------------------------

// The queries at the end of one length, of all windows.
class FarMassMeter {
 public:
  FarMassMeter(const ModelConfig& config, int64_t length, const FarMassOptions& options)
      : options_(options),
        length_(length),
        lambda_(per_head(config, 0.0)),
        half_range_(per_head(config, 0.0)),
        masses_(options.near.size(), per_head(config, std::vector<double>{})) {}

  void look(const AttentionView& view) {
    const AttentionInputs inputs = values_of(view.arguments);
    const size_t layer = static_cast<size_t>(view.layer);
    for (size_t head = 0; head < lambda_[layer].size(); ++head)
      for (int64_t n = 0, row = inputs.q.size(1) - 1; n < options_.queries && row >= 0; ++n, row -= 4)
        take(logits_of_query(inputs, 0, static_cast<int64_t>(head), row), layer, head);
  }

  json result() const {
    json row = {{"length", length_}, {"lambda", lambda_}, {"half_range", half_range_}, {"near", json::array()}};
    for (size_t n = 0; n < options_.near.size(); ++n)
      row["near"].push_back({{"near", options_.near[n]},
                             {"mass", means(masses_[n])},
                             {"bound", bounds(options_.near[n], lambda_)},
                             {"bound_half_range", bounds(options_.near[n], half_range_)}});
    row["margin"] = margin_;
    return row;
  }

 private:
  void take(const std::vector<double>& logits, size_t layer, size_t head) {
    const auto [low, high] = std::ranges::minmax(logits);
    const double half_range = (high - low) / 2;
    lambda_[layer][head] = std::max({lambda_[layer][head], std::fabs(low), std::fabs(high)});
    half_range_[layer][head] = std::max(half_range_[layer][head], half_range);
    for (size_t n = 0; n < options_.near.size(); ++n) {
      const double mass = mechanism::far_mass(logits, options_.near[n]);
      masses_[n][layer][head].push_back(mass);
      margin_ = std::min(margin_, mass - bound(static_cast<int64_t>(logits.size()) - 1, options_.near[n], half_range));
    }
  }

  // Of the query at `position`: it and the `near` tokens before it are near.
  static double bound(int64_t position, int64_t near, double lambda) {
    return mechanism::far_mass_bound(std::min(near, position) + 1, std::max<int64_t>(0, position - near), lambda);
  }

  PerHead<double> means(const PerHead<std::vector<double>>& values) const {
    PerHead<double> result = lambda_;
    for (size_t layer = 0; layer < values.size(); ++layer)
      for (size_t head = 0; head < values[layer].size(); ++head) result[layer][head] = sample_mean(values[layer][head]);
    return result;
  }
  static double sample_mean(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
  }

  PerHead<double> bounds(int64_t near, const PerHead<double>& lambda) const {
    PerHead<double> result = lambda;
    const int64_t queries = std::min(options_.queries, (length_ + 3) / 4);
    for (std::vector<double>& heads : result)
      for (double& each : heads) {
        double sum = 0;
        for (int64_t n = 0; n < queries; ++n) sum += bound(length_ - 1 - 4 * n, near, each);
        each = sum / static_cast<double>(queries);
      }
    return result;
  }

  const FarMassOptions& options_;
  int64_t length_;
  PerHead<double> lambda_, half_range_;
  std::vector<PerHead<std::vector<double>>> masses_;  // of each `near`
  double margin_ = std::numeric_limits<double>::infinity();
};

// Reads a window through the cache, in pieces that end at every length, the last of at least all queries' rows.
void read_window(Transformer& model, std::span<const int32_t> tokens, std::vector<FarMassMeter>& meters,
                 const std::vector<int64_t>& lengths, const std::function<void(int64_t)>& advanced) {
  Tape tape;
  const int64_t total = static_cast<int64_t>(tokens.size()), piece = lengths.front();
  Cache cache = model.new_cache(1, total, total);
  while (cache.length() < total) {
    Interrupt::check();
    const TapeScope scope(tape);
    const auto next = std::ranges::upper_bound(lengths, cache.length());
    const int64_t first = cache.length(), length = std::min(piece, *next - first);
    FarMassMeter* meter = first + length == *next ? &meters[static_cast<size_t>(next - lengths.begin())] : nullptr;
    const Observation observation(model, [meter](const AttentionView& view) {
      if (meter != nullptr) meter->look(view);
    });
    model.extend(tape, cache, tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(length)), length, true);
    advanced(first + length);
  }
}

}  // namespace

json measure_far_mass(Transformer& model, const Corpus& corpus, const FarMassOptions& options, Progress& progress) {
  const Split split = held_out_split(corpus);
  std::vector<int64_t> lengths;
  for (const int64_t length : options.lengths)
    if (corpus.size(split) > length) lengths.push_back(length);
  require(!lengths.empty(), "far mass: the held-out split of {} has {} tokens, too few for a window of {}",
          corpus.name(), corpus.size(split), options.lengths.front());
  std::vector<FarMassMeter> meters;
  for (const int64_t length : lengths) meters.emplace_back(model.config(), length, options);
  std::vector<int32_t> tokens(static_cast<size_t>(lengths.back()));
  int64_t window = 0;
  for (const int64_t offset : evaluation_offsets(corpus, split, lengths.back(), options.windows)) {
    corpus.read(split, offset, tokens);
    read_window(model, tokens, meters, lengths, [&](int64_t done) {
      progress.update(window * lengths.back() + done, options.windows * lengths.back(), "far mass");
    });
    ++window;
  }
  json rows = json::array();
  for (const FarMassMeter& meter : meters) rows.push_back(meter.result());
  return rows;
}

}  // namespace sextant::study
