#include "core/tensor.h"

#include <cmath>

#include "core/error.h"
#include "core/shape_format.h"

namespace sextant {

const char* name_of(DType dtype) {
  return dtype == DType::f32 ? "f32" : "f64";
}

namespace {

int normalised(const Tensor& x, int dim, const char* what) {
  const int result = dim < 0 ? dim + x.rank() : dim;
  require(result >= 0 && result < x.rank(), "{}: dimension {} of a tensor of shape {}", what, dim, x.shape());
  return result;
}

// f(offset) for every element in row-major order, offset in elements from the first.
template <class F>
void for_each_offset(const Tensor& x, F&& f) {
  const int64_t count = x.elements();
  if (x.contiguous()) {
    for (int64_t i = 0; i < count; ++i) f(i);
    return;
  }
  std::array<int64_t, Shape::max_rank> index{};
  int64_t offset = 0;
  for (int64_t i = 0; i < count; ++i) {
    f(offset);
    for (int dim = x.rank() - 1; dim >= 0; --dim) {
      const auto d = static_cast<size_t>(dim);
      offset += x.stride(dim);
      if (++index[d] < x.size(dim)) break;
      offset -= x.stride(dim) * x.size(dim);
      index[d] = 0;
    }
  }
}

int64_t offset_of(const Tensor& x, int64_t flat) {
  int64_t offset = 0;
  for (int dim = x.rank() - 1; dim >= 0; --dim) {
    offset += flat % x.size(dim) * x.stride(dim);
    flat /= x.size(dim);
  }
  return offset;
}

}  // namespace

bool Tensor::contiguous() const {
  int64_t expected = 1;
  for (int dim = rank() - 1; dim >= 0; --dim) {
    if (size(dim) != 1 && stride(dim) != expected) return false;
    expected *= size(dim);
  }
  return true;
}

double Tensor::flat(int64_t index) const {
  assert(index >= 0 && index < elements());
  const int64_t offset = offset_of(*this, index);
  return dtype_ == DType::f32 ? static_cast<double>(data<float>()[offset]) : data<double>()[offset];
}

void Tensor::set_flat(int64_t index, double value) const {
  assert(index >= 0 && index < elements());
  const int64_t offset = offset_of(*this, index);
  if (dtype_ == DType::f32)
    data<float>()[offset] = static_cast<float>(value);
  else
    data<double>()[offset] = value;
}

double Tensor::at(std::initializer_list<int64_t> index) const {
  require(static_cast<int>(index.size()) == rank(), "{} indices into a tensor of shape {}", index.size(), shape_);
  int64_t flat_index = 0;
  int dim = 0;
  for (int64_t i : index) {
    require(i >= 0 && i < size(dim), "index {} of dimension {} of a tensor of shape {}", i, dim, shape_);
    flat_index = flat_index * size(dim++) + i;
  }
  return flat(flat_index);
}

double Tensor::item() const {
  require(elements() == 1, "item() of a tensor of shape {}, which has not exactly one element", shape_);
  return flat(0);
}

Tensor Tensor::reshape(const Shape& shape) const {
  require(contiguous(), "reshape of a view of shape {} that is not contiguous", shape_);
  require(shape.elements() == elements(), "reshape of {} to {}: {} elements against {}", shape_, shape, elements(),
          shape.elements());
  return wrap(data_, shape, dtype_);
}

Tensor Tensor::slice(int dim, int64_t start, int64_t length) const {
  dim = normalised(*this, dim, "slice");
  require(start >= 0 && length >= 0 && start + length <= size(dim),
          "slice {}:{} of dimension {} of a tensor of shape {}", start, start + length, dim, shape_);
  Tensor view = *this;
  view.data_ += static_cast<size_t>(start * stride(dim)) * size_of(dtype_);
  view.shape_.set(dim, length);
  return view;
}

Tensor Tensor::select(int dim, int64_t index) const {
  dim = normalised(*this, dim, "select");
  const Tensor view = slice(dim, index, 1);
  Tensor result = view;
  result.shape_ = Shape();
  for (int source = 0, target = 0; source < rank(); ++source) {
    if (source == dim) continue;
    result.shape_.append(view.size(source));
    result.strides_[static_cast<size_t>(target++)] = view.stride(source);
  }
  return result;
}

Tensor Tensor::transpose(int dim_a, int dim_b) const {
  dim_a = normalised(*this, dim_a, "transpose");
  dim_b = normalised(*this, dim_b, "transpose");
  Tensor view = *this;
  view.shape_.set(dim_a, size(dim_b));
  view.shape_.set(dim_b, size(dim_a));
  std::swap(view.strides_[static_cast<size_t>(dim_a)], view.strides_[static_cast<size_t>(dim_b)]);
  return view;
}

void Tensor::fill(double value) const {
  dispatch(dtype_, [&](auto type) {
    using T = decltype(type);
    T* x = data<T>();
    for_each_offset(*this, [&](int64_t offset) { x[offset] = static_cast<T>(value); });
  });
}

void Tensor::copy_from(const Tensor& source) const {
  require(source.shape() == shape_, "copy of a tensor of shape {} into one of shape {}", source.shape(), shape_);
  dispatch(dtype_, [&](auto to) {
    dispatch(source.dtype(), [&](auto from) {
      using To = decltype(to);
      using From = decltype(from);
      To* target = data<To>();
      const From* values = source.data<From>();
      if (source.contiguous()) {
        int64_t i = 0;
        for_each_offset(*this, [&](int64_t offset) { target[offset] = static_cast<To>(values[i++]); });
      } else if (contiguous()) {
        int64_t i = 0;
        for_each_offset(source, [&](int64_t offset) { target[i++] = static_cast<To>(values[offset]); });
      } else {
        for (int64_t i = 0; i < elements(); ++i) set_flat(i, source.flat(i));
      }
    });
  });
}

Tensor Tensor::wrap(void* data, const Shape& shape, DType dtype) {
  Tensor x;
  x.data_ = static_cast<std::byte*>(data);
  x.shape_ = shape;
  x.dtype_ = dtype;
  int64_t stride = 1;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    x.strides_[static_cast<size_t>(dim)] = stride;
    stride *= shape[dim];
  }
  return x;
}

Tensor empty(Arena& arena, const Shape& shape, DType dtype) {
  return Tensor::wrap(arena.allocate(static_cast<size_t>(shape.elements()) * size_of(dtype)), shape, dtype);
}

Tensor zeros(Arena& arena, const Shape& shape, DType dtype) {
  return full(arena, shape, 0.0, dtype);
}

Tensor full(Arena& arena, const Shape& shape, double value, DType dtype) {
  const Tensor x = empty(arena, shape, dtype);
  x.fill(value);
  return x;
}

Tensor from_values(Arena& arena, const Shape& shape, std::span<const double> values, DType dtype) {
  require(static_cast<int64_t>(values.size()) == shape.elements(), "{} values for a tensor of shape {}", values.size(),
          shape);
  const Tensor x = empty(arena, shape, dtype);
  for (int64_t i = 0; i < x.elements(); ++i) x.set_flat(i, values[static_cast<size_t>(i)]);
  return x;
}

Tensor contiguous(Arena& arena, const Tensor& x) {
  return x.contiguous() ? x : converted(arena, x, x.dtype());
}

Tensor converted(Arena& arena, const Tensor& x, DType dtype) {
  const Tensor result = empty(arena, x.shape(), dtype);
  result.copy_from(x);
  return result;
}

bool all_finite(const Tensor& x) {
  return dispatch(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* values = x.data<T>();
    bool finite = true;
    for_each_offset(x, [&](int64_t offset) { finite = finite && std::isfinite(values[offset]); });
    return finite;
  });
}

double sum_of_squares(const Tensor& x) {
  return dispatch(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* values = x.data<T>();
    double sum = 0;
    for_each_offset(
        x, [&](int64_t offset) { sum += static_cast<double>(values[offset]) * static_cast<double>(values[offset]); });
    return sum;
  });
}

void require_contiguous_rows(const Tensor& x, const char* what) {
  require(x.rank() == 0 || x.size(-1) <= 1 || x.stride(-1) == 1,
          "{}: the last dimension must be contiguous, its stride is {}", what, x.rank() == 0 ? 1 : x.stride(-1));
}

void require_shape(const Tensor& x, const Shape& shape, const char* what) {
  require(x.shape() == shape, "{} has shape {}, must have {}", what, x.shape(), shape);
}

}  // namespace sextant
