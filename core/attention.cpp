// Fused causal attention, forward: the loops over tiles, and who does which. The arithmetic of a tile is in
// core/simd/attention.cpp.
#include "core/attention.h"

#include "core/attention_tiles.h"
#include "core/denormals.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "core/shape_format.h"

namespace sextant {

TileTransport::~TileTransport() = default;
void TileTransport::diagonal_scores(const TilePair&, const Tensor&, const Tensor&, const Tensor&) const {
  assert(false && "a transport that overrides the diagonal gives its scores");
}
void TileTransport::diagonal_backward(const TilePair&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                      const Tensor&) const {
  assert(false && "a transport that overrides the diagonal gives its gradient");
}

using namespace attention_tiles;

namespace {

constexpr int64_t group = 4;  // query tiles a chunk

// Query tiles that go over the keys side by side, so that a key tile is fetched once for all of them.
template <class T>
struct Group {
  Workspace<T> works[group];
  Walk<T> walks[group];
  int64_t tiles;
};

template <class T>
void start(const Walk<T>& walk, Workspace<T>& work) {
  const int64_t depth = walk.sizes.depth;
  walk.start(work);
  std::fill(work.query.maximum, work.query.maximum + tile, -std::numeric_limits<T>::infinity());
  std::fill(work.query.sum, work.query.sum + tile, T(0));
  std::fill(work.query.out, work.query.out + depth * tile, T(0));
}

template <class T>
void finish(const Walk<T>& walk, Workspace<T>& work, const Tensor& out, const Tensor& lse) {
  walk.table.finish(work.query, row_of<T>(out, walk.batch, walk.index(), walk.head), out.stride(1),
                    lse.data<T>() + walk.batch * lse.stride(0) + walk.head * lse.stride(1) + walk.index());
}

// A query tile and a key tile.
template <class T>
void meet(const AttentionTable<T>& table, const Workspace<T>& work) {
  if (work.query.last - work.query.first == 1) {
    table.accumulate_one(work.query, work.key);
  } else {
    table.scores(work.query, work.key, false);
    table.accumulate(work.query, work.key);
  }
}

template <class T>
void forward_group(Group<T>& all) {
  for (int64_t n = 0; n < all.tiles; ++n) {
    const Walk<T>& walk = all.walks[n];
    QueryTile<T>& query = all.works[n].query;
    start(walk, all.works[n]);
    walk.table.pack(walk.q(), walk.inputs.q.stride(1), query.depth, query.first, query.last,
                    static_cast<T>(walk.inputs.scale * log2e), all.works[n].q);
  }
  const int64_t first = all.walks[0].query_tile;
  for (int64_t key_tile = 0; key_tile < first + all.tiles; ++key_tile) {
    for (int64_t n = std::max<int64_t>(0, key_tile - first); n < all.tiles; ++n) {
      const Walk<T>& walk = all.walks[n];
      walk.enter(all.works[n], key_tile);
      meet(walk.table, all.works[n]);
    }
  }
}

// One query tile with a transport, which goes leftwards over the keys.
template <class T>
void forward_carried(const Walk<T>& walk, Workspace<T>& work) {
  const AttentionTable<T>& table = walk.table;
  const AttentionInputs& inputs = walk.inputs;
  const int64_t depth = walk.sizes.depth;
  const T factor = static_cast<T>(inputs.scale * log2e);
  start(walk, work);
  table.copy_rows(walk.q(), inputs.q.stride(1), walk.rows(), depth, T(1), work.raw, depth, false);
  std::copy(work.raw, work.raw + walk.rows() * depth, work.carried);
  for (int64_t key_tile = walk.query_tile; key_tile >= 0; --key_tile) {
    inputs.transport->carry(walk.pair(key_tile), matrix(work.raw, walk.rows(), depth),
                            matrix(work.carried, walk.rows(), depth));
    walk.enter(work, key_tile);
    const bool given = work.key.diagonal && inputs.transport->overrides_diagonal();
    if (given) {
      put_diagonal_scores(walk, work, work.carried, factor);
      table.scores(work.query, work.key, true);
      table.accumulate(work.query, work.key);
    } else {
      table.pack(work.carried, depth, depth, work.query.first, work.query.last, factor, work.q);
      meet(table, work);
    }
  }
}

template <class T>
void forward(const AttentionInputs& inputs, const Tensor& out, const Tensor& lse) {
  const AttentionTable<T>& table = attention_table<T>();
  const Sizes sizes = sizes_of(inputs);
  const int64_t tiles = sizes.end_tile() - sizes.first_tile(), groups = (tiles + group - 1) / group;
  Carver count;
  for (int64_t n = 0; n < group; ++n) Workspace<T>(count, inputs);
  // By (batch, head), so that a thread meets the rows it has just made; in each the last query tiles, which see the
  // most keys, go first, so that no thread starts a long chunk when the others are done.
  parallel_chunks(sizes.batch * sizes.heads * groups, [&](int64_t chunk) {
    const FlushDenormals flush;
    thread_local Scratch scratch;
    Carver carver(scratch.get<std::byte>(static_cast<int64_t>(count.used())));
    const int64_t pair = chunk / groups, end = tiles - chunk % groups * group,
                  begin = std::max<int64_t>(0, end - group);
    const auto work = [&](int64_t) { return Workspace<T>(carver, inputs); };
    const auto walk = [&](int64_t n) {
      return Walk<T>{table,
                     inputs,
                     sizes,
                     pair / sizes.heads,
                     pair % sizes.heads,
                     sizes.first_tile() + begin + n,
                     n == 0 && inputs.transport == nullptr};
    };
    Group<T> all{{work(0), work(1), work(2), work(3)}, {walk(0), walk(1), walk(2), walk(3)}, end - begin};
    for (int64_t n = 1; n < group; ++n) {  // one at a time
      all.works[n].query.scores = all.works[0].query.scores;
      all.works[n].query.tile_out = all.works[0].query.tile_out;
    }
    if (inputs.transport == nullptr) forward_group(all);
    for (int64_t n = 0; n < all.tiles; ++n) {
      if (inputs.transport != nullptr) forward_carried(all.walks[n], all.works[n]);
      finish(all.walks[n], all.works[n], out, lse);
    }
  });
}

}  // namespace

// ---- what is asked of the arguments -------------------------------------------------------------------------------

namespace attention_tiles {

void require_rows(const Tensor& x, const Shape& shape, DType dtype, const char* what) {
  require_shape(x, shape, what);
  require(x.dtype() == dtype, "attention: {} is {}, must be {}", what, name_of(x.dtype()), name_of(dtype));
  require(x.size(-1) == 1 || x.stride(-1) == 1,
          "attention: the last dimension of {} must be contiguous, its stride is {}", what, x.stride(-1));
}

void require_lags(const Tensor& x, const Sizes& sizes, DType dtype, const char* what) {
  require(x.rank() == 2 && x.size(0) == sizes.heads && x.size(1) >= sizes.keys,
          "attention: {} is {}, must be [{}, at least {}]", what, x.shape(), sizes.heads, sizes.keys);
  require_rows(x, x.shape(), dtype, what);
}

void check(const AttentionInputs& inputs, const Tensor& out, const Tensor& lse) {
  require(inputs.q.rank() == 4 && inputs.k.rank() == 4,
          "attention: q {} and k {} must be [B, T, H, D] and [B, S, H, D]", inputs.q.shape(), inputs.k.shape());
  const Sizes sizes = sizes_of(inputs);
  const DType dtype = inputs.q.dtype();
  require(sizes.batch >= 1 && sizes.heads >= 1 && sizes.depth >= 1 && sizes.queries >= 1 && sizes.queries <= sizes.keys,
          "attention: q {} must have 1 <= T <= S queries for the keys of k {}", inputs.q.shape(), inputs.k.shape());
  const Shape queries{sizes.batch, sizes.queries, sizes.heads, sizes.depth},
      keys{sizes.batch, sizes.keys, sizes.heads, sizes.depth};
  require_rows(inputs.q, queries, dtype, "q");
  require_rows(inputs.k, keys, dtype, "k");
  require_rows(inputs.v, keys, dtype, "v");
  require_rows(out, queries, dtype, "out");
  require_rows(lse, {sizes.batch, sizes.heads, sizes.queries}, dtype, "lse");
  if (inputs.bias.defined()) require_lags(inputs.bias, sizes, dtype, "bias");
  if (inputs.gate.defined()) {
    require_shape(inputs.gate, {sizes.batch, sizes.keys, sizes.heads}, "gate");
    require(inputs.gate.dtype() == DType::f64, "attention: gate is f32, must be f64");
  }
}

}  // namespace attention_tiles

void kernels::attention(const AttentionInputs& inputs, const Tensor& out, const Tensor& lse) {
  check(inputs, out, lse);
  dispatch(inputs.q.dtype(), [&](auto type) { forward<decltype(type)>(inputs, out, lse); });
}

}  // namespace sextant
