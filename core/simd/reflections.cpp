// Products of Householder reflections, step by step, and their gradient.
#include "core/simd/reflections.h"

#include "core/simd/vector.h"
#include "core/simd/vector_math.h"

namespace sextant::SEXTANT_ISA {

namespace {

// A dim x stride matrix against vectors of stride numbers whose padding is zero.
struct Square {
  double* data;
  int64_t dim, stride;
};

// Even and odd rows apart: two chains of additions instead of one, whose latency would decide.
template <int Vectors>
inline __attribute__((always_inline)) void columns_times(const Square& c, const double* x, double* y) {
  V<double> even[Vectors] = {}, odd[Vectors] = {};
  int64_t r = 0;
  for (; r + 2 <= c.dim; r += 2) {
    const V<double> factor0 = broadcast(x[r]), factor1 = broadcast(x[r + 1]);
    const double *row0 = c.data + r * c.stride, *row1 = row0 + c.stride;
    for (int n = 0; n < Vectors; ++n) {
      even[n] = fma(factor0, load(row0 + n * lanes<double>), even[n]);
      odd[n] = fma(factor1, load(row1 + n * lanes<double>), odd[n]);
    }
  }
  if (r < c.dim)
    for (int n = 0; n < Vectors; ++n)
      even[n] = fma(broadcast(x[r]), load(c.data + r * c.stride + n * lanes<double>), even[n]);
  for (int n = 0; n < Vectors; ++n) store(y + n * lanes<double>, even[n] + odd[n]);
}

// y = C^T x
void transposed_times(const Square& c, const double* x, double* y) {
  constexpr int64_t width = lanes<double>;
  int64_t column = 0;
  for (; column + 4 * width <= c.stride; column += 4 * width)
    columns_times<4>({c.data + column, c.dim, c.stride}, x, y + column);
  for (; column + 2 * width <= c.stride; column += 2 * width)
    columns_times<2>({c.data + column, c.dim, c.stride}, x, y + column);
  for (; column < c.stride; column += width) columns_times<1>({c.data + column, c.dim, c.stride}, x, y + column);
}

double dot(int64_t stride, const double* x, const double* y) {
  V<double> sum = {};
  for (int64_t i = 0; i < stride; i += lanes<double>) sum = fma(load(x + i), load(y + i), sum);
  return sum_of_lanes<double>(sum);
}

// y = C x; the padding of y is left alone. Four rows at a time, so that their sums do not wait for each other.
void times(const Square& c, const double* x, double* y) {
  int64_t first = 0;
  for (; first + 4 <= c.dim; first += 4) {
    const double* rows = c.data + first * c.stride;
    V<double> sums[4] = {};
    for (int64_t i = 0; i < c.stride; i += lanes<double>) {
      const V<double> part = load(x + i);
      for (int r = 0; r < 4; ++r) sums[r] = fma(load(rows + r * c.stride + i), part, sums[r]);
    }
    for (int r = 0; r < 4; ++r) y[first + r] = sum_of_lanes<double>(sums[r]);
  }
  for (int64_t r = first; r < c.dim; ++r) y[r] = dot(c.stride, c.data + r * c.stride, x);
}

// C += factor x y^T
void add_outer(const Square& c, double factor, const double* x, const double* y) {
  for (int64_t r = 0; r < c.dim; ++r) {
    const V<double> scaled = broadcast(factor * x[r]);
    double* row = c.data + r * c.stride;
    for (int64_t i = 0; i < c.stride; i += lanes<double>) store(row + i, fma(scaled, load(y + i), load(row + i)));
  }
}

template <class T>
void load_row(const T* from, int64_t dim, int64_t stride, double* to) {
  for (int64_t i = 0; i < dim; ++i) to[i] = static_cast<double>(from[i]);
  for (int64_t i = dim; i < stride; ++i) to[i] = 0.0;
}
template <class T>
void store_row(const double* from, int64_t dim, bool accumulate, T* to) {
  for (int64_t i = 0; i < dim; ++i) to[i] = static_cast<T>(from[i]) + (accumulate ? to[i] : T(0));
}

// u = w / |w| and |w|; u = 0 and 0 for a w too short to have a direction.
template <class T>
double unit_row(const ReflectionBlock<T>& block, int64_t t, double* u) {
  load_row(block.w + t * block.w_row, block.dim, block.stride, u);
  const double norm = __builtin_sqrt(dot(block.stride, u, u));
  const bool step = norm >= reflection_smallest_norm;
  const double factor = step ? 1.0 / norm : 0.0;
  for (int64_t i = 0; i < block.dim; ++i) u[i] *= factor;
  return step ? norm : 0.0;
}

template <class T>
void advance(const ReflectionBlock<T>& block) {
  const Square c{block.product, block.dim, block.stride};
  double *u = block.scratch, *a = u + block.stride;
  for (int64_t t = 0; t < block.length; ++t) {
    unit_row(block, t, u);
    transposed_times(c, u, a);
    add_outer(c, -2.0, u, a);
  }
}

template <class T>
void forward(const ReflectionBlock<T>& block) {
  const Square c{block.product, block.dim, block.stride};
  double *u = block.scratch, *a = u + block.stride, *x = a + block.stride, *y = x + block.stride;
  for (int64_t t = 0; t < block.length; ++t) {
    unit_row(block, t, u);
    transposed_times(c, u, a);
    add_outer(c, -2.0, u, a);
    for (int64_t n = 0; n < block.count; ++n) {
      const ReflectedRows<T>& rows = block.features[n];
      load_row(rows.x + t * rows.x_row, block.dim, block.stride, x);
      (block.back ? times : transposed_times)(c, x, y);
      store_row(y, block.dim, rows.accumulate, rows.y + t * rows.y_row);
    }
  }
}

// What the features of row t give to their inputs and to the gradient of C_t.
template <class T>
void backward_features(const ReflectionBlock<T>& block, int64_t t, const Square& c, const Square& dc, double* x,
                       double* dy, double* dx) {
  for (int64_t n = 0; n < block.count; ++n) {
    const ReflectedRows<T>& rows = block.features[n];
    load_row(rows.dy + t * rows.dy_row, block.dim, block.stride, dy);
    load_row(rows.x + t * rows.x_row, block.dim, block.stride, x);
    if (rows.y != nullptr) {
      (block.back ? transposed_times : times)(c, dy, dx);
      store_row(dx, block.dim, rows.accumulate, rows.y + t * rows.y_row);
    }
    add_outer(dc, 1.0, block.back ? dy : x, block.back ? x : dy);
  }
}

// With M = I - 2 u u^T, C_t = M C_{t-1}:  dM = dC_t C_{t-1}^T,  du = -2 (dM + dM^T) u,  dC_{t-1} = M dC_t, and C_{t-1}
// = M C_t, since M M = I. dw = (du - u <u, du>) / |w|
template <class T>
void backward(const ReflectionBlock<T>& block) {
  const int64_t stride = block.stride;
  const Square c{block.product, block.dim, stride}, dc{block.dproduct, block.dim, stride};
  double *u = block.scratch, *a = u + stride, *g = a + stride, *x = g + stride, *y = x + stride, *du = y + stride;
  for (int64_t t = block.length - 1; t >= 0; --t) {
    backward_features(block, t, c, dc, x, y, du);
    const double norm = unit_row(block, t, u);
    transposed_times(c, u, a);
    add_outer(c, -2.0, u, a);
    transposed_times(dc, u, g);
    if (block.dw != nullptr) {
      times(dc, a, x);  // a = C_t^T u = -C_{t-1}^T u
      times(c, g, y);
      double along = 0;
      for (int64_t i = 0; i < block.dim; ++i) {
        du[i] = 2.0 * (x[i] - y[i]);
        along += u[i] * du[i];
      }
      for (int64_t i = 0; i < block.dim; ++i) du[i] = norm > 0 ? (du[i] - u[i] * along) / norm : 0.0;
      store_row(du, block.dim, block.accumulate_dw, block.dw + t * block.dw_row);
    }
    add_outer(dc, -2.0, u, g);
  }
}

void orthonormalise(int64_t dim, int64_t stride, double* product, double* scratch) {
  const Square c{product, dim, stride};
  for (int64_t r = 0; r < dim; ++r) {
    double* row = scratch + r * stride;
    times(c, product + r * stride, row);  // (C C^T)[r]
    for (int64_t i = 0; i < dim; ++i) row[i] = 0.5 * ((i == r ? 1.0 : 0.0) - row[i]);
    for (int64_t i = dim; i < stride; ++i) row[i] = 0.0;
  }
  // The corrections are all made from C as it was, then added.
  for (int64_t r = 0; r < dim; ++r) transposed_times(c, scratch + r * stride, scratch + (dim + r) * stride);
  for (int64_t i = 0; i < dim * stride; ++i) product[i] += scratch[dim * stride + i];
}

const ReflectionTable<float> table_f32 = {advance<float>, forward<float>, backward<float>, orthonormalise};
const ReflectionTable<double> table_f64 = {advance<double>, forward<double>, backward<double>, orthonormalise};

}  // namespace

const ReflectionTable<float>& reflection_table(float) {
  return table_f32;
}
const ReflectionTable<double>& reflection_table(double) {
  return table_f64;
}

}  // namespace sextant::SEXTANT_ISA
