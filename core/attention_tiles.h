// What the forward and the backward of attention share (core/attention.cpp, core/attention_backward.cpp): one thread's
// buffers, and the walk of one query tile over its key tiles. Internal to core/.
#pragma once

#include <algorithm>
#include <limits>

#include "core/attention.h"
#include "core/cpu.h"
#include "core/simd/attention.h"
#include "core/tile_transport.h"

namespace sextant::attention_tiles {

constexpr int64_t tile = attention_tile;
static_assert(tile == TileTransport::tile);
constexpr double log2e = 0x1.71547652b82fep0;

template <class T>
const AttentionTable<T>& attention_table() {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return isa_avx512::attention_table(T{});
  if (isa() == Isa::avx2) return isa_avx2::attention_table(T{});
#endif
  return isa_plain::attention_table(T{});
}

// Hands out aligned pieces of one block; without a block it only counts how long the block must be.
class Carver {
 public:
  explicit Carver(std::byte* block = nullptr) : block_(block) {}
  template <class T>
  T* take(int64_t count) {
    T* piece = block_ == nullptr ? nullptr : reinterpret_cast<T*>(block_ + used_);
    used_ += (static_cast<size_t>(count) * sizeof(T) + Arena::alignment - 1) / Arena::alignment * Arena::alignment;
    return piece;
  }
  size_t used() const { return used_; }

 private:
  std::byte* block_;
  size_t used_ = 0;
};

struct Sizes {
  int64_t batch, heads, queries, keys, depth;
  int64_t first_query() const { return keys - queries; }
  int64_t first_tile() const { return first_query() / tile; }
  int64_t end_tile() const { return (keys + tile - 1) / tile; }
};

inline Sizes sizes_of(const AttentionInputs& inputs) {
  return {inputs.q.size(0), inputs.q.size(2), inputs.q.size(1), inputs.k.size(1), inputs.q.size(3)};
}

template <class T>
T* row_of(const Tensor& x, int64_t batch, int64_t position, int64_t head) {
  return x.data<T>() + batch * x.stride(0) + position * x.stride(1) + head * x.stride(2);
}

// What one thread needs for one query tile on its way over the key tiles.
template <class T>
struct Workspace {
  QueryTile<T> query{};
  KeyTile<T> key{};
  T* q;  // query.q and the rest of `key` and `query`, as what is written to
  T* lag_bias;
  double* query_gate;
  double* key_gate;
  T *raw = nullptr, *carried = nullptr, *rows = nullptr, *key_rows = nullptr;  // transport only

  Workspace(Carver& carver, const AttentionInputs& inputs) {
    const int64_t depth = inputs.q.size(3);
    query.depth = depth;
    q = carver.take<T>(depth * tile);
    query.q = q;
    T* scores = carver.take<T>(attention_scores);
    query.scores = scores == nullptr ? nullptr : scores + 16;
    query.tile_maximum = carver.take<T>(tile);
    query.maximum = carver.take<T>(tile);
    query.sum = carver.take<T>(tile);
    query.out = carver.take<T>(depth * tile);
    query.tile_out = carver.take<T>(depth * tile);
    lag_bias = inputs.bias.defined() ? carver.take<T>(2 * tile) : nullptr;
    query_gate = inputs.gate.defined() ? carver.take<double>(tile) : nullptr;
    key_gate = inputs.gate.defined() ? carver.take<double>(tile) : nullptr;
    query.query_gate = query_gate;
    if (inputs.transport != nullptr) {
      raw = carver.take<T>(depth * tile);
      carried = carver.take<T>(depth * tile);
      rows = carver.take<T>(tile * tile);
      key_rows = carver.take<T>(depth * tile);
    }
  }
};

// One (batch, head) and query tile: which rows they are, and moving from key tile to key tile.
template <class T>
struct Walk {
  const AttentionTable<T>& table;
  const AttentionInputs& inputs;
  const Sizes sizes;
  int64_t batch, head, query_tile;
  bool leads = true;  // asks for the next key tile; false where another walk beside this one does, or it goes leftwards

  int64_t begin() const { return std::max(query_tile * tile, sizes.first_query()); }  // absolute positions
  int64_t end() const { return std::min((query_tile + 1) * tile, sizes.keys); }
  int64_t rows() const { return end() - begin(); }
  int64_t index() const { return begin() - sizes.first_query(); }  // of the first row in q and out

  const T* q() const { return row_of<T>(inputs.q, batch, index(), head); }

  void start(Workspace<T>& work) const {
    work.query.first = begin() - query_tile * tile;
    work.query.last = end() - query_tile * tile;
    if (work.query_gate != nullptr) {
      for (int64_t i = 0; i < tile; ++i) {
        work.query_gate[i] = gate(std::clamp(query_tile * tile + i, begin(), end() - 1));
      }
    }
  }

  void enter(Workspace<T>& work, int64_t key_tile) const {
    KeyTile<T>& key = work.key;
    const int64_t first = key_tile * tile;
    key.keys = std::min(tile, sizes.keys - first);
    key.diagonal = key_tile == query_tile;
    key.k = row_of<T>(inputs.k, batch, first, head);
    key.k_row = inputs.k.stride(1);
    key.v = row_of<T>(inputs.v, batch, first, head);
    key.v_row = inputs.v.stride(1);
    key.lag_bias = work.lag_bias;
    key.key_gate = work.key_gate;
    if (key_tile < query_tile && leads) prefetch(first + tile);
    if (work.lag_bias != nullptr) copy_bias(work.lag_bias, (query_tile - key_tile) * tile - tile);
    if (work.key_gate != nullptr) {
      for (int64_t j = 0; j < key.keys; ++j) work.key_gate[j] = gate(first + j);
    }
  }

  TilePair pair(int64_t key_tile) const {
    return {batch, head, query_tile, key_tile, begin(), rows(), std::min(tile, sizes.keys - key_tile * tile)};
  }

 private:
  double gate(int64_t position) const { return *row_of<double>(inputs.gate, batch, position, head); }

  // The rows of one head lie far apart, where the hardware does not look ahead; with few queries a tile there is little
  // else to hide that.
  void prefetch(int64_t first) const {
    const int64_t line = Arena::alignment / static_cast<int64_t>(sizeof(T));
    for (const Tensor& x : {inputs.k, inputs.v}) {
      const T* row = row_of<T>(x, batch, first, head);
      for (int64_t j = 0; j < std::min(tile, sizes.keys - first); ++j, row += x.stride(1)) {
        for (int64_t d = 0; d < sizes.depth; d += line) __builtin_prefetch(row + d, 0, 2);
      }
    }
  }

  // Lags first_lag .. first_lag + 127; those that no pair of positions has get 0.
  void copy_bias(T* to, int64_t first_lag) const {
    const T* bias = inputs.bias.data<T>() + head * inputs.bias.stride(0);
    const int64_t begin = std::max<int64_t>(0, -first_lag), end = std::min(2 * tile, sizes.keys - first_lag);
    std::fill(to, to + begin, T(0));
    for (int64_t n = begin; n < end; ++n) to[n] = bias[first_lag + n] * static_cast<T>(log2e);
    std::fill(to + end, to + 2 * tile, T(0));
  }
};

template <class T>
Tensor matrix(T* data, int64_t rows, int64_t columns) {
  return Tensor::wrap(data, {rows, columns}, dtype_of<T>);
}

// The scores that a transport gives for its diagonal tile, into the transposed score tile.
template <class T>
void put_diagonal_scores(const Walk<T>& walk, Workspace<T>& work, const T* carried, T factor) {
  const TilePair pair = walk.pair(walk.query_tile);
  walk.table.copy_rows(work.key.k, work.key.k_row, pair.keys, walk.sizes.depth, T(1), work.key_rows, walk.sizes.depth,
                       false);
  walk.inputs.transport->diagonal_scores(pair, matrix(const_cast<T*>(carried), pair.queries, walk.sizes.depth),
                                         matrix(work.key_rows, pair.keys, walk.sizes.depth),
                                         matrix(work.rows, pair.queries, pair.keys));
  for (int64_t j = 0; j < pair.keys; ++j) {
    T* scores = work.query.scores + j * attention_score_row;
    std::fill(scores, scores + tile, T(0));
    for (int64_t i = std::max<int64_t>(0, j - work.query.first); i < pair.queries; ++i) {
      scores[work.query.first + i] = factor * work.rows[i * pair.keys + j];
    }
  }
}

// Throw Error, naming what and the shapes, when the arguments do not fit together.
void check(const AttentionInputs& inputs, const Tensor& out, const Tensor& lse);
void require_rows(const Tensor& x, const Shape& shape, DType dtype, const char* what);  // its last dimension contiguous
void require_lags(const Tensor& x, const Sizes& sizes, DType dtype, const char* what);  // [H, >= S]

}  // namespace sextant::attention_tiles
