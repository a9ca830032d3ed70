#include "positional/pj_bias_kernel.h"

#include <cmath>
#include <span>

#include "core/parallel.h"

namespace sextant::pj {

namespace {

constexpr int64_t chunk_lags = 128;  // a chunk's work arrays stay in the first-level cache

// asinh(x) - x / sqrt(x^2 + 1) = x^3 / 3 - 3 x^5 / 10 + ..: where x is small the two terms leave nothing of each other.
double drift_of(double x) {
  if (x > 0.5) return std::asinh(x) - x / std::hypot(x, 1.0);
  double term = x, sum = 0;
  for (int n = 1; n <= 28; ++n) {
    term *= -x * x * (2 * n - 1) / (2 * n);
    sum -= term * (2 * n) / (2 * n + 1);
  }
  return sum;
}

}  // namespace

Tensor lag_table(Arena& arena, int64_t lags, const std::vector<DoubleDouble>& frequencies, double length_scale) {
  const int64_t count = static_cast<int64_t>(frequencies.size());
  const Tensor table = empty(arena, {4 + 4 * count, lags}, DType::f64);
  double* const rows = table.data<double>();
  parallel_ranges(lags, chunk_lags, [&](int64_t begin, int64_t end) {
    DoubleDouble light_cone[chunk_lags];
    for (int64_t n = begin; n < end; ++n) {
      const double d = static_cast<double>(n), x = d / length_scale;
      light_cone[n - begin] = light_cone_position(d, length_scale);
      rows[n] = x;
      rows[lags + n] = d / std::hypot(d, length_scale);
      rows[2 * lags + n] = light_cone[n - begin].value();
      rows[3 * lags + n] = length_scale * drift_of(x);
    }
    for (int64_t k = 0; k < count; ++k) {
      const DoubleDouble turns = in_turns(frequencies[static_cast<size_t>(k)]);
      for (int64_t n = begin; n < end; ++n) {
        const Phasor raw = phasor(n, turns), wave = phasor(light_cone[n - begin], turns);
        rows[(4 + k) * lags + n] = raw.cosine;
        rows[(4 + count + k) * lags + n] = raw.sine;
        rows[(4 + 2 * count + k) * lags + n] = wave.cosine;
        rows[(4 + 3 * count + k) * lags + n] = wave.sine;
      }
    }
  });
  return table;
}

Tensor envelope_table(Arena& arena, int64_t lags, const double* damping, int64_t frequencies, double length_scale) {
  const Tensor table = empty(arena, {frequencies, lags}, DType::f64);
  parallel_ranges(lags, chunk_lags, [&](int64_t begin, int64_t end) {
    for (int64_t k = 0; k < frequencies; ++k)
      for (int64_t n = begin; n < end; ++n)
        table.data<double>()[k * lags + n] = std::exp(-damping[k] * (static_cast<double>(n) / length_scale));
  });
  return table;
}

// ---- the sum of the sectors ---------------------------------------------------------------------------------------

namespace {

// sum_r c_r base^r, by Horner's rule, for a chunk of lags.
void polynomial(const double* coefficients, int64_t orders, const double* base, int64_t count, double* sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] = coefficients[orders - 1];
  for (int64_t r = orders - 2; r >= 0; --r)
    for (int64_t i = 0; i < count; ++i) sum[i] = sum[i] * base[i] + coefficients[r];
}

// sum += gate envelope (p_a cos + p_b sin)
void add_sector(double gate, const double* a, const double* b, int64_t orders, const double* base,
                const double* envelope, const double* cosine, const double* sine, int64_t count, double* sum) {
  double pa[chunk_lags], pb[chunk_lags];
  polynomial(a, orders, base, count, pa);
  polynomial(b, orders, base, count, pb);
  if (envelope != nullptr) {
    for (int64_t i = 0; i < count; ++i) sum[i] += gate * envelope[i] * (pa[i] * cosine[i] + pb[i] * sine[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) sum[i] += gate * (pa[i] * cosine[i] + pb[i] * sine[i]);
  }
}

template <class T>
void evaluate_chunk(const Coefficients& c, const Tables& tables, int64_t h, int64_t from, int64_t count, T* bias) {
  const double* x = tables.x() + from;
  double sum[chunk_lags];
  for (int64_t i = 0; i < count; ++i)
    sum[i] = c.constant == nullptr ? 0.0 : c.gate[1] * (c.constant[h] - c.slope[h] * x[i]);
  for (int64_t k = 0; k < c.frequencies; ++k) {
    const int64_t fj = (h * c.frequencies + k) * c.fj_orders, lc = (h * c.frequencies + k) * c.lc_orders;
    if (c.fj_orders > 0)
      add_sector(c.gate[0], c.fj_cos + fj, c.fj_sin + fj, c.fj_orders, x, tables.envelope(k) + from,
                 tables.fj_cos(k) + from, tables.fj_sin(k) + from, count, sum);
    if (c.lc_orders > 0)
      add_sector(c.gate[2], c.lc_cos + lc, c.lc_sin + lc, c.lc_orders, tables.amplitude() + from, nullptr,
                 tables.lc_cos(k) + from, tables.lc_sin(k) + from, count, sum);
  }
  for (int64_t i = 0; i < count; ++i) bias[from + i] = static_cast<T>(sum[i]);
}

}  // namespace

template <class T>
void evaluate(const Coefficients& c, const Tables& tables, T* bias) {
  const int64_t lags = tables.lags;
  const int64_t chunks = (lags + chunk_lags - 1) / chunk_lags;
  parallel_chunks(chunks, [&](int64_t chunk) {
    for (int64_t h = 0; h < c.heads; ++h)
      evaluate_chunk(c, tables, h, chunk * chunk_lags, std::min(chunk_lags, lags - chunk * chunk_lags),
                     bias + h * lags);
  });
}
template void evaluate(const Coefficients&, const Tables&, float*);
template void evaluate(const Coefficients&, const Tables&, double*);

// ---- the moments --------------------------------------------------------------------------------------------------

namespace {

double sum_of(const double* x, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += x[i];
  return sum;
}
double dot(const double* x, const double* y, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += x[i] * y[i];
  return sum;
}
void multiply_by(double* x, const double* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] *= y[i];
}

// moments[2 r], moments[2 r + 1] = sum u base^r {cos, sin} for r < orders; behind them the same times each of
// `factors`, for r < factor_orders.
void sector_moments(const double* u, const double* base, const double* cosine, const double* sine, int64_t orders,
                    std::span<const double* const> factors, int64_t factor_orders, int64_t count, double* moments) {
  double uc[chunk_lags], us[chunk_lags];
  for (int64_t i = 0; i < count; ++i) {
    uc[i] = u[i] * cosine[i];
    us[i] = u[i] * sine[i];
  }
  for (int64_t r = 0; r < orders; ++r) {
    if (r > 0) {
      multiply_by(uc, base, count);
      multiply_by(us, base, count);
    }
    moments[2 * r] = sum_of(uc, count);
    moments[2 * r + 1] = sum_of(us, count);
    double* behind = moments + 2 * (orders + r);
    for (const double* factor : factors) {
      if (r >= factor_orders) break;
      behind[0] = dot(uc, factor, count);
      behind[1] = dot(us, factor, count);
      behind += 2 * factor_orders;
    }
  }
}

void chunk_moments(const Coefficients& c, const Tables& tables, const Moments& layout, const double* u, int64_t from,
                   int64_t count, double* values) {
  const double* x = tables.x() + from;
  values[0] = sum_of(u, count);
  values[1] = dot(u, x, count);
  for (int64_t k = 0; k < c.frequencies; ++k) {
    if (c.fj_orders > 0) {
      double damped[chunk_lags];
      const double* envelope = tables.envelope(k) + from;
      for (int64_t i = 0; i < count; ++i) damped[i] = u[i] * envelope[i];
      sector_moments(damped, x, tables.fj_cos(k) + from, tables.fj_sin(k) + from, c.fj_orders + 1, {}, 0, count,
                     values + 2 + k * layout.fj_block());
    }
    if (c.lc_orders > 0) {
      const double* const factors[] = {tables.rapidity() + from, tables.drift() + from};
      sector_moments(u, tables.amplitude() + from, tables.lc_cos(k) + from, tables.lc_sin(k) + from, c.lc_orders + 2,
                     factors, c.lc_orders, count,
                     values + 2 + c.frequencies * layout.fj_block() + k * layout.lc_block());
    }
  }
}

}  // namespace

template <class T>
Moments moments(Arena& arena, const Coefficients& c, const Tables& tables, const T* u, int64_t row) {
  const int64_t lags = tables.lags, chunks = (lags + chunk_lags - 1) / chunk_lags;
  Moments result{c.frequencies, c.fj_orders, c.lc_orders, nullptr};
  const int64_t stride = result.stride();
  double* const total = zeros(arena, {c.heads, stride}, DType::f64).data<double>();
  result.values = total;
  double* const parts = empty(arena, {chunks, c.heads, stride}, DType::f64).template data<double>();
  parallel_chunks(chunks, [&](int64_t chunk) {
    const int64_t from = chunk * chunk_lags, count = std::min(chunk_lags, lags - from);
    for (int64_t h = 0; h < c.heads; ++h) {
      double values[chunk_lags];
      for (int64_t i = 0; i < count; ++i) values[i] = u[h * row + from + i];
      chunk_moments(c, tables, result, values, from, count, parts + (chunk * c.heads + h) * stride);
    }
  });
  for (int64_t chunk = 0; chunk < chunks; ++chunk)
    for (int64_t i = 0; i < c.heads * stride; ++i) total[i] += parts[chunk * c.heads * stride + i];
  return result;
}
template Moments moments(Arena&, const Coefficients&, const Tables&, const float*, int64_t);
template Moments moments(Arena&, const Coefficients&, const Tables&, const double*, int64_t);

}  // namespace sextant::pj
