// Attention's inner loops: scores, running softmax, and their gradients, on transposed tiles.
#include "core/simd/attention.h"

#include "core/simd/gemm_micro.h"
#include "core/simd/vector_math.h"

namespace sextant::SEXTANT_ISA {

namespace {

constexpr int64_t tile = attention_tile, score_row = attention_score_row;

// Keys are taken 16 at a time: on the diagonal tile a block of keys skips the vectors of queries before it.
constexpr int64_t key_block = 16;

#if defined(__AVX512F__)
constexpr int most_vectors = 4, sums = 16;
#else
constexpr int most_vectors = 2, sums = 8;
#endif

// The vectors of queries [begin, end) that the block of keys from first_key on meets. There is at least one, since the
// diagonal tile's last query sees its last key.
struct VectorRange {
  int64_t begin, end;
};
template <class T>
VectorRange vectors_of(const QueryTile<T>& query, const KeyTile<T>& key, int64_t first_key) {
  const int64_t in_use = query.first / lanes<T>, seeing = key.diagonal ? first_key / lanes<T> : 0;
  return {in_use > seeing ? in_use : seeing, (query.last + lanes<T> - 1) / lanes<T>};
}

template <class T>
SEXTANT_INLINE M<T> lane_numbers() {
  M<T> numbers;
  for (int i = 0; i < lanes<T>; ++i) numbers[i] = i;
  return numbers;
}

// ---- scores -------------------------------------------------------------------------------------------------------

// What is added to the products of one block of keys: the gate's F_i - F_j, from F relative to that of the block's
// first key, each in two pieces of T. Between two keys with a drop of thousands before them the high pieces are large
// and cancel (exactly, where they are that near), so the low ones must come along. The reference is the same whoever
// else is computed.
template <class T>
struct Terms {
  alignas(64) T gate[tile], gate_rest[tile];              // F_i - F_reference
  T gate_of_key[key_block], gate_rest_of_key[key_block];  // F_j - F_reference
};

constexpr double log2e = 0x1.71547652b82fep0;

// f in two pieces. What no T can hold is cut off, so that differences stay numbers.
template <class T>
SEXTANT_INLINE void split_gate(double f, T& high, T& rest) {
  constexpr double most = sizeof(T) == sizeof(float) ? 1e38 : 1e300;
  const double held = f > most ? most : f < -most ? -most : f;
  high = static_cast<T>(held);
  rest = static_cast<T>(held - static_cast<double>(high));
}

// log2(e) (F_i - F_j), of vectors or single numbers. Every path rounds as this one does.
template <class T, class Numbers>
SEXTANT_INLINE Numbers gate_difference(Numbers query, Numbers query_rest, Numbers key, Numbers key_rest) {
  return ((query - key) + (query_rest - key_rest)) * static_cast<T>(log2e);
}

// F of the block's first key; a double takes F as it is, whose differences are the exact ones.
template <class T>
SEXTANT_INLINE double gate_reference(const KeyTile<T>& key, int64_t first_key) {
  return sizeof(T) == sizeof(float) ? key.key_gate[first_key] : 0.0;
}

template <class T>
void prepare_gate(const QueryTile<T>& query, const KeyTile<T>& key, int64_t first_key, VectorRange range,
                  Terms<T>& terms) {
  const double reference = gate_reference<T>(key, first_key);
  for (int64_t i = range.begin * lanes<T>; i < range.end * lanes<T>; ++i)
    split_gate(query.query_gate[i] - reference, terms.gate[i], terms.gate_rest[i]);
  for (int64_t j = 0; j < key_block && first_key + j < key.keys; ++j)
    split_gate(key.key_gate[first_key + j] - reference, terms.gate_of_key[j], terms.gate_rest_of_key[j]);
}

template <class T, int Rows, int Vectors>
SEXTANT_INLINE void score_tile(const QueryTile<T>& query, const KeyTile<T>& key, bool given, const Terms<T>& terms,
                               int64_t first_key, int64_t row, int64_t vector) {
  const int64_t j0 = first_key + row, i0 = vector * lanes<T>;
  V<T> sum[Rows][Vectors];
  T* scores = query.scores + j0 * score_row + i0;
  if (given) {
    for (int j = 0; j < Rows; ++j) {
      for (int c = 0; c < Vectors; ++c) sum[j][c] = load(scores + j * score_row + c * lanes<T>);
    }
  } else {
#pragma GCC unroll 16
    for (int j = 0; j < Rows; ++j) {
#pragma GCC unroll 4
      for (int c = 0; c < Vectors; ++c) sum[j][c] = V<T>{};
    }
    const T* k = key.k + j0 * key.k_row;
    const T* q = query.q + i0;
    int64_t d = 0;
    for (; d + 4 <= query.depth; d += 4)
      micro<T, Rows, Vectors, false>(4, k + d, key.k_row, 1, q + d * tile, tile, Tail<T>(1), sum);
    micro<T, Rows, Vectors, false>(query.depth - d, k + d, key.k_row, 1, q + d * tile, tile, Tail<T>(1), sum);
  }
  if (key.lag_bias != nullptr) {
    const T* bias = key.lag_bias + tile + i0 - j0;
#pragma GCC unroll 16
    for (int j = 0; j < Rows; ++j) {
#pragma GCC unroll 4
      for (int c = 0; c < Vectors; ++c) sum[j][c] += load(bias - j + c * lanes<T>);
    }
  }
  if (key.key_gate != nullptr) {
#pragma GCC unroll 16
    for (int j = 0; j < Rows; ++j) {
      const V<T> of_key = broadcast(terms.gate_of_key[row + j]), rest = broadcast(terms.gate_rest_of_key[row + j]);
#pragma GCC unroll 4
      for (int c = 0; c < Vectors; ++c) {
        const int64_t i = i0 + c * lanes<T>;
        sum[j][c] += gate_difference<T>(load(terms.gate + i), load(terms.gate_rest + i), of_key, rest);
      }
    }
  }
  if (key.diagonal && i0 < j0 + Rows - 1) {
    const V<T> hidden = broadcast(static_cast<T>(-__builtin_inf()));
#pragma GCC unroll 16
    for (int j = 0; j < Rows; ++j) {
#pragma GCC unroll 4
      for (int c = 0; c < Vectors; ++c) {
        const M<T> before = lane_numbers<T>() < M<T>{} + static_cast<decltype(M<T>{}[0])>(j0 + j - i0 - c * lanes<T>);
        sum[j][c] = select<T>(before, hidden, sum[j][c]);
      }
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < Rows; ++j) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) store(scores + j * score_row + c * lanes<T>, sum[j][c]);
  }
  if (query.tile_maximum == nullptr) return;
#pragma GCC unroll 4
  for (int c = 0; c < Vectors; ++c) {
    V<T> largest = load(query.tile_maximum + i0 + c * lanes<T>);
#pragma GCC unroll 16
    for (int j = 0; j < Rows; ++j) largest = max<T>(sum[j][c], largest);
    store(query.tile_maximum + i0 + c * lanes<T>, largest);
  }
}

template <class T, int Rows, int Vectors>
void score_rows(const QueryTile<T>& query, const KeyTile<T>& key, bool given, const Terms<T>& terms, int64_t first_key,
                int64_t row, int64_t rows, int64_t vector) {
  for (; row + Rows <= rows; row += Rows)
    score_tile<T, Rows, Vectors>(query, key, given, terms, first_key, row, vector);
  if constexpr (Rows > 1) {
    if (row < rows) score_rows<T, Rows / 2, Vectors>(query, key, given, terms, first_key, row, rows, vector);
  }
}

template <class T, int Vectors>
void score_vectors(const QueryTile<T>& query, const KeyTile<T>& key, bool given, const Terms<T>& terms,
                   int64_t first_key, int64_t rows, VectorRange range) {
  constexpr int row_tile = Vectors == 1 ? sums : Vectors == 2 ? sums / 2 : 4;
  for (; range.begin + Vectors <= range.end; range.begin += Vectors) {
    score_rows<T, row_tile, Vectors>(query, key, given, terms, first_key, 0, rows, range.begin);
  }
  if constexpr (Vectors > 1) {
    if (range.begin < range.end) score_vectors<T, Vectors - 1>(query, key, given, terms, first_key, rows, range);
  }
}

template <class T>
void scores(const QueryTile<T>& query, const KeyTile<T>& key, bool given) {
  Terms<T> terms;
  if (query.tile_maximum != nullptr) {
    for (int64_t i = 0; i < tile; i += lanes<T>)
      store(query.tile_maximum + i, broadcast(static_cast<T>(-__builtin_inf())));
  }
  for (int64_t first_key = 0; first_key < key.keys; first_key += key_block) {
    const int64_t rows = key.keys - first_key < key_block ? key.keys - first_key : key_block;
    const VectorRange range = vectors_of(query, key, first_key);
    if (key.key_gate != nullptr) prepare_gate(query, key, first_key, range, terms);
    score_vectors<T, most_vectors>(query, key, given, terms, first_key, rows, range);
  }
}

// ---- running softmax ----------------------------------------------------------------------------------------------

// With m the new maximum and m' the old one: sum = 2^(m' - m) sum + sum over keys of p, out likewise, p = 2^(score -
// m). While everything a query has seen is hidden m is -infinity, and 0 is taken instead, which leaves all p at 0. Both
// sums are formed of this tile alone before they are added: one chain over tens of thousands of keys would round each p
// and p v to the digits of its running sum, and of nearly uniform attention leave three digits of f32.
template <class T>
void accumulate(const QueryTile<T>& query, const KeyTile<T>& key) {
  const VectorRange all = vectors_of(query, key, 0);
  alignas(64) T decays[tile];
  for (int64_t vector = all.begin; vector < all.end; ++vector) {
    const int64_t i = vector * lanes<T>;
    int64_t keys = key.keys;
    if (key.diagonal) {  // whole blocks, as many as reach this vector
      const int64_t reach = (i + lanes<T> + key_block - 1) / key_block * key_block;
      keys = reach < keys ? reach : keys;
    }
    T* column = query.scores + i;
    const V<T> before = load(query.maximum + i);
    const V<T> maximum = max<T>(load(query.tile_maximum + i), before);
    store(query.maximum + i, maximum);
    const V<T> nothing = broadcast(static_cast<T>(-__builtin_inf()));
    const V<T> reference = select<T>(maximum == nothing, V<T>{}, maximum);
    const V<T> decay = exp2<T>(before - reference);
    V<T> sum[2] = {};  // two chains, even and odd keys
    int64_t j = 0;
    for (; j + 2 <= keys; j += 2) {
#pragma GCC unroll 2
      for (int n = 0; n < 2; ++n) {
        const V<T> p = exp2<T>(load(column + (j + n) * score_row) - reference);
        store(column + (j + n) * score_row, p);
        sum[n] += p;
      }
    }
    for (; j < keys; ++j) {
      const V<T> p = exp2<T>(load(column + j * score_row) - reference);
      store(column + j * score_row, p);
      sum[0] += p;
    }
    store(query.sum + i, load(query.sum + i) * decay + (sum[0] + sum[1]));
    store(decays + i, decay);
    for (int64_t d = 0; d < query.depth && key.diagonal; ++d) store(query.tile_out + d * tile + i, V<T>{});
  }
  // tile_out^T [D, queries] = V^T P^T; on the diagonal in blocks, each for the queries that see it
  for (int64_t first_key = 0; first_key < key.keys;) {
    const int64_t left = key.keys - first_key;
    const int64_t rows = key.diagonal && left > key_block ? key_block : left;
    const VectorRange range = vectors_of(query, key, first_key);
    const int64_t i = range.begin * lanes<T>;
    gemm<T>(query.depth, (range.end - range.begin) * lanes<T>, rows, key.v + first_key * key.v_row, 1, key.v_row,
            query.scores + first_key * score_row + i, score_row, query.tile_out + i, tile, key.diagonal);
    first_key += rows;
  }
  for (int64_t d = 0; d < query.depth; ++d) {
    for (int64_t i = all.begin * lanes<T>; i < all.end * lanes<T>; i += lanes<T>) {
      T* out = query.out + d * tile + i;
      store(out, fma(load(out), load(decays + i), load(query.tile_out + d * tile + i)));
    }
  }
}

// scores [64] of the one query, the keys across. Lanes that it does not see get -infinity.
template <class T>
void scores_of_one(const QueryTile<T>& query, const KeyTile<T>& key, T* scores) {
  const int64_t lane = query.first;
  constexpr int64_t width = 16;
  alignas(64) T keys_across[width * tile];
  V<T> sum[tile / lanes<T>] = {};
  for (int64_t first = 0; first < query.depth; first += width) {
    const int64_t count = query.depth - first < width ? query.depth - first : width;
    transpose<T>(key.keys, count, key.k + first, key.k_row, keys_across, tile);
    for (int64_t d = 0; d < count; ++d) {
      const V<T> q = broadcast(query.q[(first + d) * tile + lane]);
#pragma GCC unroll 32
      for (int c = 0; c < tile / lanes<T>; ++c) sum[c] = fma(load(keys_across + d * tile + c * lanes<T>), q, sum[c]);
    }
  }
  for (int c = 0; c < tile / lanes<T>; ++c) store(scores + c * lanes<T>, sum[c]);
  if (key.lag_bias != nullptr) {
    const T* bias = key.lag_bias + tile + lane;
    for (int64_t j = 0; j < key.keys; ++j) scores[j] += bias[-j];
  }
  for (int64_t first = 0; key.key_gate != nullptr && first < key.keys; first += key_block) {
    const double reference = gate_reference<T>(key, first);
    T of_query, of_key, query_rest, key_rest;
    split_gate(query.query_gate[lane] - reference, of_query, query_rest);
    for (int64_t j = first; j < first + key_block && j < key.keys; ++j) {
      split_gate(key.key_gate[j] - reference, of_key, key_rest);
      scores[j] += gate_difference<T>(of_query, query_rest, of_key, key_rest);
    }
  }
  for (int64_t j = key.diagonal && lane + 1 < key.keys ? lane + 1 : key.keys; j < tile; ++j)
    scores[j] = static_cast<T>(-__builtin_inf());
}

// total [2], of the even and the odd keys, += sum of p [64]; out [D] = decay out + sum over keys of p v.
template <class T>
void values_of_one(const QueryTile<T>& query, const KeyTile<T>& key, const T* p, T decay, T* total) {
  const int64_t lane = query.first;
  for (int64_t j = 0; j + 2 <= key.keys; j += 2) {
    total[0] += p[j];
    total[1] += p[j + 1];
  }
  if (key.keys % 2 == 1) total[0] += p[key.keys - 1];
  for (int64_t d = 0; d < query.depth; d += lanes<T>) {
    const int64_t count = query.depth - d < lanes<T> ? query.depth - d : lanes<T>;
    const Tail<T> tail(count);
    alignas(64) T out[lanes<T>] = {};
    for (int64_t n = 0; n < count; ++n) out[n] = query.out[(d + n) * tile + lane];
    V<T> sum{};
    for (int64_t j = 0; j < key.keys; ++j) {
      const T* v = key.v + j * key.v_row + d;
      sum = fma(count == lanes<T> ? load(v) : load_first(v, tail), broadcast(p[j]), sum);
    }
    store(out, fma(load(out), broadcast(decay), sum));
    for (int64_t n = 0; n < count; ++n) query.out[(d + n) * tile + lane] = out[n];
  }
}

template <class T>
void accumulate_one(const QueryTile<T>& query, const KeyTile<T>& key) {
  const int64_t lane = query.first;
  alignas(64) T p[tile];
  scores_of_one(query, key, p);
  T largest = query.maximum[lane];
  for (int64_t j = 0; j < tile; ++j) largest = p[j] > largest ? p[j] : largest;
  const V<T> before = broadcast(query.maximum[lane]);
  const T reference = largest == static_cast<T>(-__builtin_inf()) ? T(0) : largest;
  const T decay = exp2<T>(before - broadcast(reference))[0];
  for (int64_t j = 0; j < tile; j += lanes<T>) store(p + j, exp2<T>(load(p + j) - broadcast(reference)));
  T total[2] = {};
  values_of_one(query, key, p, decay, total);
  query.maximum[lane] = largest;
  query.sum[lane] = query.sum[lane] * decay + (total[0] + total[1]);
}

template <class T>
void finish(const QueryTile<T>& query, T* out, int64_t out_row, T* lse) {
  constexpr double ln2 = 0x1.62e42fefa39efp-1;
  alignas(64) T nats[tile];
  for (int64_t i = 0; i < tile; i += lanes<T>) {
    const V<T> sum = load(query.sum + i), maximum = load(query.maximum + i);
    const M<T> nothing = sum == V<T>{};
    const V<T> inverse = select<T>(nothing, V<T>{}, broadcast(T(1)) / sum);
    store(nats + i, select<T>(nothing, broadcast(static_cast<T>(-__builtin_inf())),
                              fma(maximum, broadcast(static_cast<T>(ln2)), log<T>(sum))));
    for (int64_t d = 0; d < query.depth; ++d) {
      T* column = query.out + d * tile + i;
      store(column, load(column) * inverse);
    }
  }
  for (int64_t i = query.first; i < query.last; ++i) lse[i - query.first] = nats[i];
  transpose<T>(query.depth, query.last - query.first, query.out + query.first, tile, out, out_row);
}

// ---- backward -----------------------------------------------------------------------------------------------------

// P = 2^(score - lse), dP^T = V dO^T, dS = P (dP - delta), dV += P^T dO
template <class T>
void backward_scores(const QueryTile<T>& query, const QueryTileBackward<T>& backward, const KeyTile<T>& key, T* dv,
                     bool add) {
  const int64_t block = key.diagonal ? key_block : tile;
  for (int64_t first_key = 0; first_key < key.keys; first_key += block) {
    const int64_t rows = key.keys - first_key < block ? key.keys - first_key : block;
    const VectorRange range = vectors_of(query, key, first_key);
    const int64_t begin = range.begin * lanes<T>, end = range.end * lanes<T>;
    gemm<T>(rows, end - begin, query.depth, key.v + first_key * key.v_row, key.v_row, 1, backward.dout + begin, tile,
            backward.dscores + first_key * score_row + begin, score_row, false);
    for (int64_t j = first_key; j < first_key + rows; ++j) {
      T* dscores = backward.dscores + j * score_row;
      for (int64_t i = 0; i < begin; ++i) dscores[i] = 0;
      for (int64_t i = begin; i < end; i += lanes<T>) {
        const V<T> above = load(query.scores + j * score_row + i) - load(backward.lse + i);
        const V<T> p =
            exp2<T>(min<T>(V<T>{}, above));  // above 0 only by the rounding of lse, which is large where the logits are
        store(query.scores + j * score_row + i, p);
        store(dscores + i, p * (load(dscores + i) - load(backward.delta + i)));
      }
      for (int64_t i = end; i < tile; ++i) dscores[i] = 0;
    }
    const int64_t i = begin > query.first ? begin : query.first;
    gemm<T>(rows, query.depth, query.last - i, query.scores + first_key * score_row + i, score_row, 1,
            backward.dout_rows + i * backward.dout_row, backward.dout_row, dv + first_key * query.depth, query.depth,
            add);
  }
}

// dK += dS^T Q, dQ^T += K^T dS^T
template <class T>
void backward_products(const QueryTile<T>& query, const QueryTileBackward<T>& backward, const KeyTile<T>& key, T* dk,
                       bool add) {
  const int64_t block = key.diagonal ? key_block : tile;
  for (int64_t first_key = 0; first_key < key.keys; first_key += block) {
    const int64_t rows = key.keys - first_key < block ? key.keys - first_key : block;
    const VectorRange range = vectors_of(query, key, first_key);
    const int64_t begin = range.begin * lanes<T>, end = range.end * lanes<T>;
    const int64_t i = begin > query.first ? begin : query.first;
    gemm<T>(rows, query.depth, query.last - i, backward.dscores + first_key * score_row + i, score_row, 1,
            backward.q_rows + i * backward.q_row, backward.q_row, dk + first_key * query.depth, query.depth, add);
    gemm<T>(query.depth, end - begin, rows, key.k + first_key * key.k_row, 1, key.k_row,
            backward.dscores + first_key * score_row + begin, score_row, backward.dq + begin, tile, true);
  }
}

// The elements of one lag lie along a diagonal, score_row + 1 apart, so a vector of neighbouring lags is summed by
// loads that far apart; where they run over the end of a row they meet the zeros between rows.
template <class T>
void lag_gradient(const T* dscores, const KeyTile<T>& key, double* lag_sums) {
  static_assert(lanes<T> <= score_row - tile);
  for (int64_t lag = key.diagonal ? 0 : -tile; lag < tile; lag += lanes<T>) {
    // rows j with some of j + lag .. j + lag + lanes - 1 in [0, 64)
    const int64_t first = -lag - lanes<T> + 1 > 0 ? -lag - lanes<T> + 1 : 0;
    const int64_t last = tile - lag < key.keys ? tile - lag : key.keys;
    V<T> sum[4] = {};
    int64_t j = first;
    for (; j + 4 <= last; j += 4) {
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) sum[n] += load(dscores + (j + n) * (score_row + 1) + lag);
    }
    for (; j < last; ++j) sum[0] += load(dscores + j * (score_row + 1) + lag);
    const V<T> total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (int n = 0; n < lanes<T>; ++n) lag_sums[tile + lag + n] += static_cast<double>(total[n]);
  }
}

template <class T>
void gate_gradient(const T* dscores, const KeyTile<T>& key, double* dgate) {
  for (int64_t j = 0; j < key.keys; ++j) {
    V<T> sum{};
    for (int64_t i = 0; i < tile; i += lanes<T>) sum += load(dscores + j * score_row + i);
    dgate[j] -= static_cast<double>(sum_of_lanes<T>(sum));
  }
}

// ---- tiles in and out ---------------------------------------------------------------------------------------------

template <class T>
void pack(const T* rows, int64_t row, int64_t depth, int64_t first, int64_t last, T factor, T* columns) {
  if (first > 0 || last < tile) {
    for (int64_t n = 0; n < depth * tile; ++n) columns[n] = 0;
  }
  transpose<T>(last - first, depth, rows, row, columns + first, tile);
  if (factor != T(1)) {
    for (int64_t n = 0; n < depth * tile; n += lanes<T>) store(columns + n, load(columns + n) * broadcast(factor));
  }
}

template <class T>
void copy_rows(const T* from, int64_t from_row, int64_t rows, int64_t depth, T factor, T* to, int64_t to_row,
               bool add) {
  const V<T> scale = broadcast(factor);
  for (int64_t i = 0; i < rows; ++i, from += from_row, to += to_row) {
    int64_t d = 0;
    for (; d + lanes<T> <= depth; d += lanes<T>) {
      const V<T> value = scale * load(from + d);
      store(to + d, add ? load(to + d) + value : value);
    }
    for (; d < depth; ++d) to[d] = add ? to[d] + factor * from[d] : factor * from[d];
  }
}

template <class T>
void unpack(const T* columns, int64_t depth, int64_t first, int64_t last, T factor, T* rows, int64_t row, bool add) {
  constexpr int64_t width = 16;
  alignas(64) T block[tile * width];
  for (int64_t d = 0; d < depth; d += width) {
    const int64_t count = depth - d < width ? depth - d : width;
    transpose<T>(count, last - first, columns + d * tile + first, tile, block, width);
    copy_rows<T>(block, width, last - first, count, factor, rows + d, row, add);
  }
}

template <class T>
void dot_columns(const T* a, const T* b, int64_t depth, T* delta) {
  for (int64_t i = 0; i < tile; i += lanes<T>) {
    V<T> sum{};
    for (int64_t d = 0; d < depth; ++d) sum = fma(load(a + d * tile + i), load(b + d * tile + i), sum);
    store(delta + i, sum);
  }
}

template <class T>
constexpr AttentionTable<T> table = {
    scores<T>,       accumulate<T>,    accumulate_one<T>, finish<T>, backward_scores<T>, backward_products<T>,
    lag_gradient<T>, gate_gradient<T>, pack<T>,           unpack<T>, copy_rows<T>,       dot_columns<T>};

}  // namespace

const AttentionTable<float>& attention_table(float) {
  return table<float>;
}
const AttentionTable<double>& attention_table(double) {
  return table<double>;
}

}  // namespace sextant::SEXTANT_ISA
