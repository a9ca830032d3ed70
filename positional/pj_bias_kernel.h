// The numbers behind the PJ-bias operation: tables over lags, the sum of its sectors, and the moments its gradients are
// made of. All in double; memory comes from an arena, and the structures are plain windows onto it.
#pragma once

#include "core/tensor.h"
#include "positional/phase.h"

namespace sextant::pj {

// By lag d = 0 .. lags-1, each a row: x = d / L, the light-cone chart's B = d / sqrt(d^2 + L^2), P = L asinh(d / L) and
// Q = dP/dlog L = P - L B; and for each frequency k the cosines and sines of w_k d and w_k P(d), and the envelope
// e^{-c_k x}.
struct Tables {
  int64_t lags = 0, frequencies = 0;
  const double* rows = nullptr;  // 4 + 4 K rows, `row` elements apart
  int64_t row = 0;
  const double* envelopes = nullptr;  // [K, lags]

  const double* x() const { return rows; }
  const double* amplitude() const { return rows + row; }
  const double* rapidity() const { return rows + 2 * row; }
  const double* drift() const { return rows + 3 * row; }
  const double* fj_cos(int64_t k) const { return rows + (4 + k) * row; }
  const double* fj_sin(int64_t k) const { return rows + (4 + frequencies + k) * row; }
  const double* lc_cos(int64_t k) const { return rows + (4 + 2 * frequencies + k) * row; }
  const double* lc_sin(int64_t k) const { return rows + (4 + 3 * frequencies + k) * row; }
  const double* envelope(int64_t k) const { return envelopes + k * lags; }
};

// Everything but the envelopes: [4 + 4 K, lags] f64.
Tensor lag_table(Arena& arena, int64_t lags, const std::vector<DoubleDouble>& frequencies, double length_scale);
// e^{-c_k d / L}: [K, lags] f64
Tensor envelope_table(Arena& arena, int64_t lags, const double* damping, int64_t frequencies, double length_scale);

// Every coefficient, as a double; null where the sector is absent.
struct Coefficients {
  int64_t heads = 0, frequencies = 0;
  int64_t fj_orders = 0, lc_orders = 0;  // R+1, R'+1; 0 when the sector is absent
  double length_scale = 1;
  double gate[3] = {};                                 // FJ, affine, LC, after the sigmoid
  const double *w = nullptr, *damping = nullptr;       // [K]; damping c_k after softplus
  const double *fj_cos = nullptr, *fj_sin = nullptr;   // [H, K, R+1]
  const double *lc_cos = nullptr, *lc_sin = nullptr;   // [H, K, R'+1]
  const double *constant = nullptr, *slope = nullptr;  // [H]; slope after softplus
};

// b[h, d] = g_FJ S_FJ + g_aff S_aff + g_LC S_LC, into bias [H, lags].
template <class T>
void evaluate(const Coefficients& c, const Tables& tables, T* bias);

// Moments of u_d = dLoss/db_h(d): all that the gradients need from their one pass over the lags. For each head
//
//   total = sum_d u,  first = sum_d u x
//   FJ: cosine, sine of order r = 0 .. R+1    sum_d u x^r e^{-c x} {cos, sin}(w_k d)
//   LC: cosine, sine of order r = 0 .. R'+2   sum_d u B^r {cos, sin}(w_k P), and with a factor P or Q for r = 0 .. R'
struct Moments {
  int64_t frequencies = 0, fj_orders = 0, lc_orders = 0;
  const double* values = nullptr;  // [H, stride]

  int64_t fj_block() const { return fj_orders > 0 ? 2 * (fj_orders + 1) : 0; }
  int64_t lc_block() const { return lc_orders > 0 ? 2 * (lc_orders + 2) + 4 * lc_orders : 0; }
  int64_t stride() const { return 2 + frequencies * (fj_block() + lc_block()); }

  double total(int64_t h) const { return values[h * stride()]; }
  double first(int64_t h) const { return values[h * stride() + 1]; }
  const double* fj(int64_t h, int64_t k) const { return values + h * stride() + 2 + k * fj_block(); }
  const double* lc(int64_t h, int64_t k) const {
    return values + h * stride() + 2 + frequencies * fj_block() + k * lc_block();
  }
  double fj_cos(int64_t h, int64_t k, int64_t r) const { return fj(h, k)[2 * r]; }
  double fj_sin(int64_t h, int64_t k, int64_t r) const { return fj(h, k)[2 * r + 1]; }
  double lc_cos(int64_t h, int64_t k, int64_t r) const { return lc(h, k)[2 * r]; }
  double lc_sin(int64_t h, int64_t k, int64_t r) const { return lc(h, k)[2 * r + 1]; }
  double lc_cos_rapidity(int64_t h, int64_t k, int64_t r) const { return lc(h, k)[2 * (lc_orders + 2 + r)]; }
  double lc_sin_rapidity(int64_t h, int64_t k, int64_t r) const { return lc(h, k)[2 * (lc_orders + 2 + r) + 1]; }
  double lc_cos_drift(int64_t h, int64_t k, int64_t r) const { return lc(h, k)[2 * (2 * lc_orders + 2 + r)]; }
  double lc_sin_drift(int64_t h, int64_t k, int64_t r) const { return lc(h, k)[2 * (2 * lc_orders + 2 + r) + 1]; }
};

// u [H, lags], rows `row` elements apart.
template <class T>
Moments moments(Arena& arena, const Coefficients& c, const Tables& tables, const T* u, int64_t row);

}  // namespace sextant::pj
