// How a strategy whose scores are not separable in i and j takes part in fused attention: between tiles it carries the
// query rows from one key tile to the next, and on the diagonal tile it may give the scores itself. The attention names
// no strategy; one without transport (a null pointer in AttentionInputs) pays nothing.
//
// Positions are absolute and cut into tiles of 64: tile n holds [64 n, 64 n + 64), whatever T is. For each query tile I
// the attention walks the key tiles leftwards, J = I, I-1, ..., 0, and the rows it multiplies with the keys of tile J
// are
//
//   x_{I+1} = q (raw),      x_J = carry(x_{J+1}, q)      J = I, ..., 0
//   logit(i, j) = scale <x_J[i], k_j> + bias + gate      j in tile J <= I
//   logit(i, j) = scale A[i, j] + bias + gate            in the diagonal tile J = I instead, when
//                                                        overrides_diagonal(); A = diagonal_scores(x_I, k)
//
// PaTH (arXiv 2505.16381): carry does nothing for J = I, applies the in-tile partial products for J = I - 1 (each row
// from its own position back to the tile's start) and the D x D product of tile J + 1 for each further tile; the
// diagonal is overridden by the UT-transform formula. Anchored Jordan chains: carry makes x_J from the raw q as tile
// J's anchor sees it and leaves x_{J+1} aside; no override.
//
// The backward runs through the same tiles from the leftmost to the diagonal, J = 0, ..., I: with dx_J complete (scores
// of tile J, plus what came from tile J - 1), carry_backward turns it into dx_{J+1} and may add to dq; what arrives at
// x_{I+1} is added to dq by the attention.
//
// All matrices are dense and row-major, of the dtype of q. Threads: in the forward, query tiles of one (batch, head)
// may run at the same time, so the forward functions only read. In the backward each (batch, head) is done by one
// thread, its query tiles in rising order: parameter-side gradients accumulated per (batch, head) (or per (batch, head,
// tile)) need no lock and have one fixed order. Keep them in tensors that the strategy holds: Tensor's constness is
// that of the window, so const functions may write them. The functions must not throw. The products of core/kernels.h
// may be called; inside the attention's loops they run on the calling thread.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace sextant {

// Which rows meet which keys. Query rows: absolute positions [first_query, first_query + queries), all in query_tile.
// Keys: absolute positions [64 key_tile, 64 key_tile + keys); keys < 64 only in the last tile of the sequence. On the
// diagonal (key_tile == query_tile) the last query row is at most the last key.
struct TilePair {
  int64_t batch = 0, head = 0;
  int64_t query_tile = 0, key_tile = 0;
  int64_t first_query = 0, queries = 0;
  int64_t keys = 0;

  int64_t first_key() const { return key_tile * 64; }
  bool diagonal() const { return key_tile == query_tile; }
};

class TileTransport {
 public:
  static constexpr int64_t tile = 64;  // positions

  TileTransport() = default;
  TileTransport(const TileTransport&) = delete;
  TileTransport& operator=(const TileTransport&) = delete;
  virtual ~TileTransport();

  // In `carried` [queries, D]: x_{J+1} on entry, x_J on return, J = pair.key_tile. raw [queries, D] is q.
  virtual void carry(const TilePair& pair, const Tensor& raw, const Tensor& carried) const = 0;

  // In `dcarried` [queries, D]: dx_J on entry, dx_{J+1} on return. `carried` is x_{J+1}, the input that carry had; draw
  // [queries, D] is added to (for what x_J takes from raw directly). Gradients of the strategy's own parameters are its
  // own affair.
  virtual void carry_backward(const TilePair& pair, const Tensor& raw, const Tensor& carried, const Tensor& dcarried,
                              const Tensor& draw) const = 0;

  // Whether the scores of the diagonal tile come from diagonal_scores instead of x_I k^T.
  virtual bool overrides_diagonal() const { return false; }

  // scores [queries, keys], unscaled, from x_I [queries, D] (in `carried`) and the tile's keys k [keys, D]. What lies
  // above the diagonal (key later than query) is not read.
  virtual void diagonal_scores(const TilePair& pair, const Tensor& carried, const Tensor& k,
                               const Tensor& scores) const;

  // dscores [queries, keys] is the gradient of the unscaled scores, zero above the diagonal. Adds to dcarried [queries,
  // D] (dx_I) and dk [keys, D].
  virtual void diagonal_backward(const TilePair& pair, const Tensor& carried, const Tensor& k, const Tensor& dscores,
                                 const Tensor& dcarried, const Tensor& dk) const;

  // Called once after the last (batch, head) of a backward, by the tape's attention operation: the strategy hands what
  // it gathered to its Variables.
  virtual void finish_backward() const {}
};

}  // namespace sextant
