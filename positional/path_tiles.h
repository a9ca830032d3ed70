// The tiles of PaTH steps that a call works on: what is made of their steps once, and handed back in the backward. How
// queries pass through them: positional/path.h.
//
// A tile of 64 positions is four blocks of 16. Rows go through blocks as through tiles: by S Y within the block they
// start in, by E through each further one; a tile's product and its keys' final form are made from its blocks'. (With
// one block of 64, the [64, 64] matrices that a block needs would cost some times the attention itself at D = 16.)
#pragma once

#include <algorithm>
#include <span>

#include "autograd/tape.h"
#include "core/tile_transport.h"
#include "positional/path_block.h"

namespace sextant {

// The tiles that a call's rows lie in, from the first position of the first of them on: R rows, of which those before
// the call came from the cache.
struct PathTiles {
  static constexpr int64_t tile = TileTransport::tile, block = 16, blocks_a_tile = tile / block;

  int64_t batch = 0, heads = 0, rows = 0, dim = 0;
  int64_t first_tile = 0;
  Tensor w = {}, beta = {},
         k = {};  // [B, R, H, D], [B, R, H], [B, R, H, D]: unit steps, their strengths, keys as they are
  // Made from them:
  Tensor y = {};          // [B, R, H, D]: Y by block
  Tensor near_keys = {};  // [B, R, H, D]: K~ on to the end of their block (as they are in one that is not complete)
  Tensor keys = {};       // [B, R, H, D]: K~ on to the end of their tile (as they are in one that is not complete)
  Tensor block_products = {};  // [B, H, 4 tiles, D, D]: E of each complete block
  Tensor* products = nullptr;  // for each complete tile, by absolute number: its E [B, H, D, D]
  // Gathered in the backward of attention (undefined without one).
  Tensor dy = {}, dnear_keys = {}, dblock_products = {}, dw = {}, dbeta = {}, dk = {};
  Tensor dproducts = {};  // [B, H, tiles, D, D]

  int64_t tiles() const { return (rows + tile - 1) / tile; }
  int64_t complete() const { return rows / tile; }
};

// Tiles of the given rows with all that is made from them, in the tape's arena; `known` are the products of the tiles
// before the first one, new ones are placed in `product_arena`. When the tape records, also zeroed space for what the
// backward gathers.
struct PathRows {
  Tensor w, beta, k;
};
PathTiles* build_path_tiles(Tape& tape, const PathRows& rows, int64_t first_tile, std::span<const Tensor> known,
                            Arena& product_arena);
// From dkeys = dLoss/dkeys and what the attention gathered: the whole of dw, dbeta and dk, in the tiles' own tensors.
void path_tiles_backward(const PathTiles& tiles, const Tensor& dkeys);

// One (batch, head)'s view of the tiles.
struct PathHead {
  const PathTiles& tiles;
  int64_t b, h;

  // `count` rows from absolute position `first` on, of x [B, R, H, D], or of beta [B, R, H]; fewer where the rows end.
  Tensor rows(const Tensor& x, int64_t first, int64_t count = PathTiles::block) const {
    const int64_t begin = first - tiles.first_tile * PathTiles::tile;
    return x.select(0, b).slice(0, begin, std::min(count, tiles.rows - begin)).select(1, h);
  }
  // E or dE of the block that begins at absolute position `first`; of tile n.
  Tensor block_product(const Tensor& products, int64_t first) const {
    const int64_t count = products.size(2),
                  local = first / PathTiles::block - tiles.first_tile * PathTiles::blocks_a_tile;
    return square_at(products, (b * tiles.heads + h) * count + local);
  }
  Tensor tile_product(int64_t n) const { return square_at(tiles.products[n], b * tiles.heads + h); }
  Tensor tile_gradient(int64_t n) const {
    return square_at(tiles.dproducts, (b * tiles.heads + h) * tiles.tiles() + n - tiles.first_tile);
  }

 private:
  // Square number `index` of a contiguous [.., D, D]: what select() does, for loops where that is too slow.
  Tensor square_at(const Tensor& squares, int64_t index) const {
    return dispatch(squares.dtype(), [&](auto type) {
      using T = decltype(type);
      return Tensor::wrap(squares.data<T>() + index * tiles.dim * tiles.dim, {tiles.dim, tiles.dim}, dtype_of<T>);
    });
  }
};

// The steps of one block, and the thread's matrices for it.
struct PathBlock {
  Tensor w, beta, k, y;
  const PathWork& work;

  PathBlock(const PathHead& head, int64_t first)
      : w(head.rows(head.tiles.w, first)),
        beta(head.rows(head.tiles.beta, first)),
        k(head.rows(head.tiles.k, first)),
        y(head.rows(head.tiles.y, first)),
        work(path_work(w.size(0), head.tiles.dim, w.dtype())) {}
  bool complete() const { return w.size(0) == PathTiles::block; }
};

}  // namespace sextant
