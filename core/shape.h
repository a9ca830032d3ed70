// The sizes of a tensor, outermost first. Holds its sizes inline: shapes are copied freely and never touch the heap.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace sextant {

class Shape {
 public:
  static constexpr int max_rank = 6;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes);  // throws Error on a negative size or more than max_rank dimensions

  int rank() const { return rank_; }
  int64_t operator[](int dim) const {
    assert(dim >= -rank_ && dim < rank_);
    return sizes_[static_cast<size_t>(dim < 0 ? dim + rank_ : dim)];
  }
  void set(int dim, int64_t size) { sizes_[static_cast<size_t>(dim < 0 ? dim + rank_ : dim)] = size; }
  void append(int64_t size);
  int64_t elements() const;  // 1 for the scalar shape []
  // The product of all sizes but the last: how many rows a [..., C] tensor has.
  int64_t rows() const { return rank_ == 0 ? 1 : prefix(rank_ - 1); }
  int64_t prefix(int dims) const;
  std::string text() const;  // "[2, 3]"

  friend bool operator==(const Shape& a, const Shape& b);

 private:
  std::array<int64_t, max_rank> sizes_{};
  int rank_ = 0;
};

}  // namespace sextant
