#include "nn/self_attention.h"

#include <cmath>

#include "autograd/attention.h"
#include "autograd/reductions.h"
#include "autograd/shaping.h"
#include "nn/layer_audit.h"

namespace sextant {

namespace {

PositionSettings position_settings(Arena& weights, PositionTables& tables, const std::string& block_name, int layer,
                                   const ModelConfig& config) {
  PositionSettings settings;
  settings.heads = config.heads;
  settings.head_dim = config.head_dim();
  settings.width = config.width;
  settings.vocabulary = config.vocab;
  settings.context = config.context;
  settings.layer = layer;
  settings.dtype = config.dtype;
  settings.seed = config.seed;
  settings.weights = &weights;
  settings.tables = &tables;
  settings.prefix = block_name + ".position.";
  return settings;
}

// Puts the call's rows behind those in the cache, and gives all of them.
Variable append(Variable rows, const Tensor& cached, int64_t first) {
  cached.slice(1, first, rows.size(1)).copy_from(rows.value());
  return rows.tape().constant(cached.slice(1, 0, first + rows.size(1)), "cached");
}

}  // namespace

SelfAttention::SelfAttention(Arena& weights, PositionTables& tables, const std::string& block_name, int layer,
                             const ModelConfig& config)
    : qkv_(weights, block_name + ".attn.qkv", config.width, 3 * config.width, config.dtype),
      out_(weights, block_name + ".attn.out", config.width, config.width, config.dtype),
      position_(config.position, position_settings(weights, tables, block_name, layer, config)),
      layer_(layer),
      heads_(config.heads),
      head_dim_(config.head_dim()),
      dtype_(config.dtype) {}

void SelfAttention::initialise(uint64_t seed, double qkv_deviation, double out_deviation) {
  qkv_.initialise(seed, qkv_deviation);
  out_.initialise(seed, out_deviation);
}

Variable SelfAttention::operator()(Variable x, const Call& call) {
  const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
  LayerCache* cache = call.cache;
  Position::State* state = cache == nullptr ? nullptr : &cache->state;
  PositionCall position{&x.tape(), x, call.tokens, batch, length, call.first, call.total, call.composed, nullptr};

  const auto [q, k, v] = split_qkv(qkv_(x, call.composed), heads_);
  Features features{q, k, v};
  position_.transform(position, features, state);

  AttentionArguments arguments;
  arguments.scale = position_.logit_scale(call.total) / std::sqrt(static_cast<double>(head_dim_));
  arguments.bias = position_.lag_bias(position, call.first + length, state);
  if (const Variable log_gate = position_.log_gate(position, state); log_gate.defined()) {
    Tensor before;  // F up to the first of these tokens
    if (cache != nullptr && call.first > 0)
      before = contiguous(x.tape().arena(), cache->gate.select(1, call.first - 1));
    arguments.gate = cumulative_sum(log_gate, 1, before);
    if (cache != nullptr) arguments.gate = append(arguments.gate, cache->gate, call.first);
  }
  if (cache != nullptr) {
    features.k = append(features.k, cache->k, call.first);
    features.v = append(features.v, cache->v, call.first);
  }
  arguments.transport = position_.tile_transport(position, features, state);
  arguments.q = features.q;
  arguments.k = features.k;
  arguments.v = features.v;

  if (call.observer != nullptr && *call.observer) (*call.observer)({layer_, position_, position, arguments});
  const bool composed = call.composed && arguments.transport == nullptr;
  const Variable attended = composed ? attention_composed(arguments) : attention(arguments);
  const Variable restored = position_.restore(position, attended, state);
  return out_(reshape(contiguous(restored), {batch, length, width}), call.composed);
}

LayerCache SelfAttention::new_cache(Arena& arena, int64_t batch, int64_t capacity) const {
  // In memory [B, H, capacity, D]: a new token reads each head's rows one after another.
  const auto rows = [&] { return empty(arena, {batch, heads_, capacity, head_dim_}, dtype_).transpose(1, 2); };
  return {rows(), rows(), empty(arena, {batch, capacity, heads_}, DType::f64), position_.new_state(batch)};
}

std::vector<Parameter*> SelfAttention::parameters() {
  std::vector<Parameter*> all = qkv_.parameters();
  for (Parameter* parameter : out_.parameters()) all.push_back(parameter);
  for (Parameter* parameter : position_.parameters()) all.push_back(parameter);
  return all;
}

AUDIT(SelfAttention, "layer") {
  const auto one = [&](const std::string& spec, int64_t batch, int64_t length) {
    const auto make = [spec](Arena& weights, PositionTables& tables, DType dtype) {
      const ModelConfig config{
          .vocab = 7, .layers = 1, .width = 8, .heads = 2, .context = 6, .position = spec, .dtype = dtype, .data = ""};
      return std::make_unique<SelfAttention>(weights, tables, "blocks.0", 0, config);
    };
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < batch * length; ++i) tokens.push_back(static_cast<int32_t>((3 * i + 1) % 7));
    const auto call = [tokens](SelfAttention& layer, Tape&, std::span<const Variable> x, bool composed) {
      return layer(x[0], {.tokens = tokens, .total = x[0].size(1), .composed = composed});
    };
    return layer_case<SelfAttention>(arena, spec + (length == 1 ? ", one token" : ""),
                                     {sample(arena, {batch, length, 8})}, make, call);
  };
  return {one("rope", 2, 5), one("none", 1, 1), one("transport(kind=learned,values=1)+affine+gate", 2, 4)};
}

}  // namespace sextant
