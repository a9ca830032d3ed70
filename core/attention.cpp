// Fused causal attention, forward: the loops over tiles, and who does which. The arithmetic of a tile is in
// core/simd/attention.cpp.
#include "core/attention.h"

#include <memory>
#include <new>

#include "core/attention_tiles.h"
#include "core/denormals.h"
#include "core/error.h"
#include "core/parallel.h"

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

template <class T>
void forward_tile(const Walk<T>& walk, Workspace<T>& work, const Tensor& out, const Tensor& lse) {
  const AttentionTable<T>& table = walk.table;
  const AttentionInputs& inputs = walk.inputs;
  const int64_t depth = walk.sizes.depth;
  const T factor = static_cast<T>(inputs.scale * log2e);
  walk.start(work);
  QueryTile<T>& query = work.query;
  std::fill(query.maximum, query.maximum + tile, -std::numeric_limits<T>::infinity());
  std::fill(query.sum, query.sum + tile, T(0));
  std::fill(query.out, query.out + depth * tile, T(0));
  if (inputs.transport == nullptr) {
    table.pack(walk.q(), inputs.q.stride(1), depth, query.first, query.last, factor, work.q);
    for (int64_t key_tile = 0; key_tile <= walk.query_tile; ++key_tile) {
      walk.enter(work, key_tile);
      table.scores(query, work.key, false);
      table.accumulate(query, work.key);
    }
  } else {
    table.copy_rows(walk.q(), inputs.q.stride(1), walk.rows(), depth, T(1), work.raw, depth, false);
    std::copy(work.raw, work.raw + walk.rows() * depth, work.carried);
    for (int64_t key_tile = walk.query_tile; key_tile >= 0; --key_tile) {
      inputs.transport->carry(walk.pair(key_tile), matrix(work.raw, walk.rows(), depth),
                              matrix(work.carried, walk.rows(), depth));
      walk.enter(work, key_tile);
      const bool given = work.key.diagonal && inputs.transport->overrides_diagonal();
      if (given) {
        put_diagonal_scores(walk, work, work.carried, factor);
      } else {
        table.pack(work.carried, depth, depth, query.first, query.last, factor, work.q);
      }
      table.scores(query, work.key, given);
      table.accumulate(query, work.key);
    }
  }
  table.finish(query, row_of<T>(out, walk.batch, walk.index(), walk.head), out.stride(1),
               lse.data<T>() + walk.batch * lse.stride(0) + walk.head * lse.stride(1) + walk.index());
}

// The calling thread's own block, grown to the largest it has needed.
std::byte* thread_block(size_t bytes) {
  struct Free {
    void operator()(std::byte* block) const { ::operator delete[](block, std::align_val_t{Arena::alignment}); }
  };
  thread_local std::unique_ptr<std::byte[], Free> block;
  thread_local size_t size = 0;
  if (size < bytes) {
    block.reset();
    block.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{Arena::alignment})));
    size = bytes;
  }
  return block.get();
}

template <class T>
void forward(const AttentionInputs& inputs, const Tensor& out, const Tensor& lse) {
  const AttentionTable<T>& table = attention_table<T>();
  const Sizes sizes = sizes_of(inputs);
  constexpr int64_t group = 4;  // query tiles a chunk
  const int64_t tiles = sizes.end_tile() - sizes.first_tile(), groups = (tiles + group - 1) / group;
  Carver count;
  Workspace<T>(count, inputs);
  // By (batch, head), so that a thread meets the rows it has just made; in each the last query tiles, which see the most
  // keys, go first, so that no thread starts a long chunk when the others are done.
  parallel_chunks(sizes.batch * sizes.heads * groups, [&](int64_t chunk) {
    const FlushDenormals flush;
    Carver carver(thread_block(count.used()));
    Workspace<T> work(carver, inputs);
    const int64_t pair = chunk / groups;
    const int64_t end = tiles - chunk % groups * group;
    for (int64_t n = std::max<int64_t>(0, end - group); n < end; ++n) {
      const Walk<T> walk{table, inputs, sizes, pair / sizes.heads, pair % sizes.heads, sizes.first_tile() + n};
      forward_tile(walk, work, out, lse);
    }
  });
}

}  // namespace

// ---- what is asked of the arguments -------------------------------------------------------------------------------

namespace attention_tiles {

void require_rows(const Tensor& x, const Shape& shape, DType dtype, const char* what) {
  if (!(x.shape() == shape)) require_shape(x, shape, what);  // which would make its message each time
  require(x.dtype() == dtype, "attention: {} is {}, must be {}", what, name_of(x.dtype()), name_of(dtype));
  require(x.size(-1) == 1 || x.stride(-1) == 1,
          "attention: the last dimension of {} must be contiguous, its stride is {}", what, x.stride(-1));
}

void require_lags(const Tensor& x, const Sizes& sizes, DType dtype, const char* what) {
  if (x.rank() != 2 || x.size(0) != sizes.heads || x.size(1) < sizes.keys) {
    fail("attention: {} is {}, must be [{}, at least {}]", what, x.shape().text(), sizes.heads, sizes.keys);
  }
  require_rows(x, x.shape(), dtype, what);
}

void check(const AttentionInputs& inputs, const Tensor& out, const Tensor& lse) {
  // The texts of the shapes are made only when they are needed.
  if (inputs.q.rank() != 4 || inputs.k.rank() != 4) {
    fail("attention: q {} and k {} must be [B, T, H, D] and [B, S, H, D]", inputs.q.shape().text(),
         inputs.k.shape().text());
  }
  const Sizes sizes = sizes_of(inputs);
  const DType dtype = inputs.q.dtype();
  if (sizes.batch < 1 || sizes.heads < 1 || sizes.depth < 1 || sizes.queries < 1 || sizes.queries > sizes.keys) {
    fail("attention: q {} must have 1 <= T <= S queries for the keys of k {}", inputs.q.shape().text(),
         inputs.k.shape().text());
  }
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
