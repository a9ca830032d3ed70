// PaTH as operations: what a layer's steps give to keys, tiles and queries. The term is made by positional/transport.h;
// the algebra of a few steps is in positional/path_block.h.
#pragma once

#include "autograd/tape.h"
#include "core/tile_transport.h"
#include "positional/path_tiles.h"

namespace sextant {

// Attention's view of the tiles: queries are carried leftwards, by Y and E of the blocks of their own tile and by E of
// each further tile.
class PathTransport : public TileTransport {
 public:
  explicit PathTransport(const PathTiles& tiles) : tiles_(tiles) {}
  void carry(const TilePair& pair, const Tensor& raw, const Tensor& carried) const override;
  void carry_backward(const TilePair& pair, const Tensor& raw, const Tensor& carried, const Tensor& dcarried,
                      const Tensor& draw) const override;
  bool overrides_diagonal() const override { return true; }
  void diagonal_scores(const TilePair& pair, const Tensor& carried, const Tensor& k,
                       const Tensor& scores) const override;
  void diagonal_backward(const TilePair& pair, const Tensor& carried, const Tensor& k, const Tensor& dscores,
                         const Tensor& dcarried, const Tensor& dk) const override;

 private:
  const PathTiles& tiles_;
};

// Unit rows: y = x / |x| over the last dimension, 0 where |x| < 1e-12 (a step without direction is none).
Variable unit_rows(Variable x);
Variable unit_rows_composed(Variable x);

// K~ [B, T, H, D] of the tiles, whose w, beta and k are these Variables' values. Its backward hands on all that the
// tiles gathered; the tape comes to it after the attention, because the attention reads K~.
Variable path_keys(Variable w, Variable beta, Variable k, const PathTiles& tiles);

// Scores as plain products, from elementary operations: q -> [B, T, H, T D] with H_{j+1} .. H_i q_i in block j, k ->
// k_j in block j and zero elsewhere, v -> v in block 0. Their inner products are the scores; quadratic in memory, for
// short sequences.
struct PathFeatures {
  Variable q, k, v;
};
PathFeatures path_composed(Variable w, Variable beta, Variable q, Variable k, Variable v);
Variable path_composed_output(Variable output, int64_t dim);  // block 0

}  // namespace sextant
