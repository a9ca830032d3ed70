// Sums over leaves (the sequences of a batch) along one fixed binary tree, used by every gradient that is summed over
// rows:
//
//   sum [0, n) = sum [0, ceil(n / 2)) + sum [ceil(n / 2), n)
//
// A leaf's own sum is rounded to the gradient's dtype, and so is every sum of two. The tree depends on n alone, so a
// sum has the same bits however its leaves were shared out: among threads, among the parts of a batch that is worked
// off in pieces, or among any power of two of machines that divides the batch, each of which holds one subtree.
#pragma once

#include <bit>
#include <cstdint>

namespace sextant {

// How many of `leaves` leaves are left of the root.
inline int64_t tree_left(int64_t leaves) {
  return leaves - leaves / 2;
}

// How many buffers tree_sum needs for so many leaves.
inline int64_t tree_slots(int64_t leaves) {
  return leaves < 1 ? 1 : static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(leaves)));
}

// The sum of the leaves [first, first + leaves), vectors of `size` numbers that are made one after another: leaf(i, T*
// out) writes the i-th. `slots`: [tree_slots(leaves), size]; the sum ends in the first. add(size, from, into) does into
// += from.
template <class T, class Leaf, class Add>
void tree_sum(int64_t first, int64_t leaves, int64_t size, T* slots, Leaf&& leaf, Add&& add) {
  if (leaves == 1) return leaf(first, slots);
  const int64_t left = tree_left(leaves);
  tree_sum(first, left, size, slots, leaf, add);
  tree_sum(first + left, leaves - left, size, slots + size, leaf, add);
  add(size, slots + size, slots);
}

// The same sum of vectors that are all there, rounded to Rounded at the leaves and after: `rows` [leaves, size],
// row_stride numbers apart. The sum ends in the first row; the others are used up.
template <class Rounded, class T>
void tree_sum_rows(int64_t leaves, int64_t size, T* rows, int64_t row_stride) {
  const auto round = [](T value) { return static_cast<T>(static_cast<Rounded>(value)); };
  if (leaves == 1) {
    for (int64_t i = 0; i < size; ++i) rows[i] = round(rows[i]);
    return;
  }
  const int64_t left = tree_left(leaves);
  T* from = rows + left * row_stride;
  tree_sum_rows<Rounded>(left, size, rows, row_stride);
  tree_sum_rows<Rounded>(leaves - left, size, from, row_stride);
  for (int64_t i = 0; i < size; ++i) rows[i] = round(rows[i] + from[i]);
}

// A power of two of subtrees that make up the tree, about `wanted` of them or as many as the leaves allow. Their sums
// are summed as so many leaves.
inline int64_t tree_pieces(int64_t leaves, int64_t wanted) {
  int64_t pieces = 1;
  while (pieces < wanted && 2 * pieces <= leaves) pieces *= 2;
  return pieces;
}

struct TreePiece {
  int64_t first, leaves;
};
inline TreePiece tree_piece(int64_t leaves, int64_t pieces, int64_t index) {
  TreePiece piece{0, leaves};
  for (int64_t bit = pieces / 2; bit > 0; bit /= 2) {
    const int64_t left = tree_left(piece.leaves);
    if ((index & bit) == 0) {
      piece.leaves = left;
    } else {
      piece.first += left;
      piece.leaves -= left;
    }
  }
  return piece;
}

}  // namespace sextant
