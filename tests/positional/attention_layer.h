// An attention layer around a position SPEC, without projections of its own: what the tests of transport and gates run,
// whole or through a cache.
#pragma once

#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "autograd/attention.h"
#include "autograd/gradient_check.h"
#include "autograd/reductions.h"
#include "autograd/shaping.h"
#include "core/random.h"
#include "positional/strategy.h"

namespace sextant::testing_layer {

struct Sequence {
  Tensor x, q, k, v;            // [B, T, C], [B, T, H, D] three times
  std::vector<int32_t> tokens;  // [B T]
};

inline Tensor random_tensor(Arena& arena, const Shape& shape, DType dtype, uint64_t seed, double scale = 1.0) {
  const Tensor x = empty(arena, shape, DType::f64);
  fill_normal(x, Random(seed, "layer"), 0.0, scale);
  return converted(arena, x, dtype);
}

inline Sequence random_sequence(Arena& arena, const PositionSettings& s, int64_t batch, int64_t length,
                                uint64_t seed = 1) {
  const Shape heads{batch, length, s.heads, s.head_dim};
  Sequence sequence{random_tensor(arena, {batch, length, s.width}, s.dtype, seed),
                    random_tensor(arena, heads, s.dtype, seed + 1),
                    random_tensor(arena, heads, s.dtype, seed + 2),
                    random_tensor(arena, heads, s.dtype, seed + 3),
                    {}};
  for (int64_t i = 0; i < batch * length; ++i)
    sequence.tokens.push_back(static_cast<int32_t>(
        Random(seed, "tokens").below(static_cast<uint64_t>(i), static_cast<uint64_t>(s.vocabulary))));
  return sequence;
}

struct Layer {
  Arena weights;
  PositionTables tables;
  PositionSettings settings;
  std::unique_ptr<Position> position;

  Layer(const std::string& spec, int64_t heads, int64_t head_dim, DType dtype, int64_t context = 64) {
    settings.heads = heads;
    settings.head_dim = head_dim;
    settings.width = heads * head_dim;
    settings.vocabulary = 11;
    settings.context = context;
    settings.dtype = dtype;
    settings.seed = 5;
    settings.weights = &weights;
    settings.tables = &tables;
    settings.prefix = "blocks.0.position.";
    position = std::make_unique<Position>(spec, settings);
  }

  // Parameters as training might leave them: well away from where they start.
  void shake(double size, uint64_t seed = 3) {
    for (Parameter* parameter : position->parameters())
      for (int64_t i = 0; i < parameter->value.elements(); ++i)
        parameter->value.set_flat(
            i, parameter->value.flat(i) + size * Random(seed, parameter->name).normal(static_cast<uint64_t>(i)));
  }
  Parameter* find(const std::string& name) {
    for (Parameter* parameter : position->parameters())
      if (parameter->name == name) return parameter;
    return nullptr;
  }

  // Of Variables, so that gradients can be taken.
  Variable run(Tape& tape, Variable x, Features features, std::span<const int32_t> tokens, bool composed = false) {
    PositionCall call{&tape, x, tokens, x.size(0), x.size(1), 0, x.size(1), composed, nullptr};
    return attend(call, features, nullptr, nullptr);
  }
  Variable run(Tape& tape, const Sequence& s, bool composed = false) {
    return run(tape, tape.constant(s.x), {tape.constant(s.q), tape.constant(s.k), tape.constant(s.v)}, s.tokens,
               composed);
  }

  // The same through a cache, in pieces of the given lengths; returns [B, T, H, D] in `arena`.
  Tensor run_cached(Arena& arena, const Sequence& s, const std::vector<int64_t>& pieces) {
    const int64_t batch = s.x.size(0), length = s.x.size(1);
    const Tensor out = empty(arena, s.q.shape(), settings.dtype);
    cached_k_ = zeros(arena, s.k.shape(), settings.dtype);
    cached_v_ = zeros(arena, s.v.shape(), settings.dtype);
    cached_gate_ = zeros(arena, {batch, length, settings.heads}, DType::f64);
    Position::State state = position->new_state(batch);
    int64_t first = 0;
    for (const int64_t piece : pieces) {
      Tape tape;
      const NoGrad no_grad(tape);
      const auto part = [&](const Tensor& x) {
        return tape.constant(contiguous(tape.arena(), x.slice(1, first, piece)));
      };
      std::vector<int32_t> tokens;
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t t = 0; t < piece; ++t) tokens.push_back(s.tokens[static_cast<size_t>(b * length + first + t)]);
      PositionCall call{&tape, part(s.x), tokens, batch, piece, first, length, false, nullptr};
      Features features{part(s.q), part(s.k), part(s.v)};
      out.slice(1, first, piece).copy_from(attend(call, features, &state, this).value());
      first += piece;
    }
    return out;
  }

 private:
  Variable attend(PositionCall call, Features features, Position::State* state, const Layer* cache) {
    const int64_t end = call.first + call.length;
    position->transform(call, features, state);
    AttentionArguments arguments;
    arguments.scale = position->logit_scale(call.total) / std::sqrt(static_cast<double>(settings.head_dim));
    arguments.bias = position->lag_bias(call, end, state);
    const auto append = [&](Variable rows, const Tensor& cached) {
      cached.slice(1, call.first, call.length).copy_from(rows.value());
      return call.tape->constant(cached.slice(1, 0, end));
    };
    if (const Variable log_gate = position->log_gate(call, state); log_gate.defined()) {
      Tensor before;
      if (cache != nullptr && call.first > 0)
        before = contiguous(call.tape->arena(), cached_gate_.select(1, call.first - 1));
      arguments.gate = cumulative_sum(log_gate, 1, before);
      if (cache != nullptr) arguments.gate = append(arguments.gate, cached_gate_);
    }
    if (cache != nullptr) {
      features.k = append(features.k, cached_k_);
      features.v = append(features.v, cached_v_);
    }
    arguments.transport = position->tile_transport(call, features, state);
    arguments.q = features.q;
    arguments.k = features.k;
    arguments.v = features.v;
    const Variable out = call.composed ? attention_composed(arguments) : attention(arguments);
    return position->restore(call, out, state);
  }

  Tensor cached_k_, cached_v_, cached_gate_;
};

// Largest |a - b| over the largest |b|.
inline double difference(const Tensor& a, const Tensor& b) {
  double worst = 0, largest = 1e-300;
  for (int64_t i = 0; i < a.elements(); ++i) {
    const double d = std::abs(a.flat(i) - b.flat(i));
    worst = std::isfinite(d) ? std::max(worst, d) : INFINITY;
    largest = std::max(largest, std::abs(b.flat(i)));
  }
  return worst / largest;
}

// out_i = restore_i(sum_j softmax_j(logit(i, .)) v_j) in double from a function of (b, h, i, j) for the logits and one
// that gives the value of j as i receives it: the straightforward quadratic loop.
template <class Logit, class Value>
Tensor plain_attention(Arena& arena, const Sequence& s, Logit&& logit, Value&& value) {
  const int64_t batch = s.q.size(0), length = s.q.size(1), heads = s.q.size(2), dim = s.q.size(3);
  const Tensor out = zeros(arena, s.q.shape(), DType::f64);
  std::vector<double> weight(static_cast<size_t>(length)), row(static_cast<size_t>(dim));
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < length; ++i) {
        double largest = -INFINITY, sum = 0;
        for (int64_t j = 0; j <= i; ++j) {
          weight[static_cast<size_t>(j)] = logit(b, h, i, j);
          largest = std::max(largest, weight[static_cast<size_t>(j)]);
        }
        for (int64_t j = 0; j <= i; ++j)
          sum += weight[static_cast<size_t>(j)] = std::exp(weight[static_cast<size_t>(j)] - largest);
        for (int64_t j = 0; j <= i; ++j) {
          value(b, h, i, j, row);
          for (int64_t d = 0; d < dim; ++d) {
            const int64_t at = ((b * length + i) * heads + h) * dim + d;
            out.set_flat(at, out.flat(at) + weight[static_cast<size_t>(j)] / sum * row[static_cast<size_t>(d)]);
          }
        }
      }
  return out;
}

// The gradients of x, q, k and v of one random sequence against differences along three directions.
inline GradientCheck check_inputs(Layer& layer, int64_t length) {
  Arena arena;
  const Sequence s = random_sequence(arena, layer.settings, 1, length);
  const auto f = [&](Tape& tape, std::span<const Variable> x) {
    return layer.run(tape, x[0], {x[1], x[2], x[3]}, s.tokens);
  };
  return check_directional(f, std::array{s.x, s.q, s.k, s.v}, 3);
}

inline std::vector<double> row_of(const Tensor& x, int64_t b, int64_t t, int64_t h) {
  std::vector<double> row;
  for (int64_t d = 0; d < x.size(3); ++d) row.push_back(x.at({b, t, h, d}));
  return row;
}
inline double inner(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace sextant::testing_layer
