// Causal self-attention of one block: qkv, the position strategy around the attention operation, the output projection.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "autograd/attention.h"
#include "nn/config.h"
#include "nn/modules.h"
#include "positional/strategy.h"

namespace sextant {

// What one layer remembers of the tokens it has seen. [B, capacity, H, D]; keys and values as the strategy transformed
// them.
struct LayerCache {
  Tensor k, v;  // [B, capacity, H, D]
  Tensor gate;  // [B, capacity, H] f64: the prefix sums F, when a term gates
  Position::State state;
};

// What the attention of a layer is about to compute, for diagnostics. `call` has no state.
struct AttentionView {
  int layer;
  Position& position;
  const PositionCall& call;
  const AttentionArguments& arguments;  // features as the strategy transformed them, cached keys included
};
using AttentionObserver = std::function<void(const AttentionView&)>;

class SelfAttention {
 public:
  SelfAttention(Arena& weights, PositionTables& tables, const std::string& block_name, int layer,
                const ModelConfig& config);
  void initialise(uint64_t seed, double qkv_deviation, double out_deviation);

  // x is the normalised input [B, T, C] of tokens at positions first .. first+T-1, `total` the whole length where it is
  // known. With a cache, `first` tokens are in it already and these are appended.
  struct Call {
    std::span<const int32_t> tokens;
    int64_t first = 0, total = 0;
    bool composed = false;
    LayerCache* cache = nullptr;
    const AttentionObserver* observer = nullptr;
  };
  Variable operator()(Variable x, const Call& call);

  LayerCache new_cache(Arena& arena, int64_t batch, int64_t capacity) const;
  Position& position() { return position_; }
  const Position& position() const { return position_; }
  std::vector<Parameter*> parameters();

 private:
  Linear qkv_, out_;
  Position position_;
  int layer_;
  int64_t heads_, head_dim_;
  DType dtype_;
};

}  // namespace sextant
