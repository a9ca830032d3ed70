// A tensor: a typed, shaped window onto memory that an Arena owns. Copying one copies the window, never the numbers;
// reshape, slice and transpose give other windows onto the same numbers. It is trivially copyable, so that the tape can
// keep it in a closure without a destructor; it must not outlive its arena's reset.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "core/arena.h"
#include "core/shape.h"

namespace sextant {

// Chosen at run time: training is done in f32, audits in f64, by the same model code.
enum class DType : uint8_t { f32, f64 };

inline size_t size_of(DType dtype) {
  return dtype == DType::f32 ? sizeof(float) : sizeof(double);
}
const char* name_of(DType dtype);  // "f32", "f64"

template <class T>
constexpr DType dtype_of = std::is_same_v<T, float> ? DType::f32 : DType::f64;

class Tensor {
 public:
  Tensor() = default;

  bool defined() const { return data_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t size(int dim) const { return shape_[dim]; }
  int64_t stride(int dim) const { return strides_[static_cast<size_t>(dim < 0 ? dim + rank() : dim)]; }  // in elements
  int64_t elements() const { return shape_.elements(); }
  size_t bytes() const { return static_cast<size_t>(elements()) * size_of(dtype_); }
  bool contiguous() const;  // row-major without gaps

  // The first element. T must be the tensor's dtype.
  template <class T>
  T* data() const {
    assert(dtype_ == dtype_of<T>);
    return reinterpret_cast<T*>(data_);
  }
  template <class T>
  std::span<T> span() const {
    assert(contiguous());
    return {data<T>(), static_cast<size_t>(elements())};
  }
  // One element as double, whatever the dtype; for tests, printing and scalars, not for loops that matter.
  double at(std::initializer_list<int64_t> index) const;
  double flat(int64_t index) const;  // by row-major index, also of a view
  double item() const;               // of a one-element tensor
  void set_flat(int64_t index, double value) const;

  // Views. Each throws Error, naming both shapes, when it does not fit.
  Tensor reshape(const Shape& shape) const;  // contiguous tensors only
  Tensor slice(int dim, int64_t start, int64_t length) const;
  Tensor select(int dim, int64_t index) const;  // drops the dimension
  Tensor transpose(int dim_a, int dim_b) const;

  void fill(double value) const;
  void zero() const { fill(0.0); }
  void copy_from(const Tensor& source) const;  // same shape; converts dtype

  // A window onto memory that somebody else owns (a mapped file, a std::vector in a test).
  static Tensor wrap(void* data, const Shape& shape, DType dtype);

 private:
  std::byte* data_ = nullptr;
  Shape shape_;
  std::array<int64_t, Shape::max_rank> strides_{};
  DType dtype_ = DType::f32;
};
static_assert(std::is_trivially_copyable_v<Tensor> && std::is_trivially_destructible_v<Tensor>);

Tensor empty(Arena& arena, const Shape& shape, DType dtype = DType::f32);
Tensor zeros(Arena& arena, const Shape& shape, DType dtype = DType::f32);
Tensor full(Arena& arena, const Shape& shape, double value, DType dtype = DType::f32);
Tensor from_values(Arena& arena, const Shape& shape, std::span<const double> values, DType dtype = DType::f32);
Tensor contiguous(Arena& arena, const Tensor& x);              // x itself when it already is
Tensor converted(Arena& arena, const Tensor& x, DType dtype);  // always a copy

bool all_finite(const Tensor& x);
double sum_of_squares(const Tensor& x);  // in double, in a fixed order

// Throws Error unless x has the given shape; `what` names x for the message.
void require_shape(const Tensor& x, const Shape& shape, const char* what);
// Throws Error, naming `what` and the stride, unless the numbers of each row (the last dimension) lie side by side.
void require_contiguous_rows(const Tensor& x, const char* what);

// Calls f with a float or a double, so that one generic lambda serves both: dispatch(d, [&](auto type) { using T =
// decltype(type); ... })
template <class F>
decltype(auto) dispatch(DType dtype, F&& f) {
  return dtype == DType::f32 ? std::forward<F>(f)(float{}) : std::forward<F>(f)(double{});
}

}  // namespace sextant
