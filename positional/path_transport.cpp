// PaTH's part in attention by tiles: forward and backward of each step of the walk. Formulas in positional/path_block.h
// and path_tiles.h.
//
// Costs beside the attention's own 256 D operations a row and key tile: a carried row 2 D^2, its gradient 4 D^2. Within
// the diagonal tile a hundred or so small products, which decide at T = 512 and hardly show at 16,384 (measured in
// positional/transport.cpp). Memory: w, y, two forms of the keys and their gradients as q, one D x D product a block
// and a tile, and per thread a dozen [16, 16] matrices.
#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "positional/path.h"

namespace sextant {

namespace {

constexpr int64_t tile = PathTiles::tile, block = PathTiles::block, blocks_a_tile = PathTiles::blocks_a_tile;

// Query rows of one block within a query tile: absolute positions [begin, end), which are rows [begin -
// pair.first_query, ..) of the pair's matrices.
struct QueryBlock {
  int64_t first, begin, end;  // of the block, of its queries
  Tensor of(const TilePair& pair, const Tensor& x) const { return x.slice(0, begin - pair.first_query, end - begin); }
};

template <class F>
void for_query_blocks(const TilePair& pair, F&& f) {
  const int64_t end = pair.first_query + pair.queries;
  for (int64_t first = pair.first_query / block * block; first < end; first += block)
    f(QueryBlock{first, std::max(first, pair.first_query), std::min(first + block, end)});
}

// S = tril(Q W^T) of a query block in its own block, [queries, n] in the corner of work.s.
Tensor own_products(const PathBlock& own, const QueryBlock& queries, const Tensor& q) {
  const Tensor s = own.work.s.slice(0, 0, q.size(0));
  multiply(q, own.w.transpose(0, 1), s);
  keep_lower(s, queries.begin - queries.first);
  return s;
}

// Steps shrink what they carry: after thousands of tokens numbers come near the smallest there are, with which
// processors are many times slower. Long before that they show in no logit, so they are set to 0. Returns whether
// anything is left (if not, `from` is 0 too).
bool copy_without_dust(const Tensor& from, const Tensor& to) {
  return dispatch(to.dtype(), [&](auto type) {
    using T = decltype(type);
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    const T least = sizeof(T) == 4 ? T(1e-25f) : static_cast<T>(1e-250);
    T *source = from.data<T>(), *target = to.data<T>();
    Bits any = 0;
    for (int64_t i = 0, count = from.elements(); i < count; ++i) {
      const T kept = std::abs(source[i]) < least ? T(0) : source[i];
      target[i] = kept;
      any |= std::bit_cast<Bits>(kept);
    }
    if (any == 0) std::fill_n(source, from.elements(), T(0));
    return any != 0;
  });
}

}  // namespace

// J = I: x = q.   J = I - 1: x = q + S Y in the query's own block, then x E through the blocks before it.   J < I - 1:
// x E of tile J + 1.
void PathTransport::carry(const TilePair& pair, const Tensor&, const Tensor& carried) const {
  if (pair.diagonal()) return;
  const PathHead head{tiles_, pair.batch, pair.head};
  if (pair.key_tile < pair.query_tile - 1) {
    const Tensor before = path_work(tile, tiles_.dim, carried.dtype()).rows[0].slice(0, 0, pair.queries);
    if (copy_without_dust(carried, before)) multiply(before, head.tile_product(pair.key_tile + 1), carried);
    return;
  }
  for_query_blocks(pair, [&](const QueryBlock& queries) {
    const Tensor x = queries.of(pair, carried);
    const PathBlock own(head, queries.first);
    multiply(own_products(own, queries, x), own.y, x, true);
    const Tensor before = path_work(block, tiles_.dim, carried.dtype()).rows[0].slice(0, 0, x.size(0));
    for (int64_t first = queries.first - block; first >= pair.query_tile * tile; first -= block) {
      copy_rows(x, before);
      multiply(before, head.block_product(tiles_.block_products, first), x);
    }
  });
}

// Blocks before the query's own: x near_b^T, with x as block b sees it. Its own: tril(Q K^T) + S Z, from the keys as
// they are.
void PathTransport::diagonal_scores(const TilePair& pair, const Tensor& carried, const Tensor&,
                                    const Tensor& scores) const {
  const PathHead head{tiles_, pair.batch, pair.head};
  for_query_blocks(pair, [&](const QueryBlock& queries) {
    const Tensor q = queries.of(pair, carried), rows = queries.of(pair, scores);
    const auto columns = [&](int64_t first, int64_t count) { return rows.slice(1, first - pair.first_key(), count); };
    const PathBlock own(head, queries.first);
    const int64_t n = own.w.size(0);
    path_inverse(own.w, own.beta, own.work);
    path_keys(own.w, own.k, own.work);
    const Tensor s = own_products(own, queries, q), here = columns(queries.first, n);
    multiply(q, own.k.transpose(0, 1), here);
    multiply(s, own.work.z, here, true);
    if (queries.first == pair.first_key()) return;
    Tensor x = own.work.rows[0].slice(0, 0, q.size(0)), next = own.work.rows[1].slice(0, 0, q.size(0));
    copy_rows(q, x);
    multiply(s, own.y, x, true);
    for (int64_t first = queries.first - block;; first -= block) {
      multiply(x, head.rows(tiles_.near_keys, first).transpose(0, 1), columns(first, block));
      if (first == pair.first_key()) return;
      multiply(x, head.block_product(tiles_.block_products, first), next);
      std::swap(x, next);
    }
  });
}

namespace {

// The way of one block's queries through their tile and back: x_a = q + S Y, x_{b-1} = x_b E_b from b = a - 1 to 0.
// `dlast` is the gradient of what has left the tile (x_{-1}), dscores that of the scores met on the way; either may be
// undefined. Adds to dq.
class QueryBlockBackward {
 public:
  QueryBlockBackward(const PathHead& head, const TilePair& pair, const QueryBlock& queries, const Tensor& q)
      : head_(head),
        tiles_(head.tiles),
        begin_(pair.query_tile * tile),
        queries_(queries),
        q_(q),
        own_(head, queries.first) {}

  void run(const Tensor& dscores, const Tensor& dlast, const Tensor& dq) {
    s_ = own_products(own_, queries_, q_);
    const int64_t before = (queries_.first - begin_) / block;
    see_blocks(before);
    const Tensor dx = through_blocks(before, dscores, dlast);
    const Tensor& ds = own_.work.ds;
    const Tensor dw = head_.rows(tiles_.dw, queries_.first);
    ds.zero();
    if (dx.defined()) {  // x = q + S Y:  dS = tril(dx Y^T),  dY += S^T dx,  dq += dx
      multiply(dx, own_.y.transpose(0, 1), ds);
      multiply(s_.transpose(0, 1), dx, head_.rows(tiles_.dy, queries_.first), true);
      copy_rows(dx, dq, true);
    }
    if (dscores.defined()) own_block_backward(dscores.slice(1, before * block, own_.w.size(0)), dq);
    // S = tril(Q W^T):  dq += dS W,  dW += dS^T q
    keep_lower(ds, 0);
    multiply(ds, own_.w, dq, true);
    multiply(ds.transpose(0, 1), q_, dw, true);
    if (dscores.defined()) {
      path_keys_backward(own_.w, own_.k, own_.work, head_.rows(tiles_.dk, queries_.first), dw);
      path_inverse_backward(own_.w, own_.beta, own_.work, dw, head_.rows(tiles_.dbeta, queries_.first));
    }
  }

 private:
  Tensor seen(int64_t b) const { return own_.work.rows[static_cast<size_t>(b)]; }  // x_b

  void see_blocks(int64_t before) const {
    if (before == 0) return;
    copy_rows(q_, seen(before - 1));
    multiply(s_, own_.y, seen(before - 1), true);
    for (int64_t b = before - 1; b > 0; --b)
      multiply(seen(b), head_.block_product(tiles_.block_products, begin_ + b * block), seen(b - 1));
  }

  // dx_b = dx_{b-1} E_b^T + dA_b near_b,  dE_b += x_b^T dx_{b-1},  dnear_b += dA_b^T x_b. Returns dx_a, undefined when
  // there is none.
  Tensor through_blocks(int64_t before, const Tensor& dscores, const Tensor& dlast) const {
    Tensor dx = dlast;
    for (int64_t b = 0; b < before; ++b) {
      const int64_t first = begin_ + b * block;
      const Tensor next = own_.work.rows[static_cast<size_t>(blocks_a_tile + b % 2)];
      const bool onwards = dx.defined();
      if (onwards) {
        multiply(seen(b).transpose(0, 1), dx, head_.block_product(tiles_.dblock_products, first), true);
        multiply(dx, head_.block_product(tiles_.block_products, first).transpose(0, 1), next);
      }
      if (dscores.defined()) {
        const Tensor da = dscores.slice(1, b * block, block);
        multiply(da, head_.rows(tiles_.near_keys, first), next, onwards);
        multiply(da.transpose(0, 1), seen(b), head_.rows(tiles_.dnear_keys, first), true);
      }
      dx = next;
    }
    return dx;
  }

  // A = tril(Q K^T) + S Z:  dq += dA K,  dK += dA^T q,  dS += dA Z^T,  dZ = S^T dA
  void own_block_backward(const Tensor& da, const Tensor& dq) const {
    const PathWork& work = own_.work;
    path_inverse(own_.w, own_.beta, work);
    path_keys(own_.w, own_.k, work);
    multiply(da, own_.k, dq, true);
    multiply(da.transpose(0, 1), q_, head_.rows(tiles_.dk, queries_.first), true);
    multiply(da, work.z.transpose(0, 1), work.ds, true);
    multiply(s_.transpose(0, 1), da, work.dz);
  }

  const PathHead& head_;
  const PathTiles& tiles_;
  int64_t begin_;
  const QueryBlock& queries_;
  const Tensor& q_;
  PathBlock own_;
  Tensor s_;
};

}  // namespace

// x' = x E:  dE += x^T dx',  dx = dx' E^T; within the query's own tile as above.
void PathTransport::carry_backward(const TilePair& pair, const Tensor&, const Tensor& carried, const Tensor& dcarried,
                                   const Tensor&) const {
  if (pair.diagonal()) return;
  const PathHead head{tiles_, pair.batch, pair.head};
  const int64_t n = pair.key_tile + 1;
  if (n < pair.query_tile) {
    const Tensor dx = path_work(tile, tiles_.dim, carried.dtype()).rows[0].slice(0, 0, pair.queries);
    copy_rows(dcarried, dx);
    multiply(carried.transpose(0, 1), dx, head.tile_gradient(n), true);
    multiply(dx, head.tile_product(n).transpose(0, 1), dcarried);
    return;
  }
  for_query_blocks(pair, [&](const QueryBlock& queries) {
    const Tensor q = queries.of(pair, carried), dq = queries.of(pair, dcarried);
    const Tensor dlast = path_work(q.size(0), tiles_.dim, carried.dtype()).rows[7];
    copy_rows(dq, dlast);
    dq.zero();
    QueryBlockBackward(head, pair, queries, q).run({}, dlast, dq);
  });
}

void PathTransport::diagonal_backward(const TilePair& pair, const Tensor& carried, const Tensor&, const Tensor& dscores,
                                      const Tensor& dcarried, const Tensor&) const {
  const PathHead head{tiles_, pair.batch, pair.head};
  for_query_blocks(pair, [&](const QueryBlock& queries) {
    const Tensor q = queries.of(pair, carried);
    QueryBlockBackward(head, pair, queries, q).run(queries.of(pair, dscores), {}, queries.of(pair, dcarried));
  });
}

}  // namespace sextant
