#include "core/shape.h"

#include "core/error.h"

namespace sextant {

Shape::Shape(std::initializer_list<int64_t> sizes) {
  for (int64_t size : sizes) append(size);
}

void Shape::append(int64_t size) {
  if (!(rank_ < max_rank)) fail("shape {} cannot take another dimension: a tensor has at most {}", text(), max_rank);
  if (!(size >= 0)) fail("shape {}: next size is {}, sizes must be 0 or more", text(), size);
  sizes_[static_cast<size_t>(rank_++)] = size;
}

int64_t Shape::elements() const {
  return prefix(rank_);
}

int64_t Shape::prefix(int dims) const {
  int64_t product = 1;
  for (int dim = 0; dim < dims; ++dim) product *= sizes_[static_cast<size_t>(dim)];
  return product;
}

std::string Shape::text() const {
  std::string text = "[";
  for (int dim = 0; dim < rank_; ++dim) text += (dim ? ", " : "") + std::to_string((*this)[dim]);
  return text + "]";
}

bool operator==(const Shape& a, const Shape& b) {
  if (a.rank_ != b.rank_) return false;
  for (int dim = 0; dim < a.rank_; ++dim)
    if (a[dim] != b[dim]) return false;
  return true;
}

}  // namespace sextant
