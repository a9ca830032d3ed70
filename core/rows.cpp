// Row and elementwise kernels: what surrounds the products in a Transformer. Here the shapes are checked and the work
// is cut into chunks; the loops are in core/simd/rows.cpp.
#include <cmath>
#include <cstring>

#include "core/cpu.h"
#include "core/error.h"
#include "core/kernels.h"
#include "core/parallel.h"
#include "core/shape_format.h"
#include "core/simd/rows.h"
#include "core/tree_sum.h"

namespace sextant::kernels {

namespace {

constexpr int64_t chunk_elements = 16384;

int64_t rows_of_chunk(int64_t width) {
  return std::max<int64_t>(1, chunk_elements / std::max<int64_t>(1, width));
}

template <class T>
const RowKernels<T>& loops() {
  const auto of = [](const RowTable& table) -> const RowKernels<T>& {
    if constexpr (std::is_same_v<T, float>)
      return table.f32;
    else
      return table.f64;
  };
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return of(isa_avx512::row_table());
  if (isa() == Isa::avx2) return of(isa_avx2::row_table());
#endif
  return of(isa_plain::row_table());
}

void require_dense(const Tensor& x, const Shape& shape, DType dtype, const char* what) {
  require_shape(x, shape, what);
  require(x.dtype() == dtype, "{} is {}, must be {}", what, name_of(x.dtype()), name_of(dtype));
  require(x.contiguous(), "{} of shape {} is a view with gaps, must be contiguous", what, x.shape());
}

void require_rows(const Tensor& x, const char* what) {
  require(x.rank() == 2, "{} has shape {}, must have two dimensions, [rows, columns]", what, x.shape());
  require(x.size(1) > 0, "{} has shape {}, must have at least one column", what, x.shape());
}

void require_leaves(int64_t rows, int64_t leaves) {
  require(leaves >= 1 && rows % leaves == 0, "{} leaves for {} rows, must be at least 1 and divide the rows", leaves,
          rows);
}

template <class T>
T* data_or_null(const Tensor& x) {
  return x.defined() ? x.data<T>() : nullptr;
}

}  // namespace

void gelu(const Tensor& x, const Tensor& y) {
  require_dense(x, x.shape(), x.dtype(), "gelu: x");
  require_dense(y, x.shape(), x.dtype(), "gelu: y");
  dispatch(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const RowKernels<T>& run = loops<T>();
    parallel_ranges(x.elements(), chunk_elements, [&](int64_t begin, int64_t end) {
      run.gelu(x.data<T>() + begin, y.data<T>() + begin, end - begin);
    });
  });
}

void gelu_backward(const Tensor& x, const Tensor& dy, const Sink& dx) {
  require_dense(x, x.shape(), x.dtype(), "gelu_backward: x");
  require_dense(dy, x.shape(), x.dtype(), "gelu_backward: dy");
  require_dense(dx.tensor, x.shape(), x.dtype(), "gelu_backward: dx");
  dispatch(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const RowKernels<T>& run = loops<T>();
    parallel_ranges(x.elements(), chunk_elements, [&](int64_t begin, int64_t end) {
      run.gelu_backward(x.data<T>() + begin, dy.data<T>() + begin, dx.tensor.data<T>() + begin, dx.accumulate,
                        end - begin);
    });
  });
}

void layer_norm(const Tensor& x, const Tensor& residual, const Tensor& gain, const Tensor& bias, double epsilon,
                const Tensor& sum, const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  require_rows(x, "layer_norm: x");
  const int64_t rows = x.size(0), width = x.size(1);
  require_dense(x, x.shape(), x.dtype(), "layer_norm: x");
  require_dense(gain, {width}, x.dtype(), "layer_norm: gain");
  require_dense(bias, {width}, x.dtype(), "layer_norm: bias");
  require_dense(y, x.shape(), x.dtype(), "layer_norm: y");
  require_dense(mean, {rows}, x.dtype(), "layer_norm: mean");
  require_dense(rstd, {rows}, x.dtype(), "layer_norm: rstd");
  if (residual.defined()) {
    require_dense(residual, x.shape(), x.dtype(), "layer_norm: residual");
    require_dense(sum, x.shape(), x.dtype(), "layer_norm: sum");
  }
  dispatch(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const RowKernels<T>& run = loops<T>();
    const LayerNormRows<T> arrays = {.x = x.data<T>(),
                                     .residual = data_or_null<T>(residual),
                                     .gain = gain.data<T>(),
                                     .bias = bias.data<T>(),
                                     .sum = residual.defined() ? sum.data<T>() : nullptr,
                                     .y = y.data<T>(),
                                     .mean = mean.data<T>(),
                                     .rstd = rstd.data<T>(),
                                     .epsilon = static_cast<T>(epsilon),
                                     .width = width};
    parallel_ranges(rows, rows_of_chunk(width),
                    [&](int64_t begin, int64_t end) { run.layer_norm(arrays, begin, end); });
  });
}

namespace {

// sink (+)= the sum over leaves.
template <class T>
void write_leaf_sum(const Sink& sink, const double* sum, int64_t width) {
  if (!sink.tensor.defined()) return;
  T* target = sink.tensor.data<T>();
  for (int64_t c = 0; c < width; ++c) target[c] = static_cast<T>(sum[c]) + (sink.accumulate ? target[c] : T(0));
}

}  // namespace

void layer_norm_backward(const Tensor& sum, const Tensor& gain, const Tensor& mean, const Tensor& rstd,
                         const Tensor& dy, const Tensor& dsum_direct, int64_t leaves, const Sink& dsum,
                         const Sink& dgain, const Sink& dbias, const Tensor& scratch) {
  require_rows(sum, "layer_norm_backward: sum");
  const int64_t rows = sum.size(0), width = sum.size(1);
  const DType dtype = sum.dtype();
  require_leaves(rows, leaves);
  require_dense(sum, sum.shape(), dtype, "layer_norm_backward: sum");
  require_dense(gain, {width}, dtype, "layer_norm_backward: gain");
  require_dense(mean, {rows}, dtype, "layer_norm_backward: mean");
  require_dense(rstd, {rows}, dtype, "layer_norm_backward: rstd");
  require_dense(dy, sum.shape(), dtype, "layer_norm_backward: dy");
  require_dense(dsum.tensor, sum.shape(), dtype, "layer_norm_backward: dsum");
  if (dsum_direct.defined()) require_dense(dsum_direct, sum.shape(), dtype, "layer_norm_backward: dsum_direct");
  if (dgain.tensor.defined()) require_dense(dgain.tensor, {width}, dtype, "layer_norm_backward: dgain");
  if (dbias.tensor.defined()) require_dense(dbias.tensor, {width}, dtype, "layer_norm_backward: dbias");
  const bool parameters = dgain.tensor.defined() || dbias.tensor.defined();
  if (parameters) require_dense(scratch, {leaves, 2, width}, DType::f64, "layer_norm_backward: scratch");
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    const RowKernels<T>& run = loops<T>();
    const LayerNormBackwardRows<T> arrays = {.sum = sum.data<T>(),
                                             .gain = gain.data<T>(),
                                             .mean = mean.data<T>(),
                                             .rstd = rstd.data<T>(),
                                             .dy = dy.data<T>(),
                                             .direct = data_or_null<T>(dsum_direct),
                                             .dsum = dsum.tensor.data<T>(),
                                             .accumulate = dsum.accumulate,
                                             .width = width};
    if (!parameters) {
      parallel_ranges(rows, rows_of_chunk(width), [&](int64_t begin, int64_t end) {
        run.layer_norm_backward(arrays, begin, end, nullptr, nullptr);
      });
      return;
    }
    double* sums = scratch.data<double>();
    const int64_t rows_of_leaf = rows / leaves;
    parallel_chunks(leaves, [&](int64_t leaf) {
      double* of_leaf = sums + leaf * 2 * width;
      run.layer_norm_backward(arrays, leaf * rows_of_leaf, (leaf + 1) * rows_of_leaf, of_leaf, of_leaf + width);
    });
    tree_sum_rows<T>(leaves, 2 * width, sums, 2 * width);
    write_leaf_sum<T>(dgain, sums, width);
    write_leaf_sum<T>(dbias, sums + width, width);
  });
}

namespace {

void require_targets(std::span<const int32_t> targets, int64_t rows, int64_t vocabulary, const char* what) {
  require(static_cast<int64_t>(targets.size()) == rows, "{}: {} targets for {} rows of logits", what, targets.size(),
          rows);
  for (size_t n = 0; n < targets.size(); ++n)
    require(targets[n] >= -1 && targets[n] < vocabulary,
            "{}: target {} at position {}, must be -1 (ignored) or 0 to {}", what, targets[n], n, vocabulary - 1);
}

}  // namespace

void cross_entropy(const Tensor& logits, std::span<const int32_t> targets, const Tensor& loss, const Tensor& lse) {
  require_rows(logits, "cross_entropy: logits");
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  require_dense(logits, logits.shape(), logits.dtype(), "cross_entropy: logits");
  require_dense(loss, {rows}, DType::f64, "cross_entropy: loss");
  require_dense(lse, {rows}, logits.dtype(), "cross_entropy: lse");
  require_targets(targets, rows, vocabulary, "cross_entropy");
  dispatch(logits.dtype(), [&](auto type) {
    using T = decltype(type);
    const RowKernels<T>& run = loops<T>();
    parallel_ranges(rows, rows_of_chunk(vocabulary), [&](int64_t begin, int64_t end) {
      run.cross_entropy(logits.data<T>(), targets.data(), loss.data<double>(), lse.data<T>(), vocabulary, begin, end);
    });
  });
}

void cross_entropy_backward(const Tensor& logits, std::span<const int32_t> targets, const Tensor& lse, double scale,
                            const Sink& dlogits) {
  require_rows(logits, "cross_entropy_backward: logits");
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  require_dense(logits, logits.shape(), logits.dtype(), "cross_entropy_backward: logits");
  require_dense(lse, {rows}, logits.dtype(), "cross_entropy_backward: lse");
  require_dense(dlogits.tensor, logits.shape(), logits.dtype(), "cross_entropy_backward: dlogits");
  require_targets(targets, rows, vocabulary, "cross_entropy_backward");
  dispatch(logits.dtype(), [&](auto type) {
    using T = decltype(type);
    const RowKernels<T>& run = loops<T>();
    parallel_ranges(rows, rows_of_chunk(vocabulary), [&](int64_t begin, int64_t end) {
      run.cross_entropy_backward(logits.data<T>(), targets.data(), lse.data<T>(), static_cast<T>(scale),
                                 dlogits.tensor.data<T>(), dlogits.accumulate, vocabulary, begin, end);
    });
  });
}

namespace {

void require_ids(std::span<const int32_t> ids, int64_t vocabulary, const char* what) {
  for (size_t n = 0; n < ids.size(); ++n)
    require(ids[n] >= 0 && ids[n] < vocabulary, "{}: id {} at position {}, must be 0 to {} (vocabulary {})", what,
            ids[n], n, vocabulary - 1, vocabulary);
}

}  // namespace

void embedding(const Tensor& table, std::span<const int32_t> ids, const Tensor& y) {
  require_rows(table, "embedding: table");
  const int64_t vocabulary = table.size(0), width = table.size(1), rows = static_cast<int64_t>(ids.size());
  require_dense(table, table.shape(), table.dtype(), "embedding: table");
  require_dense(y, {rows, width}, table.dtype(), "embedding: y");
  require_ids(ids, vocabulary, "embedding");
  dispatch(table.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_ranges(rows, rows_of_chunk(width), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n)
        std::memcpy(y.data<T>() + n * width, table.data<T>() + ids[static_cast<size_t>(n)] * width,
                    static_cast<size_t>(width) * sizeof(T));
    });
  });
}

void embedding_backward(const Tensor& dy, std::span<const int32_t> ids, int64_t leaves, const Sink& dtable,
                        Arena& scratch) {
  require_rows(dtable.tensor, "embedding_backward: dtable");
  const int64_t vocabulary = dtable.tensor.size(0), width = dtable.tensor.size(1),
                rows = static_cast<int64_t>(ids.size());
  const DType dtype = dtable.tensor.dtype();
  require_leaves(rows, leaves);
  require_dense(dtable.tensor, dtable.tensor.shape(), dtype, "embedding_backward: dtable");
  require_dense(dy, {rows, width}, dtype, "embedding_backward: dy");
  require_ids(ids, vocabulary, "embedding_backward");

  // The tokens sorted by id, ascending among equals: those of id i are tokens[start[i]] up to tokens[start[i + 1] - 1].
  const Arena::Mark mark = scratch.mark();
  auto* start = static_cast<int64_t*>(scratch.allocate(static_cast<size_t>(vocabulary + 1) * sizeof(int64_t)));
  auto* tokens = static_cast<int64_t*>(scratch.allocate(static_cast<size_t>(rows) * sizeof(int64_t)));
  std::fill(start, start + vocabulary + 1, 0);
  for (int32_t id : ids) ++start[id];
  for (int64_t i = 1; i <= vocabulary; ++i) start[i] += start[i - 1];
  for (int64_t n = rows - 1; n >= 0; --n) tokens[--start[ids[static_cast<size_t>(n)]]] = n;

  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    const RowKernels<T>& run = loops<T>();
    parallel_ranges(vocabulary, rows_of_chunk(width), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* row = dtable.tensor.data<T>() + i * width;
        const TokenList list = {tokens + start[i], start[i + 1] - start[i]};
        if (list.count > 0)
          run.embedding_backward(dy.data<T>(), list, rows / leaves, leaves, row, dtable.accumulate, width);
        else if (!dtable.accumulate)
          std::fill(row, row + width, T(0));
      }
    });
  });
  scratch.rewind(mark);
}

void adam(const Tensor& weight, const Tensor& gradient, const Tensor& m, const Tensor& v, const AdamStep& step) {
  require_dense(weight, weight.shape(), weight.dtype(), "adam: weight");
  require_dense(gradient, weight.shape(), weight.dtype(), "adam: gradient");
  require_dense(m, weight.shape(), weight.dtype(), "adam: m");
  require_dense(v, weight.shape(), weight.dtype(), "adam: v");
  dispatch(weight.dtype(), [&](auto type) {
    using T = decltype(type);
    const AdamConstants<T> constants = {.beta1 = static_cast<T>(step.beta1),
                                        .one_minus_beta1 = static_cast<T>(1 - step.beta1),
                                        .beta2 = static_cast<T>(step.beta2),
                                        .one_minus_beta2 = static_cast<T>(1 - step.beta2),
                                        .gradient_scale = static_cast<T>(step.gradient_scale),
                                        .rate = static_cast<T>(step.lr / step.correction1),
                                        .root_scale = static_cast<T>(1 / std::sqrt(step.correction2)),
                                        .epsilon = static_cast<T>(step.epsilon),
                                        .decay = static_cast<T>(step.lr * step.decay)};
    const RowKernels<T>& run = loops<T>();
    parallel_ranges(weight.elements(), chunk_elements, [&](int64_t begin, int64_t end) {
      run.adam(weight.data<T>() + begin, gradient.data<T>() + begin, m.data<T>() + begin, v.data<T>() + begin,
               constants, end - begin);
    });
  });
}

double squared_norm(const Tensor& x) {
  require_dense(x, x.shape(), x.dtype(), "squared_norm: x");
  constexpr int64_t most_chunks = 256;
  std::array<double, most_chunks> partial{};
  const int64_t count = x.elements();
  const int64_t grain = std::max(chunk_elements, (count + most_chunks - 1) / most_chunks);
  dispatch(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const RowKernels<T>& run = loops<T>();
    parallel_ranges(count, grain, [&](int64_t begin, int64_t end) {
      partial[static_cast<size_t>(begin / grain)] = run.squared_norm(x.data<T>() + begin, end - begin);
    });
  });
  double sum = 0;
  for (double each : partial) sum += each;
  return sum;
}

}  // namespace sextant::kernels
