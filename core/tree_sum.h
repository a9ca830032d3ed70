// Sums over leaves (the sequences of a batch) along one fixed binary tree, used by every gradient that is summed over
// rows:
//
//   sum [0, n) = sum [0, p) + sum [p, n),   p the largest power of two below n
//
// The tree depends on n alone, so a sum has the same bits however its leaves were shared out among threads, or among
// machines that each hold an aligned power of two of them.
#pragma once

#include <bit>
#include <cstdint>

namespace sextant {

// How many buffers tree_sum needs for so many leaves.
inline int64_t tree_slots(int64_t leaves) {
  return leaves < 1 ? 1 : static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(leaves)));
}

// The sum of `leaves` >= 1 vectors of `size` numbers that are made one after another: leaf(i, T* out) writes the i-th.
// A binary counter: equal subtrees are added as soon as both are there, the remainder from the right. `slots`:
// [tree_slots(leaves), size]; the sum ends in the first. add(size, from, into) does into += from, for whoever has a
// faster loop than this file's.
template <class T, class Leaf, class Add>
void tree_sum(int64_t leaves, int64_t size, T* slots, Leaf&& leaf, Add&& add) {
  const auto merge = [&](int64_t top) { add(size, slots + top * size, slots + (top - 1) * size); };
  int64_t top = -1;
  for (int64_t index = 0; index < leaves; ++index) {
    leaf(index, slots + ++top * size);
    for (int64_t bits = index; bits % 2 == 1; bits /= 2) merge(top--);
  }
  while (top > 0) merge(top--);
}
template <class T, class Leaf>
void tree_sum(int64_t leaves, int64_t size, T* slots, Leaf&& leaf) {
  tree_sum(leaves, size, slots, leaf, [](int64_t count, const T* from, T* into) {
    for (int64_t i = 0; i < count; ++i) into[i] += from[i];
  });
}

// The same sum of vectors that are all there: `rows` [leaves, size], row_stride numbers apart. The sum ends in the
// first row; the others are used up.
template <class T>
void tree_sum_rows(int64_t leaves, int64_t size, T* rows, int64_t row_stride) {
  for (int64_t step = 1; step < leaves; step *= 2) {
    for (int64_t row = 0; row + step < leaves; row += 2 * step) {
      T* into = rows + row * row_stride;
      const T* from = rows + (row + step) * row_stride;
      for (int64_t i = 0; i < size; ++i) into[i] += from[i];
    }
  }
}

// A power of two of leaves to sum in one task, so that there are about `tasks` tasks or more where the leaves allow it.
// Summing such groups and then their sums, both along the tree, is summing the leaves along the tree.
inline int64_t tree_group(int64_t leaves, int64_t tasks) {
  int64_t group = 1;
  while (group < leaves && (leaves + 2 * group - 1) / (2 * group) >= tasks) group *= 2;
  return group;
}

}  // namespace sextant
