#include "core/reflections.h"

#include <algorithm>
#include <array>

#include "core/cpu.h"
#include "core/parallel.h"
#include "core/simd/reflections.h"

namespace sextant::kernels {

namespace {

constexpr int64_t block = reflection_block;
constexpr size_t most_features = 3;

template <class T>
const ReflectionTable<T>& reflection_table() {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return isa_avx512::reflection_table(T{});
  if (isa() == Isa::avx2) return isa_avx2::reflection_table(T{});
#endif
  return isa_plain::reflection_table(T{});
}

struct Sizes {
  int64_t batch, length, heads, dim;
  explicit Sizes(const Shape& w) : batch(w[0]), length(w[1]), heads(w[2]), dim(w[3]) {}
  int64_t stride() const { return (dim + reflection_lanes - 1) / reflection_lanes * reflection_lanes; }
  int64_t blocks() const { return (length + block - 1) / block; }
  int64_t square() const { return dim * stride(); }
};

template <class T>
T* row_of(const Tensor& x, int64_t b, int64_t t, int64_t h) {
  return x.defined() ? x.data<T>() + b * x.stride(0) + t * x.stride(1) + h * x.stride(2) : nullptr;
}

double* anchor_of(const Tensor& anchors, const Sizes& sizes, int64_t pair, int64_t n) {
  return anchors.data<double>() + (pair * (sizes.blocks() + 1) + n) * sizes.square();
}

// Rows [first, ..) of one (batch, head), up to the end of their block.
template <class T>
ReflectionBlock<T> block_of(const Tensor& w, const Sizes& sizes, int64_t pair, int64_t first, bool back,
                            double* product, double* scratch) {
  ReflectionBlock<T> result{};
  result.length = std::min(block, sizes.length - first);
  result.dim = sizes.dim;
  result.stride = sizes.stride();
  result.back = back;
  result.w = row_of<T>(w, pair / sizes.heads, first, pair % sizes.heads);
  result.w_row = w.stride(1);
  result.product = product;
  result.scratch = scratch;
  return result;
}

// Each thread's piece of the caller's scratch.
class Pieces {
 public:
  Pieces(Arena& arena, int64_t doubles)
      : size_((doubles + 7) / 8 * 8),
        data_(static_cast<double*>(arena.allocate(static_cast<size_t>(size_ * threads()) * sizeof(double)))) {}
  double* mine() const { return data_ + omp_get_thread_num() * size_; }

 private:
  int64_t size_;
  double* data_;
};

}  // namespace

Shape reflection_anchors_shape(const Shape& w) {
  const Sizes sizes(w);
  return {sizes.batch, sizes.heads, sizes.blocks() + 1, sizes.dim, sizes.stride()};
}

void accumulate_reflections(const Tensor& w, const Tensor& before, int64_t first, const Tensor& anchors,
                            Arena& scratch) {
  const Sizes sizes(w.shape());
  require_shape(anchors, reflection_anchors_shape(w.shape()), "anchors");
  const Arena::Mark mark = scratch.mark();
  const Pieces pieces(scratch, 3 * sizes.square() + 6 * sizes.stride());
  dispatch(w.dtype(), [&](auto type) {
    using T = decltype(type);
    const ReflectionTable<T>& table = reflection_table<T>();
    parallel_chunks(sizes.batch * sizes.heads, [&](int64_t pair) {
      double *product = pieces.mine(), *work = product + sizes.square();
      std::fill_n(product, sizes.square(), 0.0);
      if (before.defined()) {
        std::copy_n(before.data<double>() + pair * sizes.square(), sizes.square(), product);
      } else {
        for (int64_t i = 0; i < sizes.dim; ++i) product[i * sizes.stride() + i] = 1.0;
      }
      for (int64_t n = 0; n < sizes.blocks(); ++n) {
        std::copy_n(product, sizes.square(), anchor_of(anchors, sizes, pair, n));
        const ReflectionBlock<T> rows = block_of<T>(w, sizes, pair, n * block, false, product, work);
        table.advance(rows);
        const int64_t begin = first + n * block, end = begin + rows.length;
        if (begin / block < end / block) table.orthonormalise(sizes.dim, sizes.stride(), product, work);
      }
      std::copy_n(product, sizes.square(), anchor_of(anchors, sizes, pair, sizes.blocks()));
    });
  });
  scratch.rewind(mark);
}

void reflect(const Tensor& w, const Tensor& anchors, std::span<const Reflected> features, bool back, Arena& scratch) {
  const Sizes sizes(w.shape());
  assert(features.size() <= most_features);
  require_contiguous_rows(w, "reflect: w");
  for (const Reflected& one : features) {
    require_contiguous_rows(one.x, "reflect");
    require_contiguous_rows(one.y.tensor, "reflect: the result");
  }
  const Arena::Mark mark = scratch.mark();
  const Pieces pieces(scratch, sizes.square() + 6 * sizes.stride());
  dispatch(w.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_chunks(sizes.batch * sizes.heads * sizes.blocks(), [&](int64_t chunk) {
      const int64_t pair = chunk / sizes.blocks(), n = chunk % sizes.blocks(), b = pair / sizes.heads,
                    h = pair % sizes.heads;
      double* product = pieces.mine();
      std::copy_n(anchor_of(anchors, sizes, pair, n), sizes.square(), product);
      std::array<ReflectedRows<T>, most_features> rows{};
      for (size_t i = 0; i < features.size(); ++i) {
        const Reflected& one = features[i];
        rows[i] = {row_of<T>(one.x, b, n * block, h),
                   one.x.stride(1),
                   row_of<T>(one.y.tensor, b, n * block, h),
                   one.y.tensor.stride(1),
                   one.y.accumulate,
                   nullptr,
                   0};
      }
      ReflectionBlock<T> job = block_of<T>(w, sizes, pair, n * block, back, product, product + sizes.square());
      job.features = rows.data();
      job.count = static_cast<int64_t>(features.size());
      reflection_table<T>().forward(job);
    });
  });
  scratch.rewind(mark);
}

void reflect_backward(const Tensor& w, const Tensor& anchors, std::span<const ReflectedGradient> features, bool back,
                      const Sink& dw, Arena& scratch) {
  const Sizes sizes(w.shape());
  assert(features.size() <= most_features);
  require_contiguous_rows(w, "reflect_backward: w");
  if (dw.tensor.defined()) require_contiguous_rows(dw.tensor, "reflect_backward: the gradient of w");
  for (const ReflectedGradient& one : features) {
    require_contiguous_rows(one.x, "reflect_backward");
    require_contiguous_rows(one.dy, "reflect_backward: dy");
    if (one.dx.tensor.defined()) require_contiguous_rows(one.dx.tensor, "reflect_backward: dx");
  }
  const Arena::Mark mark = scratch.mark();
  const Pieces pieces(scratch, 2 * sizes.square() + 6 * sizes.stride());
  dispatch(w.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_chunks(sizes.batch * sizes.heads, [&](int64_t pair) {
      const int64_t b = pair / sizes.heads, h = pair % sizes.heads;
      double *product = pieces.mine(), *dproduct = product + sizes.square();
      std::fill_n(dproduct, sizes.square(), 0.0);
      for (int64_t n = sizes.blocks() - 1; n >= 0; --n) {
        // Back from the next anchor, which is this block's last product but for rounding.
        std::copy_n(anchor_of(anchors, sizes, pair, n + 1), sizes.square(), product);
        std::array<ReflectedRows<T>, most_features> rows{};
        for (size_t i = 0; i < features.size(); ++i) {
          const ReflectedGradient& one = features[i];
          const Tensor& dx = one.dx.tensor;
          rows[i] = {row_of<T>(one.x, b, n * block, h),
                     one.x.stride(1),
                     row_of<T>(dx, b, n * block, h),
                     dx.defined() ? dx.stride(1) : 0,
                     one.dx.accumulate,
                     row_of<T>(one.dy, b, n * block, h),
                     one.dy.stride(1)};
        }
        ReflectionBlock<T> job = block_of<T>(w, sizes, pair, n * block, back, product, dproduct + sizes.square());
        job.features = rows.data();
        job.count = static_cast<int64_t>(features.size());
        job.dproduct = dproduct;
        job.dw = row_of<T>(dw.tensor, b, n * block, h);
        job.dw_row = dw.tensor.defined() ? dw.tensor.stride(1) : 0;
        job.accumulate_dw = dw.accumulate;
        reflection_table<T>().backward(job);
      }
    });
  });
  scratch.rewind(mark);
}

}  // namespace sextant::kernels
