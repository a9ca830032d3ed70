// Fused causal attention, backward: the probabilities are computed again, tile by tile, from the logsumexp that the
// forward kept.
#include "core/attention_tiles.h"
#include "core/denormals.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/tree_sum.h"

namespace sextant {

using namespace attention_tiles;

namespace {

// The sums over queries of one part of the query tiles of one (batch, head).
template <class T>
struct Part {
  T* dk;                                 // [S, D], still to be scaled without transport
  T* dv;                                 // [S, D]
  double* dgate;                         // [S]; nullptr when not wanted
  double* lags = nullptr;                // [64 + S + 64]: lag d at 64 + d; nullptr when not wanted
  int64_t first_tile = 0, end_tile = 0;  // of the queries

  Part(Carver& carver, const Sizes& sizes, bool gate) {
    dk = carver.take<T>(sizes.keys * sizes.depth);
    dv = carver.take<T>(sizes.keys * sizes.depth);
    dgate = gate ? carver.take<double>(sizes.keys) : nullptr;
  }
  // dk and dv need no zeros: the first query tile that meets a key tile writes.
  void clear(const Sizes& sizes) const {
    if (lags != nullptr) std::fill(lags, lags + sizes.keys + 2 * tile, 0.0);
    if (dgate != nullptr) std::fill(dgate, dgate + sizes.keys, 0.0);
  }
  bool adds(int64_t query_tile, int64_t key_tile) const { return query_tile > std::max(key_tile, first_tile); }
  // `later` has later queries, which meet the same keys and more.
  void add_to(const Part& later, const Sizes& sizes) const {
    const int64_t written = std::min(sizes.keys, end_tile * tile) * sizes.depth;
    for (int64_t n = 0; n < written; ++n) later.dk[n] += dk[n];
    for (int64_t n = 0; n < written; ++n) later.dv[n] += dv[n];
    for (int64_t n = 0; lags != nullptr && n < sizes.keys + 2 * tile; ++n) later.lags[n] += lags[n];
    for (int64_t n = 0; dgate != nullptr && n < sizes.keys; ++n) later.dgate[n] += dgate[n];
  }
};

template <class T>
struct BackwardWorkspace {
  Workspace<T> walking;
  QueryTileBackward<T> backward{};
  T *dout, *lse, *delta;
  double* lag_sums;
  // Transport only; seen [tiles + 1, 64, D] are the carried rows x_J at J.
  T *seen = nullptr, *dcarried = nullptr, *draw = nullptr, *dscore_rows = nullptr;

  BackwardWorkspace(Carver& carver, const AttentionInputs& inputs, const Sizes& sizes) : walking(carver, inputs) {
    const int64_t matrix_size = sizes.depth * tile;
    backward.dout = dout = carver.take<T>(matrix_size);
    backward.lse = lse = carver.take<T>(tile);
    backward.delta = delta = carver.take<T>(tile);
    T* dscores = carver.take<T>(attention_scores);
    backward.dscores = dscores == nullptr ? nullptr : dscores + 16;
    walking.query.tile_maximum = nullptr;
    if (dscores != nullptr) std::fill(dscores, dscores + attention_scores, T(0));
    backward.dq = carver.take<T>(matrix_size);
    lag_sums = carver.take<double>(2 * tile);
    if (inputs.transport != nullptr) {
      seen = carver.take<T>((sizes.end_tile() + 1) * matrix_size);
      dcarried = carver.take<T>(matrix_size);
      draw = carver.take<T>(matrix_size);
      dscore_rows = carver.take<T>(tile * tile);
    }
  }
};

// What a query tile's backward needs besides the keys: dout, its product with out, and the logsumexp.
template <class T>
void start_backward(const Walk<T>& walk, const Tensor& out, const Tensor& lse, const Tensor& dout,
                    BackwardWorkspace<T>& own) {
  const AttentionTable<T>& table = walk.table;
  const int64_t depth = walk.sizes.depth;
  Workspace<T>& work = own.walking;
  walk.start(work);
  const int64_t first = work.query.first, last = work.query.last;
  const T* dout_rows = row_of<T>(dout, walk.batch, walk.index(), walk.head);
  table.pack(dout_rows, dout.stride(1), depth, first, last, T(1), own.dout);
  table.pack(row_of<T>(out, walk.batch, walk.index(), walk.head), out.stride(1), depth, first, last, T(1),
             work.query.out);
  table.dot_columns(own.dout, work.query.out, depth, own.delta);
  own.backward.dout_rows = dout_rows - first * dout.stride(1);
  own.backward.dout_row = dout.stride(1);
  const T* nats = lse.data<T>() + walk.batch * lse.stride(0) + walk.head * lse.stride(1) + walk.index();
  std::fill(own.lse, own.lse + tile, std::numeric_limits<T>::infinity());
  for (int64_t i = first; i < last; ++i) {
    const T value = nats[i - first] * static_cast<T>(log2e);
    if (value != -std::numeric_limits<T>::infinity()) own.lse[i] = value;
  }
  std::fill(own.backward.dq, own.backward.dq + depth * tile, T(0));
}

// What follows from the dscores of one key tile, apart from dq and dk.
template <class T>
void add_lag_and_gate(const Walk<T>& walk, int64_t key_tile, BackwardWorkspace<T>& own, const Part<T>& part) {
  const AttentionTable<T>& table = walk.table;
  if (part.lags != nullptr) {
    std::fill(own.lag_sums, own.lag_sums + 2 * tile, 0.0);
    table.lag_gradient(own.backward.dscores, own.walking.key, own.lag_sums);
    const int64_t rest = std::min<int64_t>(2 * tile, walk.sizes.keys + 2 * tile - (walk.query_tile - key_tile) * tile);
    double* lags = part.lags + (walk.query_tile - key_tile) * tile;
    for (int64_t n = 0; n < rest; ++n) lags[n] += own.lag_sums[n];
  }
  if (part.dgate != nullptr) table.gate_gradient(own.backward.dscores, own.walking.key, part.dgate + key_tile * tile);
}

template <class T>
void backward_tile(const Walk<T>& walk, BackwardWorkspace<T>& own, const Part<T>& part, const Sink& dq) {
  const AttentionTable<T>& table = walk.table;
  const AttentionInputs& inputs = walk.inputs;
  const int64_t depth = walk.sizes.depth;
  Workspace<T>& work = own.walking;
  QueryTile<T>& query = work.query;
  table.pack(walk.q(), inputs.q.stride(1), depth, query.first, query.last, static_cast<T>(inputs.scale * log2e),
             work.q);
  own.backward.q_rows = walk.q() - query.first * inputs.q.stride(1);
  own.backward.q_row = inputs.q.stride(1);
  for (int64_t key_tile = 0; key_tile <= walk.query_tile; ++key_tile) {
    walk.enter(work, key_tile);
    table.scores(query, work.key, false);
    const bool add = part.adds(walk.query_tile, key_tile);
    table.backward_scores(query, own.backward, work.key, part.dv + key_tile * tile * depth, add);
    table.backward_products(query, own.backward, work.key, part.dk + key_tile * tile * depth, add);
    add_lag_and_gate(walk, key_tile, own, part);
  }
  if (dq.tensor.defined()) {
    table.unpack(own.backward.dq, depth, query.first, query.last, static_cast<T>(inputs.scale),
                 row_of<T>(dq.tensor, walk.batch, walk.index(), walk.head), dq.tensor.stride(1), dq.accumulate);
  }
}

// The same with a transport: rightwards over the key tiles with the rows that each has seen, the gradient of the
// carried rows in dcarried.
template <class T>
void backward_tile_carried(const Walk<T>& walk, BackwardWorkspace<T>& own, const Part<T>& part, const Sink& dq) {
  const AttentionTable<T>& table = walk.table;
  const AttentionInputs& inputs = walk.inputs;
  const TileTransport& transport = *inputs.transport;
  const int64_t depth = walk.sizes.depth, rows = walk.rows(), size = tile * depth;
  Workspace<T>& work = own.walking;
  QueryTile<T>& query = work.query;
  const T factor = static_cast<T>(inputs.scale * log2e);
  table.copy_rows(walk.q(), inputs.q.stride(1), rows, depth, T(1), work.raw, depth, false);
  const Tensor raw = matrix(work.raw, rows, depth);
  std::copy(work.raw, work.raw + rows * depth, own.seen + (walk.query_tile + 1) * size);
  for (int64_t key_tile = walk.query_tile; key_tile >= 0; --key_tile) {
    T* x = own.seen + key_tile * size;
    std::copy(x + size, x + size + rows * depth, x);
    transport.carry(walk.pair(key_tile), raw, matrix(x, rows, depth));
  }
  std::fill(own.dcarried, own.dcarried + size, T(0));
  std::fill(own.draw, own.draw + size, T(0));
  const Tensor dcarried = matrix(own.dcarried, rows, depth), draw = matrix(own.draw, rows, depth);
  for (int64_t key_tile = 0; key_tile <= walk.query_tile; ++key_tile) {
    const TilePair pair = walk.pair(key_tile);
    T* x = own.seen + key_tile * size;
    T* dk = part.dk + key_tile * tile * depth;
    walk.enter(work, key_tile);
    const bool given = work.key.diagonal && transport.overrides_diagonal();
    if (given) {
      put_diagonal_scores(walk, work, x, factor);
    } else {
      table.pack(x, depth, depth, query.first, query.last, factor, work.q);
    }
    table.scores(query, work.key, given);
    const bool add = part.adds(walk.query_tile, key_tile);
    table.backward_scores(query, own.backward, work.key, part.dv + key_tile * tile * depth, add);
    add_lag_and_gate(walk, key_tile, own, part);
    if (given) {
      if (!add) std::fill(dk, dk + pair.keys * depth, T(0));
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < pair.keys; ++j) {
          own.dscore_rows[i * pair.keys + j] =
              static_cast<T>(inputs.scale) * own.backward.dscores[j * attention_score_row + query.first + i];
        }
      }
      transport.diagonal_backward(pair, matrix(x, rows, depth), matrix(work.key_rows, pair.keys, depth),
                                  matrix(own.dscore_rows, rows, pair.keys), dcarried, matrix(dk, pair.keys, depth));
    } else {
      table.copy_rows(x, depth, rows, depth, static_cast<T>(inputs.scale), work.carried, depth, false);
      own.backward.q_rows = work.carried - query.first * depth;
      own.backward.q_row = depth;
      std::fill(own.backward.dq, own.backward.dq + size, T(0));
      table.backward_products(query, own.backward, work.key, dk, add);
      table.unpack(own.backward.dq, depth, query.first, query.last, static_cast<T>(inputs.scale), own.dcarried, depth,
                   true);
    }
    transport.carry_backward(pair, raw, matrix(x + size, rows, depth), dcarried, draw);
  }
  if (!dq.tensor.defined()) return;
  T* to = row_of<T>(dq.tensor, walk.batch, walk.index(), walk.head);
  table.copy_rows(own.draw, depth, rows, depth, T(1), to, dq.tensor.stride(1), dq.accumulate);
  table.copy_rows(own.dcarried, depth, rows, depth, T(1), to, dq.tensor.stride(1), true);
}

// The finished sums of one (batch, head), all but the lags.
template <class T>
void write_sums(const AttentionTable<T>& table, const Part<T>& sum, const Sizes& sizes, int64_t pair, T key_factor,
                const AttentionGradients& gradients) {
  const int64_t batch = pair / sizes.heads, head = pair % sizes.heads, depth = sizes.depth;
  const auto write = [&](const T* from, T factor, const Sink& sink) {
    if (!sink.tensor.defined()) return;
    table.copy_rows(from, depth, sizes.keys, depth, factor, row_of<T>(sink.tensor, batch, 0, head),
                    sink.tensor.stride(1), sink.accumulate);
  };
  write(sum.dk, key_factor, gradients.k);
  write(sum.dv, T(1), gradients.v);
  for (int64_t j = 0; sum.dgate != nullptr && j < sizes.keys; ++j) {
    double& to = *row_of<double>(gradients.gate.tensor, batch, j, head);
    to = gradients.gate.accumulate ? to + sum.dgate[j] : sum.dgate[j];
  }
}

// dLoss/dbias[h]: the lags of head h, `stride` apart from one sequence to the next, summed along the tree. They are
// used up.
template <class T>
void write_bias(double* lags, int64_t stride, const Sizes& sizes, int64_t head, const Sink& sink) {
  tree_sum_rows<T>(sizes.batch, sizes.keys, lags, stride);
  T* to = sink.tensor.data<T>() + head * sink.tensor.stride(0);
  for (int64_t lag = 0; lag < sink.tensor.size(1); ++lag) {
    const T value = lag < sizes.keys ? static_cast<T>(lags[lag]) : T(0);
    to[lag] = sink.accumulate ? to[lag] + value : value;
  }
}

// Query tiles in `parts` parts of about equal work (a tile meets as many key tiles as stand before it): the first of
// part n.
int64_t part_begin(const Sizes& sizes, int64_t n, int64_t parts) {
  const auto work = [](int64_t tiles) { return tiles * (tiles + 1) / 2; };
  const int64_t before = work(sizes.first_tile()), all = work(sizes.end_tile()) - before;
  int64_t begin = sizes.first_tile();
  while (begin < sizes.end_tile() && (work(begin) - before) * parts < all * n) ++begin;
  return std::clamp(begin, sizes.first_tile() + n, sizes.end_tile() - (parts - n));  // each part gets one at least
}

template <class T>
void backward(const AttentionInputs& inputs, const Tensor& out, const Tensor& lse, const Tensor& dout,
              const AttentionGradients& gradients, Arena& scratch) {
  const AttentionTable<T>& table = attention_table<T>();
  const Sizes sizes = sizes_of(inputs);
  const int64_t pairs = sizes.batch * sizes.heads, lag_row = sizes.keys + 2 * tile;
  const bool bias = gradients.bias.tensor.defined(), gate = gradients.gate.tensor.defined();
  const T key_factor = inputs.transport == nullptr ? static_cast<T>(inputs.scale) : T(1);
  // Few heads are summed by parts of the query tiles, a transport sees each (batch, head) in one go. How many parts
  // does not depend on the batch, so that a sequence has the same bits in any; one task does them all where there are
  // tasks enough.
  const int64_t parts =
      inputs.transport != nullptr ? 1 : std::clamp<int64_t>(8 / sizes.heads, 1, sizes.end_tile() - sizes.first_tile());
  const bool whole = parts == 1 || pairs >= 8;
  const int64_t parts_of_task = whole ? parts : 1;
  const Arena::Mark mark = scratch.mark();
  Carver work_count, part_count;
  BackwardWorkspace<T>(work_count, inputs, sizes);
  Part<T>(part_count, sizes, gate);
  const auto blocks = [&](size_t bytes, int64_t count) {
    return static_cast<std::byte*>(scratch.allocate(bytes * static_cast<size_t>(count)));
  };
  std::byte* work_block = blocks(work_count.used(), threads());
  // A whole (batch, head) is written out when it is done, and its place is used again.
  std::byte* part_block = blocks(part_count.used(), (whole ? threads() : pairs) * parts);
  double* lag_block = bias ? reinterpret_cast<double*>(blocks(sizeof(double), pairs * parts * lag_row)) : nullptr;
  const auto part_at = [&](int64_t chunk) {
    const int64_t place = whole ? omp_get_thread_num() * parts + chunk % parts : chunk;
    Carver carver(part_block + static_cast<size_t>(place) * part_count.used());
    Part<T> part(carver, sizes, gate);
    if (bias) part.lags = lag_block + chunk * lag_row;
    part.first_tile = part_begin(sizes, chunk % parts, parts);
    part.end_tile = part_begin(sizes, chunk % parts + 1, parts);
    return part;
  };
  const auto finish = [&](int64_t pair) {
    for (int64_t n = 1; n < parts; ++n) part_at(pair * parts + n - 1).add_to(part_at(pair * parts + n), sizes);
    write_sums(table, part_at(pair * parts + parts - 1), sizes, pair, key_factor, gradients);
  };
  const auto sum_part = [&](int64_t chunk, BackwardWorkspace<T>& own) {
    const Part<T> part = part_at(chunk);
    part.clear(sizes);
    const int64_t pair = chunk / parts;
    for (int64_t query_tile = part.first_tile; query_tile < part.end_tile; ++query_tile) {
      const Walk<T> walk{table, inputs, sizes, pair / sizes.heads, pair % sizes.heads, query_tile};
      start_backward(walk, out, lse, dout, own);
      if (inputs.transport == nullptr) {
        backward_tile(walk, own, part, gradients.q);
      } else {
        backward_tile_carried(walk, own, part, gradients.q);
      }
    }
  };
  parallel_chunks(pairs * parts / parts_of_task, [&](int64_t task) {
    const FlushDenormals flush;
    Carver carver(work_block + static_cast<size_t>(omp_get_thread_num()) * work_count.used());
    BackwardWorkspace<T> own(carver, inputs, sizes);
    for (int64_t n = 0; n < parts_of_task; ++n) sum_part(task * parts_of_task + n, own);
    if (whole) finish(task);
  });
  if (!whole) parallel_chunks(pairs, finish);
  if (bias) {
    parallel_chunks(sizes.heads, [&](int64_t head) {
      double* lags = lag_block + (head * parts + parts - 1) * lag_row + tile;
      write_bias<T>(lags, sizes.heads * parts * lag_row, sizes, head, gradients.bias);
    });
  }
  scratch.rewind(mark);
}

void check_gradients(const AttentionInputs& inputs, const Tensor& dout, const AttentionGradients& gradients) {
  const DType dtype = inputs.q.dtype();
  require_rows(dout, inputs.q.shape(), dtype, "dout");
  if (gradients.q.tensor.defined()) require_rows(gradients.q.tensor, inputs.q.shape(), dtype, "the gradient of q");
  if (gradients.k.tensor.defined()) require_rows(gradients.k.tensor, inputs.k.shape(), dtype, "the gradient of k");
  if (gradients.v.tensor.defined()) require_rows(gradients.v.tensor, inputs.v.shape(), dtype, "the gradient of v");
  const Tensor &dbias = gradients.bias.tensor, &dgate = gradients.gate.tensor;
  if (dbias.defined()) require_lags(dbias, sizes_of(inputs), dtype, "the gradient of bias");
  if (dgate.defined()) {
    require_shape(dgate, {inputs.k.size(0), inputs.k.size(1), inputs.k.size(2)}, "the gradient of gate");
    require(dgate.dtype() == DType::f64, "attention: the gradient of gate is f32, must be f64");
  }
}

}  // namespace

void kernels::attention_backward(const AttentionInputs& inputs, const Tensor& out, const Tensor& lse,
                                 const Tensor& dout, const AttentionGradients& gradients, Arena& scratch) {
  check(inputs, out, lse);
  check_gradients(inputs, dout, gradients);
  dispatch(inputs.q.dtype(), [&](auto type) { backward<decltype(type)>(inputs, out, lse, dout, gradients, scratch); });
}

}  // namespace sextant
