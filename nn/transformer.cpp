#include "nn/transformer.h"

#include <cmath>

#include "autograd/products.h"
#include "autograd/shaping.h"
#include "core/error.h"
#include "nn/layer_audit.h"

namespace sextant {

struct Transformer::Block {
  LayerNorm norm1;
  SelfAttention attention;
  LayerNorm norm2;
  Mlp mlp;

  Block(Arena& weights, PositionTables& tables, int layer, const ModelConfig& config)
      : Block(weights, tables, "blocks." + std::to_string(layer), layer, config) {}

 private:
  Block(Arena& weights, PositionTables& tables, const std::string& name, int layer, const ModelConfig& config)
      : norm1(weights, name + ".norm1", config.width, config.norm_epsilon, config.dtype),
        attention(weights, tables, name, layer, config),
        norm2(weights, name + ".norm2", config.width, config.norm_epsilon, config.dtype),
        mlp(weights, name + ".mlp", config.width, config.dtype) {}
};

Transformer::Transformer(const ModelConfig& config) : config_(config) {
  config.check();
  embedding_ = make_parameter(weights_, "tok_embed.weight", {config.vocab, config.width}, config.dtype, true);
  fill_normal(embedding_.value, Random(config.seed, "init/tok_embed.weight"), 0.0, 0.02);
  const double deviation = 0.5 / std::sqrt(static_cast<double>(config.width));
  const double onto_residual = deviation / std::sqrt(2.0 * static_cast<double>(config.layers));
  for (int layer = 0; layer < config.layers; ++layer) {
    blocks_.push_back(std::make_unique<Block>(weights_, tables_, layer, config));
    blocks_.back()->attention.initialise(config.seed, deviation, onto_residual);
    blocks_.back()->mlp.initialise(config.seed, deviation, onto_residual / 2);
  }
  final_norm_ = std::make_unique<LayerNorm>(weights_, "norm_f", config.width, config.norm_epsilon, config.dtype);
  if (!config.tied) {
    head_ = make_parameter(weights_, "lm_head.weight", {config.vocab, config.width}, config.dtype, true);
    fill_normal(head_.value, Random(config.seed, "init/lm_head.weight"), 0.0, 0.02);
  }
}

Transformer::~Transformer() = default;

std::vector<Parameter*> Transformer::parameters() {
  std::vector<Parameter*> all{&embedding_};
  const auto append = [&](const std::vector<Parameter*>& more) { all.insert(all.end(), more.begin(), more.end()); };
  for (const auto& block : blocks_) {
    append(block->norm1.parameters());
    append(block->attention.parameters());
    append(block->norm2.parameters());
    append(block->mlp.parameters());
  }
  append(final_norm_->parameters());
  if (!config_.tied) all.push_back(&head_);
  return all;
}

std::vector<PositionConstant> Transformer::constants() {
  std::vector<PositionConstant> all;
  for (const auto& block : blocks_)
    for (PositionConstant& constant : block->attention.position().constants()) all.push_back(std::move(constant));
  return all;
}

int64_t Transformer::parameter_count() {
  int64_t count = 0;
  for (const Parameter* parameter : parameters()) count += parameter->value.elements();
  return count;
}

Position& Transformer::position(int layer) {
  return blocks_.at(static_cast<size_t>(layer))->attention.position();
}

double Transformer::training_flops_per_token(int64_t length) const {
  const double width = static_cast<double>(config_.width), layers = static_cast<double>(config_.layers);
  const double matrices = layers * 12 * width * width + static_cast<double>(config_.vocab) * width;
  const double pairs = 0.5 * static_cast<double>(length + 1);  // keys a query sees, on average
  return 6 * matrices + 3.5 * layers * 4 * width * pairs;
}

void Transformer::check_tokens(std::span<const int32_t> tokens, int64_t batch, int64_t length) const {
  require(batch >= 1 && length >= 1 && static_cast<int64_t>(tokens.size()) == batch * length,
          "{} tokens for {} sequences of {}, must be {}", tokens.size(), batch, length, batch * length);
}

Variable Transformer::hidden(Tape& tape, std::span<const int32_t> tokens, int64_t batch, int64_t length, Cache* cache) {
  check_tokens(tokens, batch, length);
  const int64_t first = cache == nullptr ? 0 : cache->length_;
  const int64_t total = std::max(first + length, cache == nullptr ? 0 : cache->total_);
  const Variable table = tape.parameter(embedding_);
  Variable x =
      composed_ ? embedding_composed(table, tokens, {batch, length}) : embedding(table, tokens, {batch, length});
  Variable normalised = blocks_[0]->norm1(x, composed_);
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    Block& block = *blocks_[layer];
    const Variable attended = block.attention(
        normalised, {tokens, first, total, composed_, cache == nullptr ? nullptr : &cache->layers_[layer], &observer_});
    std::tie(x, normalised) = std::tuple_cat(block.norm2.after_sum(x, attended, composed_));
    const Variable widened = block.mlp(normalised, composed_);
    LayerNorm& next = layer + 1 < blocks_.size() ? blocks_[layer + 1]->norm1 : *final_norm_;
    std::tie(x, normalised) = std::tuple_cat(next.after_sum(x, widened, composed_));
  }
  return normalised;
}

Variable Transformer::head(Variable x) {
  const Variable weight = x.tape().parameter(config_.tied ? embedding_ : head_);
  return composed_ ? linear_composed(x, weight, {}) : linear(x, weight, {});
}

Variable Transformer::logits(Tape& tape, std::span<const int32_t> tokens, int64_t batch, int64_t length) {
  tape.set_leaves(batch);
  return head(hidden(tape, tokens, batch, length, nullptr));
}

Variable Transformer::loss(Tape& tape, std::span<const int32_t> tokens, std::span<const int32_t> targets, int64_t batch,
                           int64_t length, BatchPart* part) {
  const Variable scores = logits(tape, tokens, batch, length);
  return composed_ ? cross_entropy_composed(scores, targets, part) : cross_entropy(scores, targets, part);
}

Cache Transformer::new_cache(int64_t batch, int64_t capacity, int64_t total) const {
  require(batch >= 1 && capacity >= 1, "a cache for {} sequences of {} tokens, both must be at least 1", batch,
          capacity);
  Cache cache;
  cache.batch_ = batch;
  cache.capacity_ = capacity;
  cache.total_ = total;
  for (const auto& block : blocks_) cache.layers_.push_back(block->attention.new_cache(*cache.arena_, batch, capacity));
  return cache;
}

Variable Transformer::extend(Tape& tape, Cache& cache, std::span<const int32_t> tokens, int64_t length,
                             bool last_only) {
  require(cache.length_ + length <= cache.capacity_, "{} tokens more in a cache that holds {} of at most {}", length,
          cache.length_, cache.capacity_);
  const NoGrad guard(tape);
  Variable x = hidden(tape, tokens, cache.batch_, length, &cache);
  cache.length_ += length;
  if (last_only) x = contiguous(slice(x, 1, length - 1, 1));
  return head(x);
}

bool Transformer::cache_holds(int64_t total) const {
  return blocks_[0]->attention.position().keys_hold(total);
}

AUDIT(Transformer, "layer") {
  const auto one = [&](const std::string& label, ModelConfig config, int64_t batch, int64_t length) {
    const auto make = [config](Arena&, PositionTables&, DType dtype) {
      ModelConfig own = config;
      own.dtype = dtype;
      return std::make_unique<Transformer>(own);
    };
    std::vector<int32_t> tokens, targets;
    for (int64_t i = 0; i < batch * length; ++i) {
      tokens.push_back(static_cast<int32_t>((5 * i + 1) % config.vocab));
      targets.push_back(static_cast<int32_t>((7 * i + 3) % config.vocab));
    }
    const auto call = [=](Transformer& model, Tape& tape, std::span<const Variable>, bool composed) {
      model.set_composed(composed);
      return model.loss(tape, tokens, targets, batch, length);
    };
    AuditCase result = layer_case<Transformer>(arena, label, {}, make, call);
    result.large = length > 64;
    return result;
  };
  const ModelConfig small{
      .vocab = 11, .layers = 2, .width = 12, .heads = 2, .context = 6, .position = "rope", .data = ""};
  ModelConfig untied = small, wide = small;
  untied.tied = false;
  untied.position = "transport(kind=path)+pj-bias";
  wide.width = 64;
  wide.heads = 4;
  wide.vocab = 67;
  return {one("tied, rope", small, 2, 6), one("untied, path and pj-bias", untied, 2, 5), one("one token", small, 1, 1),
          one("more than a tile", wide, 2, 70)};
}

}  // namespace sextant
