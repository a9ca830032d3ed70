// Forward and backward of what is made of the steps alone. Formulas of a block in positional/path_block.h.
#include "positional/path_tiles.h"

#include <new>

#include "core/parallel.h"

namespace sextant {

namespace {

constexpr int64_t tile = PathTiles::tile, block = PathTiles::block, blocks_a_tile = PathTiles::blocks_a_tile;

template <class F>
void for_tiles(const PathTiles& tiles, F&& f) {
  const int64_t count = tiles.tiles();
  parallel_chunks(tiles.batch * tiles.heads * count, [&](int64_t chunk) {
    const int64_t pair = chunk / count;
    f(PathHead{tiles, pair / tiles.heads, pair % tiles.heads}, tiles.first_tile + chunk % count);
  });
}

bool complete(const PathTiles& tiles, int64_t n) {
  return n - tiles.first_tile < tiles.complete();
}

// Y = -M W;  near keys K + Z^T W and E = I + W^T Y where the block is complete
void build_block(const PathHead& head, int64_t first) {
  const PathTiles& tiles = head.tiles;
  const PathBlock one(head, first);
  const Tensor near = head.rows(tiles.near_keys, first);
  path_inverse(one.w, one.beta, one.work);
  multiply(one.work.m, one.w, one.y);
  keep_lower(one.y, tiles.dim, -1.0);
  copy_rows(one.k, near);
  if (!one.complete()) return;
  path_keys(one.w, one.k, one.work);
  multiply(one.work.z.transpose(0, 1), one.w, near, true);
  const Tensor product = head.block_product(tiles.block_products, first);
  set_identity(product);
  multiply(one.w.transpose(0, 1), one.y, product, true);
}

// P_c = E_3 .. E_{c+1}, the product of the blocks after block c of a complete tile, in squares[c]; P_3 = I.
void products_after(const PathHead& head, int64_t first, const PathWork& work) {
  set_identity(work.squares[blocks_a_tile - 1]);
  for (size_t c = blocks_a_tile - 1; c > 0; --c)
    multiply(work.squares[c], head.block_product(head.tiles.block_products, first + static_cast<int64_t>(c) * block),
             work.squares[c - 1]);
}

void build(const PathTiles& tiles) {
  for_tiles(tiles, [&](const PathHead& head, int64_t n) {
    const int64_t begin = n * tile, end = std::min(begin + tile, tiles.first_tile * tile + tiles.rows);
    for (int64_t first = begin; first < end; first += block) build_block(head, first);
    if (!complete(tiles, n)) {
      copy_rows(head.rows(tiles.k, begin, tile), head.rows(tiles.keys, begin, tile));
      return;
    }
    const PathWork& work = path_work(block, tiles.dim, tiles.w.dtype());
    products_after(head, begin, work);
    for (int64_t c = 0; c < blocks_a_tile; ++c)
      multiply(head.rows(tiles.near_keys, begin + c * block), work.squares[static_cast<size_t>(c)].transpose(0, 1),
               head.rows(tiles.keys, begin + c * block));
    multiply(work.squares[0], head.block_product(tiles.block_products, begin), head.tile_product(n));
  });
}

void allocate_gradients(PathTiles& tiles, Arena& arena) {
  const DType dtype = tiles.w.dtype();
  const Shape rows{tiles.batch, tiles.rows, tiles.heads, tiles.dim};
  for (Tensor* x : {&tiles.dy, &tiles.dnear_keys, &tiles.dw, &tiles.dk}) *x = zeros(arena, rows, dtype);
  tiles.dbeta = zeros(arena, {tiles.batch, tiles.rows, tiles.heads}, dtype);
  tiles.dblock_products = zeros(arena, tiles.block_products.shape(), dtype);
  tiles.dproducts = zeros(arena, {tiles.batch, tiles.heads, tiles.tiles(), tiles.dim, tiles.dim}, dtype);
}

}  // namespace

PathTiles* build_path_tiles(Tape& tape, const PathRows& rows, int64_t first_tile, std::span<const Tensor> known,
                            Arena& product_arena) {
  Arena& arena = tape.arena();
  const Shape& shape = rows.w.shape();
  const DType dtype = rows.w.dtype();
  auto* tiles = new (arena.allocate(sizeof(PathTiles))) PathTiles{.batch = shape[0],
                                                                  .heads = shape[2],
                                                                  .rows = shape[1],
                                                                  .dim = shape[3],
                                                                  .first_tile = first_tile,
                                                                  .w = rows.w,
                                                                  .beta = rows.beta,
                                                                  .k = rows.k};
  for (Tensor* x : {&tiles->y, &tiles->near_keys, &tiles->keys}) *x = empty(arena, shape, dtype);
  tiles->block_products = empty(arena, {shape[0], shape[2], tiles->tiles() * blocks_a_tile, shape[3], shape[3]}, dtype);
  const int64_t all = first_tile + tiles->complete();
  tiles->products = static_cast<Tensor*>(arena.allocate(static_cast<size_t>(all) * sizeof(Tensor)));
  for (int64_t n = 0; n < all; ++n) {
    const bool old = n < first_tile;
    new (tiles->products + n) Tensor(old ? known[static_cast<size_t>(n)]
                                         : empty(product_arena, {shape[0], shape[2], shape[3], shape[3]}, dtype));
  }
  build(*tiles);
  if (tape.recording()) allocate_gradients(*tiles, arena);
  return tiles;
}

namespace {

// keys_c = near_c P_c^T, E_tile = P_0 E_0, P_{c-1} = P_c E_c. With dP_{-1} = dE_tile, from c = 0 on:
//   dE_c += P_c^T dP_{c-1},   dP_c = dP_{c-1} E_c^T + dkeys_c^T near_c,   dnear_c += dkeys_c P_c
void tile_backward(const PathHead& head, int64_t n, const Tensor& dkeys) {
  const PathTiles& tiles = head.tiles;
  const PathWork& work = path_work(block, tiles.dim, tiles.w.dtype());
  products_after(head, n * tile, work);
  Tensor dproduct = head.tile_gradient(n);
  for (int64_t c = 0; c < blocks_a_tile; ++c) {
    const int64_t first = n * tile + c * block;
    const Tensor &after = work.squares[static_cast<size_t>(c)],
                 &next = work.squares[static_cast<size_t>(blocks_a_tile + c % 2)];
    const Tensor near = head.rows(tiles.near_keys, first), dkey = head.rows(dkeys, first);
    multiply(after.transpose(0, 1), dproduct, head.block_product(tiles.dblock_products, first), true);
    multiply(dproduct, head.block_product(tiles.block_products, first).transpose(0, 1), next);
    multiply(dkey.transpose(0, 1), near, next, true);
    multiply(dkey, after, head.rows(tiles.dnear_keys, first), true);
    dproduct = next;
  }
}

// dE -> dY += W dE, dW += Y dE^T;  dnear -> dZ = W dnear^T, dW += Z dnear, dK += dnear;  dY -> dM -= dY W^T, dW -= M^T
// dY
void block_backward(const PathHead& head, int64_t first) {
  const PathTiles& tiles = head.tiles;
  const PathBlock one(head, first);
  const PathWork& work = one.work;
  const Tensor dw = head.rows(tiles.dw, first), dk = head.rows(tiles.dk, first), dy = head.rows(tiles.dy, first);
  path_inverse(one.w, one.beta, work);
  if (one.complete()) {
    const Tensor dproduct = head.block_product(tiles.dblock_products, first),
                 dnear = head.rows(tiles.dnear_keys, first);
    multiply(one.w, dproduct, dy, true);
    multiply(one.y, dproduct.transpose(0, 1), dw, true);
    path_keys(one.w, one.k, work);
    multiply(one.w, dnear.transpose(0, 1), work.dz);
    multiply(work.z, dnear, dw, true);
    copy_rows(dnear, dk, true);
    path_keys_backward(one.w, one.k, work, dk, dw);
  } else {
    work.dm.zero();
  }
  keep_lower(dy, tiles.dim, -1.0);
  multiply(dy, one.w.transpose(0, 1), work.dm, true);
  multiply(work.m.transpose(0, 1), dy, dw, true);
  path_inverse_backward(one.w, one.beta, work, dw, head.rows(tiles.dbeta, first));
}

}  // namespace

void path_tiles_backward(const PathTiles& tiles, const Tensor& dkeys) {
  for_tiles(tiles, [&](const PathHead& head, int64_t n) {
    const int64_t begin = n * tile, end = std::min(begin + tile, tiles.first_tile * tile + tiles.rows);
    if (complete(tiles, n)) {
      tile_backward(head, n, dkeys);
    } else {
      copy_rows(head.rows(dkeys, begin, tile), head.rows(tiles.dk, begin, tile), true);
    }
    for (int64_t first = begin; first < end; first += block) block_backward(head, first);
  });
}

}  // namespace sextant
