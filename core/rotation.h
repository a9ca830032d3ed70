// Rotations of pairs of coordinates by given angles: RoPE, accumulated transport, and the rotating part of Jordan
// chains.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/kernels.h"
#include "core/tensor.h"

namespace sextant {

// Which coordinates are a pair: (x0, x1), (x2, x3), ..., or (x_i, x_{i + D/2}), the layout of weights from the Hugging
// Face world.
enum class Pairing { interleaved, half };

namespace kernels {

struct Rotation {
  Tensor x;  // [B, T, H, D], D even, any strides with the last dimension contiguous
  Sink y;    // the same shape
};

// y (+)= R(angle) x for each pair, R(a) = [[cos a, -sin a], [sin a, cos a]]; R(-angle) with `backwards`.
// phasors hold the angles' cosines and sines: interleaved (c0, s0, c1, s1, ..), half (c0, c1, .., s0, s1, ..); [T, D],
// or [B, T, H, D] (any strides with the last dimension contiguous). All rotations have the same shape and are done in
// one pass.
void rotate(std::span<const Rotation> rotations, const Tensor& phasors, Pairing pairing, bool backwards);

}  // namespace kernels

// N lifts slot r + 1 to slot r; its transpose takes slot r to r + 1.
enum class Shift { up, down };

// How the coordinates of a head fall into Jordan chains: chain c of order m owns 2m coordinates in a row, jet slot r
// the r-th pair of them. With a unipotent block the last two coordinates are not a chain but carry the real matrix [[1,
// u], [0, 1]].
struct ChainLayout {
  ChainLayout(const std::vector<int64_t>& orders, bool with_unipotent_block);

  int64_t dim = 0, order = 1;              // D, and the largest order
  std::vector<int64_t> slot, chain_order;  // by coordinate
  bool unipotent = false;
  int64_t columns() const { return order + (unipotent ? 1 : 0); }  // of the weights

  // For the inner loops, by shift (up, down): [order, D], all bits where slot + s, or slot - s, is in the chain.
  std::vector<int32_t> masks_f32[2];
  std::vector<int64_t> masks_f64[2];
};

namespace kernels {

// y (+)= (sum_s weights[., s] N^s) R(angle) x for each chain, N or its transpose by `shift`; R(-angle) with
// `backwards`. Row t of phasors [.., D] (interleaved) and weights [.., columns] belongs to token t; the last column of
// the weights is the unipotent block's u. The transpose of (up, R(a)) is (down, R(-a)) with the same weights.
struct ChainAction {
  Tensor x;  // [B, T, H, D], or dense rows [T, D]
  Sink y;
  Tensor phasors, weights;
  Shift shift = Shift::up;
  bool backwards = false;
};
void apply_chains(std::span<const ChainAction> actions, const ChainLayout& layout);

}  // namespace kernels
}  // namespace sextant
