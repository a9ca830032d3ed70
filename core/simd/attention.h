// The arithmetic of one (query tile, key tile) of attention, as core/attention.cpp sees it: one table of functions for
// each instruction set.
//
// Everything is transposed, keys down and queries across, S^T [keys j, queries i], and vectorised over the queries. The
// running maximum and sum of a query, its masks and its exponentials are then lanes of vectors and need no reduction
// across them; the lag bias of key j is a contiguous slice, since the lag i - j rises with i. Tiles are 64 positions,
// at absolute multiples of 64; a lane is a query's place in its tile. What a lane computes depends on its query and on
// the keys alone, not on the other lanes in use: hence a query's bits are the same whether it comes alone, with a
// cache, or in a full pass.
#pragma once

#include <stdint.h>

namespace sextant {

constexpr int64_t attention_tile = 64;
// From one row of a score tile to the next; the 16 columns between are zeros where lag_gradient reads them.
constexpr int64_t attention_score_row = 80;
constexpr int64_t attention_scores = 16 + attention_tile * attention_score_row;  // elements; the first row is at 16

// The keys of one tile as one query tile meets them.
template <class T>
struct KeyTile {
  int64_t keys;   // 1 to 64
  bool diagonal;  // lane i sees keys 0..i only; the last lane in use is key keys - 1
  const T* k;     // [keys, D], rows k_row apart
  int64_t k_row;
  const T* v;
  int64_t v_row;
  const T* lag_bias;       // [128]: log2(e) bias of lag i - j at 64 + i - j; nullptr without
  const double* key_gate;  // [keys]: F of each key; nullptr without
};

// A query tile on its way over the key tiles. Lanes [first, last) hold queries.
template <class T>
struct QueryTile {
  int64_t depth;  // D
  int64_t first, last;
  const T* q;                // [D, 64], times scale log2(e); lanes not in use are zero
  const double* query_gate;  // [64]: F of each query, finite in all lanes; nullptr without
  T* scores;                 // [64, 80] log2(e) logit, then probabilities; the scratch of forward
  T* tile_maximum;           // [64] of this tile's scores; nullptr in the backward
  T* maximum;                // [64] running, in units of log2
  T* sum;                    // [64] running, of 2^(score - maximum)
  T* out;                    // [D, 64] running, sum of 2^(score - maximum) v
  T* tile_out;               // [D, 64] that of one key tile; the scratch of forward
};

template <class T>
struct QueryTileBackward {
  const T* dout;       // [D, 64]; lanes not in use are zero
  const T* dout_rows;  // [64, D] from lane 0 on; only rows of lanes in use are read
  int64_t dout_row;
  const T* q_rows;  // [64, D] likewise
  int64_t q_row;
  const T* lse;    // [64], in units of log2; +infinity in lanes not in use and where no key is seen
  const T* delta;  // [64]: <dout_i, out_i>
  T* dscores;      // [64, 80]: dLoss/dlogit; zero outside the lanes in use
  T* dq;           // [D, 64] running: sum of dscores k, to be scaled
};

template <class T>
struct AttentionTable {
  // S^T = K Q^T with bias, gate and mask, into query.scores. With `given` the products are in query.scores already.
  void (*scores)(const QueryTile<T>& query, const KeyTile<T>& key, bool given);
  // Running softmax: takes query.scores into maximum, sum and out.
  void (*accumulate)(const QueryTile<T>& query, const KeyTile<T>& key);
  // scores and accumulate for a query tile with one lane in use, as in generation: vectorised over the keys, and what
  // is computed, and in which order, is the same, so that the lane's bits are.
  void (*accumulate_one)(const QueryTile<T>& query, const KeyTile<T>& key);
  // out rows [last - first, D] = out / sum, 0 where sum is 0; lse [last - first] in nats.
  void (*finish)(const QueryTile<T>& query, T* out, int64_t out_row, T* lse);

  // Turns query.scores (see `scores`) into probabilities; dscores, and dv [keys, D] = P^T dout, or += with `add`.
  void (*backward_scores)(const QueryTile<T>& query, const QueryTileBackward<T>& backward, const KeyTile<T>& key, T* dv,
                          bool add);
  // dk [keys, D] = dS^T q, or += with `add`, dq += k^T dS^T; both still to be scaled.
  void (*backward_products)(const QueryTile<T>& query, const QueryTileBackward<T>& backward, const KeyTile<T>& key,
                            T* dk, bool add);
  // sums[64 + i - j] += dS[i, j], in double; sums [128]
  void (*lag_gradient)(const T* dscores, const KeyTile<T>& key, double* sums);
  // dgate[j] -= sum over i of dS[i, j]. (The F_i of the query adds the same to all its logits, which no softmax sees:
  // its gradient is 0.)
  void (*gate_gradient)(const T* dscores, const KeyTile<T>& key, double* dgate);

  // columns [D, 64], lanes [first, last) = factor * rows [last - first, D]; the other lanes zero
  void (*pack)(const T* rows, int64_t row, int64_t depth, int64_t first, int64_t last, T factor, T* columns);
  // rows [last - first, D] = factor * columns, or += with `add`
  void (*unpack)(const T* columns, int64_t depth, int64_t first, int64_t last, T factor, T* rows, int64_t row,
                 bool add);
  // to = factor * from, or += with `add`, both [rows, D]
  void (*copy_rows)(const T* from, int64_t from_row, int64_t rows, int64_t depth, T factor, T* to, int64_t to_row,
                    bool add);
  // delta[i] = sum over d of a[d, i] b[d, i], both [D, 64]
  void (*dot_columns)(const T* a, const T* b, int64_t depth, T* delta);
};

namespace isa_plain {
const AttentionTable<float>& attention_table(float);
const AttentionTable<double>& attention_table(double);
}  // namespace isa_plain
namespace isa_avx2 {
const AttentionTable<float>& attention_table(float);
const AttentionTable<double>& attention_table(double);
}  // namespace isa_avx2
namespace isa_avx512 {
const AttentionTable<float>& attention_table(float);
const AttentionTable<double>& attention_table(double);
}  // namespace isa_avx512

}  // namespace sextant
