// Decoherence along the routes of a model that reads a text.
#include <algorithm>
#include <cmath>
#include <complex>
#include <map>

#include "core/error.h"
#include "experiments/evaluate.h"
#include "experiments/interrupt.h"
#include "experiments/study_transport_measure.h"
#include "positional/mechanism.h"

namespace sextant::study {

using nlohmann::json;

std::vector<int64_t> route_lengths(int64_t last) {
  std::vector<int64_t> lengths;
  for (double length = 0; std::llround(length) <= last; length = length < 16 ? length + 1 : length * std::exp2(0.125))
    if (lengths.empty() || std::llround(length) > lengths.back()) lengths.push_back(std::llround(length));
  return lengths;
}

namespace {

struct Curve {  // a mean over heads
  std::vector<double> sum;
  int64_t count = 0;
  void add(const std::vector<double>& values) {
    sum.resize(values.size(), 0.0);
    for (size_t n = 0; n < values.size(); ++n) sum[n] += values[n];
    ++count;
  }
  void add(const Curve& other) { add(other.mean()); }
  std::vector<double> mean() const {
    std::vector<double> values = sum;
    for (double& value : values) value /= static_cast<double>(count);
    return values;
  }
};

Tensor head_rows(const Tensor& x, int64_t head) {  // of [1, T, H, D]
  return x.select(0, 0).select(1, head);
}

Tensor unit_rows_of(Arena& arena, const Tensor& x) {
  const Tensor unit = converted(arena, x, DType::f64);
  for (int64_t t = 0; t < unit.size(0); ++t) {
    const Tensor row = unit.select(0, t);
    const double norm = std::sqrt(sum_of_squares(row));
    for (int64_t d = 0; norm > 0 && d < row.size(0); ++d) row.set_flat(d, row.flat(d) / norm);
  }
  return unit;
}

// y = W x + c of one head's rows of a projection, in f64: x [T, C], weight [outputs, C].
Tensor projected(Arena& arena, const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t first,
                 int64_t count) {
  const Tensor y = empty(arena, {x.size(0), count}, DType::f64);
  for (int64_t t = 0; t < x.size(0); ++t)
    for (int64_t o = 0; o < count; ++o) {
      double sum = bias.at({first + o});
      for (int64_t c = 0; c < x.size(1); ++c) sum += weight.at({first + o, c}) * x.at({t, c});
      y.set_flat(t * count + o, sum);
    }
  return y;
}

// Mean of e^{i theta} of each pair, from the phasors e^{i Phi} that the probe's keys [T, D] are.
std::vector<std::complex<double>> mean_steps(const Tensor& keys) {
  std::vector<std::complex<double>> means(static_cast<size_t>(keys.size(1) / 2));
  const auto phasor = [&](int64_t t, int64_t p) {
    return std::complex<double>(keys.at({t, 2 * p}), keys.at({t, 2 * p + 1}));
  };
  for (size_t p = 0; p < means.size(); ++p) {
    const int64_t pair = static_cast<int64_t>(p);
    for (int64_t t = 1; t < keys.size(0); ++t) means[p] += phasor(t, pair) * std::conj(phasor(t - 1, pair));
    means[p] /= static_cast<double>(keys.size(0) - 1);
  }
  return means;
}

std::vector<double> predicted_scores(const std::vector<std::complex<double>>& means,
                                     const std::vector<int64_t>& lengths) {
  std::vector<double> scores(lengths.size(), 0.0);
  for (size_t n = 0; n < lengths.size(); ++n)
    for (const std::complex<double>& z : means)
      scores[n] += std::pow(z, static_cast<double>(lengths[n])).real() / static_cast<double>(means.size());
  return scores;
}

// What the layers showed, summed over heads.
struct LayerRoutes {
  std::vector<double> gaps;
  Curve predicted, bound;
  std::vector<Curve> score, probe, deviation;  // by context
};

class RouteMeter {
 public:
  RouteMeter(Transformer& model, const std::vector<int64_t>& contexts)
      : model_(model), contexts_(contexts), lengths_(route_lengths(contexts.back() / 2)) {
    layers_.resize(static_cast<size_t>(model.config().layers));
    for (LayerRoutes& layer : layers_)
      for (std::vector<Curve>* curves : {&layer.score, &layer.probe, &layer.deviation}) curves->resize(contexts.size());
  }

  void look(const AttentionView& view) {
    Interrupt::check();
    LayerRoutes& layer = layers_[static_cast<size_t>(view.layer)];
    const bool carried = view.arguments.transport != nullptr;
    const Tensor probes = carried ? Tensor{} : probe_keys(view);
    const std::string kind = kind_of(view.position);
    for (int64_t head = 0; head < model_.config().heads; ++head) {
      Arena arena;
      if (!carried) {
        add_scores(layer.score, nullptr, unit_rows_of(arena, head_rows(view.arguments.q.value(), head)),
                   unit_rows_of(arena, head_rows(view.arguments.k.value(), head)), 1);
        const Tensor keys = head_rows(probes, head);
        add_scores(layer.probe, &layer.deviation, keys, keys, static_cast<double>(keys.size(1) / 2));
        if (kind == "random" || kind == "learned") add_rotations(layer, keys);
      }
      if (kind == "householder" || kind == "path") add_reflections(layer, arena, view, head, kind == "path");
    }
  }

  json result() const {
    json contexts = json::array(), layers = json::array();
    for (size_t c = 0; c < contexts_.size(); ++c) {
      Curve score, probe, deviation;
      for (const LayerRoutes& layer : layers_) {
        if (layer.score[c].count > 0) score.add(layer.score[c]);
        if (layer.probe[c].count > 0) probe.add(layer.probe[c]), deviation.add(layer.deviation[c]);
      }
      contexts.push_back({{"context", contexts_[c]},
                          {"score", score.mean()},
                          {"probe", probe.mean()},
                          {"probe_deviation", deviation.mean()}});
    }
    for (const LayerRoutes& layer : layers_)
      layers.push_back({{"gaps", layer.gaps},
                        {"score", layer.score.back().mean()},
                        {"probe", layer.probe.back().mean()},
                        {"predicted", layer.predicted.mean()},
                        {"bound", layer.bound.mean()}});
    return {{"lengths", lengths_}, {"contexts", contexts}, {"layers", layers}};
  }

 private:
  // The kind of the SPEC's transport, empty without one.
  static std::string kind_of(const Position& position) {
    for (const TermSpec& spec : position.specs())
      if (spec.name() == "transport") return spec.word("kind");
    return "";
  }

  // k~ [1, T, H, D] of the probe (1, 0, 1, 0, ...) at every position: for rotations the phasors themselves. The same
  // for queries, since all separable transforms here treat both alike.
  static Tensor probe_keys(const AttentionView& view) {
    Tape& tape = *view.call.tape;
    const Tensor rows = tape.zeros(view.arguments.k.shape(), view.arguments.k.dtype());
    for (int64_t i = 0; i < rows.elements(); i += 2) rows.set_flat(i, 1.0);
    Features features{tape.constant(rows), tape.constant(rows), tape.constant(rows)};
    view.position.transform(view.call, features, nullptr);
    return features.k.value();
  }

  // The curve over the first tokens of each context; routes up to half of it.
  void add_scores(std::vector<Curve>& means, std::vector<Curve>* deviations, const Tensor& q, const Tensor& k,
                  double norms) {
    for (size_t c = 0; c < contexts_.size(); ++c)
      add_curve(mechanism::decoherence_of_features(q.slice(0, 0, contexts_[c]), k.slice(0, 0, contexts_[c]), norms,
                                                   lengths_within(contexts_[c])),
                means[c], deviations == nullptr ? nullptr : &(*deviations)[c]);
  }
  static void add_curve(const mechanism::Decoherence& curve, Curve& mean, Curve* deviation) {
    mean.add(curve.mean);
    if (deviation != nullptr) deviation->add(curve.deviation);
  }
  std::vector<int64_t> lengths_within(int64_t context) const {
    std::vector<int64_t> within;
    for (const int64_t length : lengths_)
      if (length <= context / 2) within.push_back(length);
    return within;
  }

  void add_gap(LayerRoutes& layer, double gap) {
    layer.gaps.push_back(gap);
    std::vector<double> bound;
    for (const int64_t length : lengths_) bound.push_back(std::pow(1 - gap, static_cast<double>(length)));
    layer.bound.add(bound);
  }

  void add_rotations(LayerRoutes& layer, const Tensor& keys) {
    const auto means = mean_steps(keys);
    double largest = 0;
    for (const std::complex<double>& z : means) largest = std::max(largest, std::abs(z));
    add_gap(layer, 1 - largest);
    layer.predicted.add(predicted_scores(means, lengths_));
  }

  void add_reflections(LayerRoutes& layer, Arena& arena, const AttentionView& view, int64_t head, bool path) {
    std::map<std::string, Tensor> parameters;
    for (const Parameter* parameter : view.position.parameters())
      parameters[parameter->name.substr(parameter->name.find(".transport.") + 11)] = parameter->value;
    const Tensor x = view.call.input.value().select(0, 0);
    const int64_t dim = view.arguments.k.size(3), tokens = x.size(0);
    const Tensor w = projected(arena, x, parameters.at("weight"), parameters.at("bias"), head * dim, dim);
    if (!path) {
      add_gap(layer, mechanism::spectral_gap(mechanism::householder_steps(w), tokens, dim));
      return;
    }
    const Tensor beta = projected(arena, x, parameters.at("beta_weight"), parameters.at("beta_bias"), head, 1);
    for (int64_t t = 0; t < tokens; ++t) beta.set_flat(t, 2 / (1 + std::exp(-beta.flat(t))));
    const mechanism::Step steps = mechanism::path_steps(w, beta.reshape({tokens}));
    add_gap(layer, mechanism::spectral_gap(steps, tokens, dim));
    // Step by step, since there are no features; from every 16th token.
    std::vector<double> probe(static_cast<size_t>(dim), 0.0);
    for (size_t d = 0; d < probe.size(); d += 2) probe[d] = 1;
    for (size_t c = 0; c < contexts_.size(); ++c)
      add_curve(mechanism::decoherence(steps, contexts_[c], probe, probe, lengths_within(contexts_[c]), 16),
                layer.probe[c], &layer.deviation[c]);
  }

  Transformer& model_;
  std::vector<int64_t> contexts_, lengths_;
  std::vector<LayerRoutes> layers_;
};

}  // namespace

json measure_decoherence(Transformer& model, const Corpus& corpus, const std::vector<int64_t>& contexts,
                         Progress& progress) {
  const Split split = held_out_split(corpus);
  std::vector<int64_t> fitting;
  for (const int64_t context : contexts)
    if (corpus.size(split) >= context) fitting.push_back(context);
  require(!fitting.empty(), "decoherence: the held-out split of {} has {} tokens, too few for {}", corpus.name(),
          corpus.size(split), contexts.front());
  std::vector<int32_t> tokens(static_cast<size_t>(fitting.back()));
  corpus.read(split, 0, tokens);
  RouteMeter meter(model, fitting);
  {
    Tape tape;
    Cache cache = model.new_cache(1, fitting.back(), fitting.back());
    const Observation observation(model, [&](const AttentionView& view) {
      progress.update(view.layer, model.config().layers, "decoherence");
      meter.look(view);
    });
    model.extend(tape, cache, tokens, fitting.back(), true);
  }
  return meter.result();
}

}  // namespace sextant::study
