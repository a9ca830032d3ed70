// A decoder-only Transformer, pre-norm:
//
//   x = tok_embed[tokens]
//   for each block:  x = x + out(attention(position(qkv(norm1(x)))));  x = x + down(gelu(up(norm2(x))))
//   logits = head(norm_f(x))
//
// Weights are row-major [out, in] and named as in the checkpoint: tok_embed.weight [V, C];
// blocks.l.{norm1,norm2}.{weight,bias} [C]; blocks.l.attn.qkv.{weight [3C, C], bias [3C]} (all of q, then k, then v;
// head h owns rows hD..(h+1)D of each); blocks.l.attn.out; blocks.l.mlp.up [4C, C]; blocks.l.mlp.down [C, 4C]; norm_f;
// lm_head.weight [V, C] only when untied.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "autograd/softmax.h"
#include "autograd/tape.h"
#include "nn/config.h"
#include "nn/self_attention.h"
#include "positional/strategy.h"

namespace sextant {

// Keys and values of the tokens seen so far, for generation and streamed evaluation.
class Cache {
 public:
  int64_t length() const { return length_; }  // tokens seen
  int64_t capacity() const { return capacity_; }
  size_t bytes() const { return arena_->used(); }

 private:
  friend class Transformer;
  std::unique_ptr<Arena> arena_ = std::make_unique<Arena>();
  std::vector<LayerCache> layers_;
  int64_t batch_ = 0, capacity_ = 0, length_ = 0, total_ = 0;
};

class Transformer {
 public:
  // Initialises from config.seed: weights N(0, 0.5 / sqrt(inputs)), the two projections onto the residual stream
  // smaller by sqrt(2 layers), embedding N(0, 0.02), gains 1, biases 0. Throws Error on a bad config.
  explicit Transformer(const ModelConfig& config);
  ~Transformer();

  const ModelConfig& config() const { return config_; }
  std::vector<Parameter*> parameters();       // in a fixed order
  std::vector<PositionConstant> constants();  // fixed tensors that belong into the checkpoint
  int64_t parameter_count();
  size_t table_bytes() const { return tables_.bytes(); }  // of what position strategies tabulated so far
  Position& position(int layer);
  // FLOP of a trained token at length T: 6 for each matrix weight, and causal attention forward once, backward 2.5
  // times.
  double training_flops_per_token(int64_t length) const;

  // Selects the composed twins of all fused operations (slow, obviously right).
  void set_composed(bool composed) { composed_ = composed; }

  // Called by each layer, first to last, right before its attention; empty: nobody looks on.
  void set_observer(AttentionObserver observer) { observer_ = std::move(observer); }

  // tokens [B * T] -> logits [B, T, V]
  Variable logits(Tape& tape, std::span<const int32_t> tokens, int64_t batch, int64_t length);
  // Mean cross-entropy in nats a token; targets [B * T]. Sets the tape's leaves to `batch`. With `part` these are some
  // sequences of a larger batch, see autograd/softmax.h.
  Variable loss(Tape& tape, std::span<const int32_t> tokens, std::span<const int32_t> targets, int64_t batch,
                int64_t length, BatchPart* part = nullptr);

  // A cache for up to `capacity` tokens a sequence. `total` is the length of the whole sequence if known (0: as far as
  // it has come).
  Cache new_cache(int64_t batch, int64_t capacity, int64_t total = 0) const;
  // The next T tokens after those in the cache, under NoGrad: logits [B, T, V], or [B, 1, V] of the last token only.
  Variable extend(Tape& tape, Cache& cache, std::span<const int32_t> tokens, int64_t length, bool last_only = false);
  // Whether a cache filled while shorter is still right at `total` tokens (not with dynamic scaling).
  bool cache_holds(int64_t total) const;

 private:
  struct Block;
  Variable hidden(Tape& tape, std::span<const int32_t> tokens, int64_t batch, int64_t length,
                  Cache* cache);  // after norm_f, [B, T, C]
  Variable head(Variable x);
  void check_tokens(std::span<const int32_t> tokens, int64_t batch, int64_t length) const;

  ModelConfig config_;
  Arena weights_;
  PositionTables tables_;
  Parameter embedding_, head_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<LayerNorm> final_norm_;
  AttentionObserver observer_;
  bool composed_ = false;
};

}  // namespace sextant
