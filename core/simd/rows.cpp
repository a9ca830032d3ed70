// The inner loops of the row and elementwise kernels.
//
// Sums along a row are taken in the row's own type, in four vectors of partial sums (lane i of vector u sums every 4
// L-th number), sums over rows in blocks of a few rows and the blocks in double.
#include "core/simd/rows.h"

#include "core/simd/vector_math.h"

namespace sextant::SEXTANT_ISA {

namespace {

// ---- loops over an array by vectors -------------------------------------------------------------------------------

// Which lanes a step of a loop touches: all, or the first few at the end of the array.
struct Whole {};
struct Part {
  int count;
};

template <class T>
SEXTANT_INLINE V<T> load_lanes(const T* address, Whole, T = T(0)) {
  return load(address);
}
template <class T>
SEXTANT_INLINE V<T> load_lanes(const T* address, Part part, T rest = T(0)) {
  return load_part(address, part.count, rest);
}
template <class T>
SEXTANT_INLINE void store_lanes(T* address, V<T> v, Whole) {
  store(address, v);
}
template <class T>
SEXTANT_INLINE void store_lanes(T* address, V<T> v, Part part) {
  store_part(address, v, part.count);
}

// target[i] += lane i
template <class T>
SEXTANT_INLINE void add_lanes(double* target, V<T> v, Whole) {
  for (int i = 0; i < lanes<T>; ++i) target[i] += static_cast<double>(v[i]);
}
template <class T>
SEXTANT_INLINE void add_lanes(double* target, V<T> v, Part part) {
  for (int i = 0; i < part.count; ++i) target[i] += static_cast<double>(v[i]);
}

// f(first, lanes, u) for the vectors of [0, count), u running through 0, 1, 2, 3: which partial sum the vector belongs
// to.
template <class T, class F>
SEXTANT_INLINE void for_vectors(int64_t count, F f) {
  constexpr int64_t L = lanes<T>;
  int64_t i = 0;
  for (; i + 4 * L <= count; i += 4 * L) {
    f(i, Whole(), 0);
    f(i + L, Whole(), 1);
    f(i + 2 * L, Whole(), 2);
    f(i + 3 * L, Whole(), 3);
  }
  for (; i + L <= count; i += L) f(i, Whole(), 0);
  if (i < count) f(i, Part{static_cast<int>(count - i)}, 1);
}

// Four partial sums (or maxima) that for_vectors fills.
template <class T>
struct Partial {
  V<T> v[4];
  T sum() const { return sum_of_lanes<T>((v[0] + v[1]) + (v[2] + v[3])); }
};

SEXTANT_INLINE float square_root(float x) {
  return __builtin_sqrtf(x);
}
SEXTANT_INLINE double square_root(double x) {
  return __builtin_sqrt(x);
}
template <class T>
SEXTANT_INLINE V<T> square_root_of_lanes(V<T> v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return (V<T>)_mm512_maskz_sqrt_ps(all_lanes, (__m512)v);
  else
    return (V<T>)_mm512_maskz_sqrt_pd(static_cast<__mmask8>(all_lanes), (__m512d)v);
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4)
    return (V<T>)_mm256_sqrt_ps((__m256)v);
  else
    return (V<T>)_mm256_sqrt_pd((__m256d)v);
#else
  for (int i = 0; i < lanes<T>; ++i) v[i] = square_root(v[i]);
  return v;
#endif
}

// ---- GELU ---------------------------------------------------------------------------------------------------------

template <class T>
void gelu_loop(const T* x, T* y, int64_t count) {
  for_vectors<T>(count, [=](int64_t i, auto part, int) { store_lanes(y + i, gelu<T>(load_lanes(x + i, part)), part); });
}

template <class T>
void gelu_backward_loop(const T* x, const T* dy, T* dx, bool accumulate, int64_t count) {
  for_vectors<T>(count, [=](int64_t i, auto part, int) {
    const V<T> gradient = load_lanes(dy + i, part) * gelu_gradient<T>(load_lanes(x + i, part));
    store_lanes(dx + i, accumulate ? load_lanes(dx + i, part) + gradient : gradient, part);
  });
}

// ---- layer norm ---------------------------------------------------------------------------------------------------
//
// xhat = (x - mean) rstd,  y = xhat gain + bias. The mean as a number of type T misses the true one by `shift`, which
// for rows far from zero is not small against the deviations; so x - mean, which is exact there, is corrected by its
// own mean.

template <class T>
SEXTANT_INLINE void layer_norm_row(const LayerNormRows<T>& a, int64_t row) {
  const int64_t C = a.width, first = row * C;
  const T* x = a.x + first;
  Partial<T> total{};
  if (a.residual != nullptr) {
    const T* residual = a.residual + first;
    T* sum = a.sum + first;
    for_vectors<T>(C, [&](int64_t i, auto part, int u) {
      const V<T> s = load_lanes(x + i, part) + load_lanes(residual + i, part);
      store_lanes(sum + i, s, part);
      total.v[u] += s;
    });
    x = sum;
  } else {
    for_vectors<T>(C, [&](int64_t i, auto part, int u) { total.v[u] += load_lanes(x + i, part); });
  }
  const T mean = total.sum() / static_cast<T>(C);
  Partial<T> deviation{}, square{};
  for_vectors<T>(C, [&](int64_t i, auto part, int u) {
    const V<T> d = load_lanes(x + i, part, mean) - broadcast(mean);
    deviation.v[u] += d;
    square.v[u] = fma(d, d, square.v[u]);
  });
  const T shift = deviation.sum() / static_cast<T>(C);
  const T variance = square.sum() / static_cast<T>(C) - shift * shift;
  const T rstd = T(1) / square_root(variance + a.epsilon);
  T* y = a.y + first;
  for_vectors<T>(C, [&](int64_t i, auto part, int) {
    const V<T> xhat = ((load_lanes(x + i, part) - broadcast(mean)) - broadcast(shift)) * broadcast(rstd);
    store_lanes(y + i, fma(xhat, load_lanes(a.gain + i, part), load_lanes(a.bias + i, part)), part);
  });
  a.mean[row] = mean;
  a.rstd[row] = rstd;
}

template <class T>
void layer_norm_loop(const LayerNormRows<T>& arrays, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) layer_norm_row(arrays, row);
}

// What the backward needs to know of a row: with a = mean(gain dy), b = mean(gain dy xhat),
// dx = rstd (gain dy - a - xhat b) = rstd gain dy - slope (x - mean) + offset
template <class T>
struct RowStatistics {
  T mean, shift, rstd, slope, offset;
};

template <class T>
SEXTANT_INLINE RowStatistics<T> row_statistics(const LayerNormBackwardRows<T>& a, int64_t row) {
  const int64_t C = a.width;
  const T *x = a.sum + row * C, *dy = a.dy + row * C;
  const T mean = a.mean[row], rstd = a.rstd[row];
  Partial<T> deviation{}, gradient{}, product{};
  for_vectors<T>(C, [&](int64_t i, auto part, int u) {
    const V<T> d = load_lanes(x + i, part, mean) - broadcast(mean);
    const V<T> g = load_lanes(dy + i, part) * load_lanes(a.gain + i, part);
    deviation.v[u] += d;
    gradient.v[u] += g;
    product.v[u] = fma(g, d, product.v[u]);
  });
  const T shift = deviation.sum() / static_cast<T>(C);
  const T mean_gradient = gradient.sum() / static_cast<T>(C);
  const T mean_product = product.sum() / static_cast<T>(C) - shift * mean_gradient;
  const T slope = rstd * rstd * rstd * mean_product;
  return {mean, shift, rstd, slope, slope * shift - rstd * mean_gradient};
}

// dgain[c] += sum over the block's rows of dy xhat, dbias[c] += of dy: for `vectors` vectors of columns at a time, in
// registers.
template <class T, int vectors, class Lanes>
SEXTANT_INLINE void add_columns(const LayerNormBackwardRows<T>& a, const RowStatistics<T>* statistics, int64_t begin,
                                int64_t end, int64_t column, Lanes part, double* dgain, double* dbias) {
  V<T> gain[vectors] = {}, bias[vectors] = {};
  for (int64_t row = begin; row < end; ++row) {
    const RowStatistics<T>& s = statistics[row - begin];
    const T *x = a.sum + row * a.width + column, *dy = a.dy + row * a.width + column;
#pragma GCC unroll 4
    for (int u = 0; u < vectors; ++u) {
      const V<T> xhat =
          ((load_lanes(x + u * lanes<T>, part) - broadcast(s.mean)) - broadcast(s.shift)) * broadcast(s.rstd);
      const V<T> g = load_lanes(dy + u * lanes<T>, part);
      gain[u] = fma(g, xhat, gain[u]);
      bias[u] += g;
    }
  }
  for (int u = 0; u < vectors; ++u) {
    add_lanes<T>(dgain + column + u * lanes<T>, gain[u], part);
    add_lanes<T>(dbias + column + u * lanes<T>, bias[u], part);
  }
}

template <class T>
SEXTANT_INLINE void add_all_columns(const LayerNormBackwardRows<T>& a, const RowStatistics<T>* statistics,
                                    int64_t begin, int64_t end, double* dgain, double* dbias) {
  constexpr int64_t L = lanes<T>;
  int64_t column = 0;
  for (; column + 4 * L <= a.width; column += 4 * L)
    add_columns<T, 4>(a, statistics, begin, end, column, Whole(), dgain, dbias);
  for (; column + L <= a.width; column += L)
    add_columns<T, 1>(a, statistics, begin, end, column, Whole(), dgain, dbias);
  if (column < a.width)
    add_columns<T, 1>(a, statistics, begin, end, column, Part{static_cast<int>(a.width - column)}, dgain, dbias);
}

template <class T>
SEXTANT_INLINE void layer_norm_backward_row(const LayerNormBackwardRows<T>& a, const RowStatistics<T>& s, int64_t row) {
  const int64_t first = row * a.width;
  const T *x = a.sum + first, *dy = a.dy + first;
  T* dsum = a.dsum + first;
  for_vectors<T>(a.width, [&](int64_t i, auto part, int) {
    const V<T> scaled = load_lanes(a.gain + i, part) * broadcast(s.rstd);
    const V<T> d = load_lanes(x + i, part) - broadcast(s.mean);
    V<T> dx = fma(load_lanes(dy + i, part), scaled, fma(d, broadcast(-s.slope), broadcast(s.offset)));
    if (a.direct != nullptr) dx += load_lanes(a.direct + first + i, part);
    if (a.accumulate) dx += load_lanes(dsum + i, part);
    store_lanes(dsum + i, dx, part);
  });
}

template <class T>
void layer_norm_backward_loop(const LayerNormBackwardRows<T>& a, int64_t begin, int64_t end, double* dgain,
                              double* dbias) {
  constexpr int64_t most_rows = 32;
  RowStatistics<T> statistics[most_rows];
  // So many rows that they stay in the first-level cache from their statistics to their gradient.
  const int64_t fitting = 4096 / a.width, block = fitting < 4 ? 4 : fitting > most_rows ? most_rows : fitting;
  if (dgain != nullptr) {
    for (int64_t c = 0; c < a.width; ++c) dgain[c] = dbias[c] = 0;
  }
  for (int64_t first = begin; first < end; first += block) {
    const int64_t last = first + block < end ? first + block : end;
    for (int64_t row = first; row < last; ++row) statistics[row - first] = row_statistics(a, row);
    // Before dsum is written, which may be the array of dy.
    if (dgain != nullptr) add_all_columns(a, statistics, first, last, dgain, dbias);
    for (int64_t row = first; row < last; ++row) layer_norm_backward_row(a, statistics[row - first], row);
  }
}

// ---- cross-entropy ------------------------------------------------------------------------------------------------
//
// A row with a NaN, with +infinity, or of -infinity alone has no softmax: its loss, lse and gradient are NaN. A target
// whose logit is -infinity has loss +infinity. The gradient's softmax is exp(logit - lse), of relative error |lse| ulps
// at most, lse being of the logits' type.

template <class T>
SEXTANT_INLINE T largest(const T* x, int64_t count) {
  const T lowest = static_cast<T>(-__builtin_inf());
  V<T> top[4] = {broadcast(lowest), broadcast(lowest), broadcast(lowest), broadcast(lowest)};
  for_vectors<T>(count, [&](int64_t i, auto part, int u) { top[u] = max<T>(load_lanes(x + i, part, lowest), top[u]); });
  return max_of_lanes<T>(max<T>(max<T>(top[0], top[1]), max<T>(top[2], top[3])));
}

// sum of exp(x - top), in double beyond blocks of 1024
template <class T>
SEXTANT_INLINE double sum_of_exp(const T* x, T top, int64_t count) {
  const T lowest = static_cast<T>(-__builtin_inf());
  double sum = 0;
  for (int64_t first = 0; first < count; first += 1024) {
    Partial<T> partial{};
    for_vectors<T>(count - first < 1024 ? count - first : 1024, [&](int64_t i, auto part, int u) {
      partial.v[u] += exp_nonpositive<T>(load_lanes(x + first + i, part, lowest) - broadcast(top));
    });
    sum += static_cast<double>(partial.sum());
  }
  return sum;
}

template <class T>
void cross_entropy_loop(const T* logits, const int32_t* targets, double* loss, T* lse, int64_t vocabulary,
                        int64_t begin, int64_t end) {
  constexpr int group = 8;  // rows whose logarithms are taken together
  for (int64_t first = begin; first < end; first += group) {
    const int rows = static_cast<int>(first + group < end ? group : end - first);
    double top[group] = {}, sum[group] = {1, 1, 1, 1, 1, 1, 1, 1};
    for (int r = 0; r < rows; ++r) {
      if (targets[first + r] < 0) continue;
      const T* x = logits + (first + r) * vocabulary;
      const T high = largest(x, vocabulary);
      top[r] = static_cast<double>(high);
      sum[r] = sum_of_exp(x, high, vocabulary);
    }
    for (int r = 0; r < group; r += lanes<double>)
      store(sum + r, log<double>(load<double>(sum + r)));  // sum is now its logarithm
    for (int r = 0; r < rows; ++r) {
      const int64_t row = first + r;
      lse[row] = static_cast<T>(top[r] + sum[r]);
      // In this order, so that the loss keeps its digits also where the logits are large.
      loss[row] =
          targets[row] < 0 ? 0.0 : (top[r] - static_cast<double>(logits[row * vocabulary + targets[row]])) + sum[r];
    }
  }
}

template <class T>
void cross_entropy_backward_loop(const T* logits, const int32_t* targets, const T* lse, T scale, T* dlogits,
                                 bool accumulate, int64_t vocabulary, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = logits + row * vocabulary;
    T* dx = dlogits + row * vocabulary;
    const int32_t target = targets[row];
    if (target < 0) {
      if (!accumulate) __builtin_memset(dx, 0, static_cast<unsigned long>(vocabulary) * sizeof(T));
      continue;
    }
    for_vectors<T>(vocabulary, [&](int64_t i, auto part, int) {
      const V<T> gradient = exp_nonpositive<T>(load_lanes(x + i, part) - broadcast(lse[row])) * broadcast(scale);
      store_lanes(dx + i, accumulate ? load_lanes(dx + i, part) + gradient : gradient, part);
    });
    dx[target] -= scale;
  }
}

// ---- embedding ----------------------------------------------------------------------------------------------------

// A few columns of the sum over one row's tokens: a leaf's is made in double, then rounded to T, as is every sum after.
constexpr int column_block = 64;
struct Columns {
  double v[column_block];
};

// The sum over the tokens [begin, end) of the list, which belong to the leaves [first, last): of two halves, as
// core/tree_sum.h has it. Leaves without a token add nothing; that is adding +0, since no sum here is -0.
template <class T>
void tree_sum(const T* dy, const TokenList& list, int64_t begin, int64_t end, int64_t rows_of_leaf, int64_t first,
              int64_t last, int64_t width, int columns, Columns& sum) {
  if (last - first == 1) {
    for (int c = 0; c < columns; ++c) sum.v[c] = 0;
    for (int64_t i = begin; i < end; ++i) {
      const T* row = dy + list.tokens[i] * width;
      for (int c = 0; c < columns; ++c) sum.v[c] += static_cast<double>(row[c]);
    }
    for (int c = 0; c < columns; ++c) sum.v[c] = static_cast<T>(sum.v[c]) + T(0);
    return;
  }
  const int64_t half = last - first - (last - first) / 2;
  int64_t middle = begin;
  while (middle < end && list.tokens[middle] < (first + half) * rows_of_leaf) ++middle;
  if (middle == end) return tree_sum(dy, list, begin, end, rows_of_leaf, first, first + half, width, columns, sum);
  if (middle == begin) return tree_sum(dy, list, begin, end, rows_of_leaf, first + half, last, width, columns, sum);
  Columns right;
  tree_sum(dy, list, begin, middle, rows_of_leaf, first, first + half, width, columns, sum);
  tree_sum(dy, list, middle, end, rows_of_leaf, first + half, last, width, columns, right);
  for (int c = 0; c < columns; ++c) sum.v[c] = static_cast<T>(sum.v[c] + right.v[c]);
}

template <class T>
void embedding_backward_row(const T* dy, TokenList list, int64_t rows_of_leaf, int64_t leaves, T* row, bool accumulate,
                            int64_t width) {
  for (int64_t column = 0; column < width; column += column_block) {
    const int columns = static_cast<int>(width - column < column_block ? width - column : column_block);
    Columns sum;
    tree_sum(dy + column, list, 0, list.count, rows_of_leaf, 0, leaves, width, columns, sum);
    T* target = row + column;
    for (int c = 0; c < columns; ++c) target[c] = static_cast<T>(sum.v[c]) + (accumulate ? target[c] : T(0));
  }
}

// ---- optimizer ----------------------------------------------------------------------------------------------------

template <class T>
void adam_loop(T* weight, const T* gradient, T* m, T* v, const AdamConstants<T>& constants, int64_t count) {
  const AdamConstants<T> c = constants;
  for_vectors<T>(count, [=](int64_t i, auto part, int) {
    const V<T> g = load_lanes(gradient + i, part) * broadcast(c.gradient_scale);
    const V<T> first = fma(load_lanes(m + i, part), broadcast(c.beta1), g * broadcast(c.one_minus_beta1));
    const V<T> second = fma(load_lanes(v + i, part), broadcast(c.beta2), g * g * broadcast(c.one_minus_beta2));
    const V<T> step = first / fma(square_root_of_lanes<T>(second), broadcast(c.root_scale), broadcast(c.epsilon));
    const V<T> w = load_lanes(weight + i, part);
    store_lanes(m + i, first, part);
    store_lanes(v + i, second, part);
    store_lanes(weight + i, w - fma(step, broadcast(c.rate), w * broadcast(c.decay)), part);
  });
}

template <class T>
double squared_norm_loop(const T* x, int64_t count) {
  constexpr int sums = 32;
  double sum[sums] = {};
  int64_t i = 0;
  for (; i + sums <= count; i += sums) {
    for (int j = 0; j < sums; ++j) sum[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
  }
  for (; i < count; ++i) sum[i % sums] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (int half = sums / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) sum[j] += sum[j + half];
  }
  return sum[0];
}

template <class T>
constexpr RowKernels<T> kernels = {
    gelu_loop<T>,          gelu_backward_loop<T>,          layer_norm_loop<T>,        layer_norm_backward_loop<T>,
    cross_entropy_loop<T>, cross_entropy_backward_loop<T>, embedding_backward_row<T>, adam_loop<T>,
    squared_norm_loop<T>};
const RowTable table = {kernels<float>, kernels<double>};

}  // namespace

const RowTable& row_table() {
  return table;
}

}  // namespace sextant::SEXTANT_ISA
