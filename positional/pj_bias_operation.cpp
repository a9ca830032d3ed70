// PJ-bias as an operation with hand-written gradients, and its composed twin. [position-space.md section 4, arXiv
// 2606.05345]
//
//   S_FJ(d)  = sum_{k,r} x^r e^{-c_k x} [ a_kr cos(w_k d) + b_kr sin(w_k d) ],   x = d / L,  c_k = softplus(c^_k)
//   S_aff(d) = beta - s x,                                                       s = softplus(s^)
//   S_LC(d)  = sum_{k,r} B^r [ a'_kr cos(w_k P) + b'_kr sin(w_k P) ],            P = L asinh(x),  B = x / sqrt(x^2 + 1)
//   b(d)     = g_FJ S_FJ(d) + g_aff S_aff(d) + g_LC S_LC(d),                     g = sigmoid(g^)
//
// The kernel is linear in its amplitudes, and differentiating it in anything else only raises an order or brings a
// factor P, so every gradient is a combination of moments of u_d = dLoss/db(d). With A_r, B_r (FJ) and A'_r, B'_r (LC)
// for the moments with cos and sin, AP'_r, BP'_r for those with a factor P, AQ'_r, BQ'_r with Q = P - L B:
//
//   da_kr = g_FJ A_r,  db_kr = g_FJ B_r,  da'_kr = g_LC A'_r,  db'_kr = g_LC B'_r
//   dg^_X = g_X (1 - g_X) sum_d u_d S_X,  where  sum_d u_d S_FJ = sum_kr a A_r + b B_r,  and so on
//   dc^_k = -g_FJ sigmoid(c^_k) sum_r a A_{r+1} + b B_{r+1}
//   dlog w_k = g_FJ w_k L sum_r (b A_{r+1} - a B_{r+1}) + g_LC w_k sum_r (b' AP'_r - a' BP'_r)
//   dlog L: dx = -x, dP = Q, dB = -B (1 - B^2), so
//       g_FJ sum_kr [ c_k (a A_{r+1} + b B_{r+1}) - r (a A_r + b B_r) ]  +  g_aff s sum_d u_d x
//     + g_LC sum_kr [ -r (a' (A'_r - A'_{r+2}) + b' (B'_r - B'_{r+2}))
//                     + w_k (b' AQ'_r - a' BQ'_r) ]
#include <fmt/format.h>

#include <cmath>

#include "autograd/elementwise.h"
#include "autograd/formula.h"
#include "autograd/products.h"
#include "autograd/reductions.h"
#include "autograd/shaping.h"
#include "positional/functions.h"
#include "positional/pj_bias.h"
#include "positional/pj_bias_kernel.h"

namespace sextant {

namespace {

// The variable's numbers as doubles, through f; null when it is undefined.
template <class F>
const double* doubles(Arena& arena, const Variable& x, F f) {
  if (!x.defined()) return nullptr;
  const Tensor copy = converted(arena, x.value(), DType::f64);
  for (double& value : copy.span<double>()) value = f(value);
  return copy.data<double>();
}
const double* doubles(Arena& arena, const Variable& x) {
  return doubles(arena, x, [](double value) { return value; });
}

pj::Coefficients coefficients_of(Arena& arena, const PjBiasVariables& in, const PjBiasSettings& settings) {
  pj::Coefficients c;
  c.heads = settings.heads;
  c.frequencies = static_cast<int64_t>(settings.frequencies.size());
  c.fj_orders = in.fj_cos.defined() ? in.fj_cos.size(2) : 0;
  c.lc_orders = in.lc_cos.defined() ? in.lc_cos.size(2) : 0;
  c.length_scale = in.log_scale.defined() ? std::exp(in.log_scale.value().flat(0)) : settings.length_scale;
  for (int sector = 0; sector < 3; ++sector) c.gate[sector] = sigmoid_of(in.gate.value().flat(sector));
  c.damping = doubles(arena, in.damping, softplus_of);
  c.fj_cos = doubles(arena, in.fj_cos);
  c.fj_sin = doubles(arena, in.fj_sin);
  c.lc_cos = doubles(arena, in.lc_cos);
  c.lc_sin = doubles(arena, in.lc_sin);
  c.constant = doubles(arena, in.affine_const);
  c.slope = doubles(arena, in.affine_slope, softplus_of);
  if (in.log_frequency.defined()) {
    c.w = doubles(arena, in.log_frequency, [](double value) { return std::exp(value); });
  } else {
    const Tensor w = empty(arena, {c.frequencies}, DType::f64);
    for (int64_t k = 0; k < c.frequencies; ++k) w.set_flat(k, settings.frequencies[static_cast<size_t>(k)].value());
    c.w = w.data<double>();
  }
  return c;
}

pj::Tables tables_of(Arena& arena, const PjBiasVariables& in, const PjBiasSettings& settings, const pj::Coefficients& c,
                     int64_t lags) {
  Tensor rows;
  if (in.log_frequency.defined() || in.log_scale.defined() || settings.tables == nullptr) {
    std::vector<DoubleDouble> frequencies = settings.frequencies;
    if (in.log_frequency.defined())
      for (int64_t k = 0; k < c.frequencies; ++k) frequencies[static_cast<size_t>(k)] = {c.w[k]};
    rows = pj::lag_table(arena, lags, frequencies, c.length_scale);
  } else {
    const std::string key = fmt::format("pj-bias {} {}", c.frequencies, c.length_scale);
    rows = settings.tables->get(key, lags, [&](Arena& own, int64_t count) {
      return pj::lag_table(own, count, settings.frequencies, settings.length_scale);
    });
  }
  pj::Tables tables{lags, c.frequencies, rows.data<double>(), rows.stride(0), nullptr};
  if (c.fj_orders > 0)
    tables.envelopes = pj::envelope_table(arena, lags, c.damping, c.frequencies, c.length_scale).data<double>();
  return tables;
}

// Fills a parameter's gradient entry by entry with f(index), computed in double.
template <class F>
void deliver(const Variable& x, F f) {
  if (!x.defined() || !x.needs_gradient()) return;
  const Tensor gradient = empty(x.tape().arena(), x.shape(), x.dtype());
  for (int64_t i = 0; i < gradient.elements(); ++i) gradient.set_flat(i, f(i));
  x.accumulate(gradient);
}

// sum over heads, orders of a m_cos(r) + b m_sin(r), for one frequency or (k < 0) all: what amplitudes a, b make of the
// moments.
template <class Cos, class Sin>
double contract(const double* a, const double* b, const pj::Coefficients& c, int64_t orders, int64_t k, Cos cosine,
                Sin sine) {
  double sum = 0;
  const int64_t first = k < 0 ? 0 : k, last = k < 0 ? c.frequencies : k + 1;
  for (int64_t h = 0; h < c.heads; ++h) {
    for (int64_t each = first; each < last; ++each) {
      const int64_t at = (h * c.frequencies + each) * orders;
      for (int64_t r = 0; r < orders; ++r) sum += a[at + r] * cosine(h, each, r) + b[at + r] * sine(h, each, r);
    }
  }
  return sum;
}

// sum_d u_d S_X(d) for the three sectors.
void sector_sums(const pj::Coefficients& c, const pj::Moments& m, double (&sums)[3]) {
  if (c.fj_orders > 0)
    sums[0] = contract(
        c.fj_cos, c.fj_sin, c, c.fj_orders, -1, [&](int64_t h, int64_t k, int64_t r) { return m.fj_cos(h, k, r); },
        [&](int64_t h, int64_t k, int64_t r) { return m.fj_sin(h, k, r); });
  if (c.constant != nullptr)
    for (int64_t h = 0; h < c.heads; ++h) sums[1] += c.constant[h] * m.total(h) - c.slope[h] * m.first(h);
  if (c.lc_orders > 0)
    sums[2] = contract(
        c.lc_cos, c.lc_sin, c, c.lc_orders, -1, [&](int64_t h, int64_t k, int64_t r) { return m.lc_cos(h, k, r); },
        [&](int64_t h, int64_t k, int64_t r) { return m.lc_sin(h, k, r); });
}

double damping_sum(const pj::Coefficients& c, const pj::Moments& m, int64_t k) {
  return contract(
      c.fj_cos, c.fj_sin, c, c.fj_orders, k,
      [&](int64_t h, int64_t each, int64_t r) { return m.fj_cos(h, each, r + 1); },
      [&](int64_t h, int64_t each, int64_t r) { return m.fj_sin(h, each, r + 1); });
}

double log_frequency_gradient(const pj::Coefficients& c, const pj::Moments& m, int64_t k) {
  double sum = 0;
  if (c.fj_orders > 0)
    sum += c.gate[0] * c.length_scale *
           contract(
               c.fj_cos, c.fj_sin, c, c.fj_orders, k,
               [&](int64_t h, int64_t each, int64_t r) { return -m.fj_sin(h, each, r + 1); },
               [&](int64_t h, int64_t each, int64_t r) { return m.fj_cos(h, each, r + 1); });
  if (c.lc_orders > 0)
    sum += c.gate[2] * contract(
                           c.lc_cos, c.lc_sin, c, c.lc_orders, k,
                           [&](int64_t h, int64_t each, int64_t r) { return -m.lc_sin_rapidity(h, each, r); },
                           [&](int64_t h, int64_t each, int64_t r) { return m.lc_cos_rapidity(h, each, r); });
  return c.w[k] * sum;
}

double log_scale_gradient(const pj::Coefficients& c, const pj::Moments& m) {
  double fj = 0, affine = 0, lc = 0;
  if (c.fj_orders > 0) {
    for (int64_t k = 0; k < c.frequencies; ++k) fj += c.damping[k] * damping_sum(c, m, k);
    fj -= contract(
        c.fj_cos, c.fj_sin, c, c.fj_orders, -1,
        [&](int64_t h, int64_t k, int64_t r) { return static_cast<double>(r) * m.fj_cos(h, k, r); },
        [&](int64_t h, int64_t k, int64_t r) { return static_cast<double>(r) * m.fj_sin(h, k, r); });
  }
  if (c.constant != nullptr)
    for (int64_t h = 0; h < c.heads; ++h) affine += c.slope[h] * m.first(h);
  if (c.lc_orders > 0)
    lc = contract(
        c.lc_cos, c.lc_sin, c, c.lc_orders, -1,
        [&](int64_t h, int64_t k, int64_t r) {
          return -static_cast<double>(r) * (m.lc_cos(h, k, r) - m.lc_cos(h, k, r + 2)) -
                 c.w[k] * m.lc_sin_drift(h, k, r);
        },
        [&](int64_t h, int64_t k, int64_t r) {
          return -static_cast<double>(r) * (m.lc_sin(h, k, r) - m.lc_sin(h, k, r + 2)) +
                 c.w[k] * m.lc_cos_drift(h, k, r);
        });
  return c.gate[0] * fj + c.gate[1] * affine + c.gate[2] * lc;
}

void deliver_all(const PjBiasVariables& in, const pj::Coefficients& c, const pj::Moments& m) {
  double sums[3] = {};
  sector_sums(c, m, sums);
  deliver(in.gate, [&](int64_t sector) {
    const double raw = in.gate.value().flat(sector);
    return sigmoid_of(raw) * sigmoid_of(-raw) * sums[sector];
  });
  const auto amplitude = [&](const Variable& x, int64_t orders, double gate, auto moment) {
    deliver(x, [&](int64_t i) {
      const int64_t r = i % orders, k = i / orders % c.frequencies, h = i / (orders * c.frequencies);
      return gate * moment(h, k, r);
    });
  };
  amplitude(in.fj_cos, c.fj_orders, c.gate[0], [&](int64_t h, int64_t k, int64_t r) { return m.fj_cos(h, k, r); });
  amplitude(in.fj_sin, c.fj_orders, c.gate[0], [&](int64_t h, int64_t k, int64_t r) { return m.fj_sin(h, k, r); });
  amplitude(in.lc_cos, c.lc_orders, c.gate[2], [&](int64_t h, int64_t k, int64_t r) { return m.lc_cos(h, k, r); });
  amplitude(in.lc_sin, c.lc_orders, c.gate[2], [&](int64_t h, int64_t k, int64_t r) { return m.lc_sin(h, k, r); });
  deliver(in.damping,
          [&](int64_t k) { return -c.gate[0] * sigmoid_of(in.damping.value().flat(k)) * damping_sum(c, m, k); });
  deliver(in.affine_const, [&](int64_t h) { return c.gate[1] * m.total(h); });
  deliver(in.affine_slope,
          [&](int64_t h) { return -c.gate[1] * sigmoid_of(in.affine_slope.value().flat(h)) * m.first(h); });
  deliver(in.log_frequency, [&](int64_t k) { return log_frequency_gradient(c, m, k); });
  deliver(in.log_scale, [&](int64_t) { return log_scale_gradient(c, m); });
}

}  // namespace

FORMULA("pj-bias", "b(d) = g_FJ S_FJ(d) + g_aff S_aff(d) + g_LC S_LC(d)",
        "moments of db(d) against x^r e^{-c x} cos, sin (w d) and B^r cos, sin (w P), combined as at the head of this "
        "file");
Variable pj_bias(const PjBiasVariables& in, const PjBiasSettings& settings, int64_t lags) {
  Tape& tape = in.gate.tape();
  const pj::Coefficients c = coefficients_of(tape.arena(), in, settings);
  const pj::Tables tables = tables_of(tape.arena(), in, settings, c, lags);
  const Tensor bias = tape.empty({settings.heads, lags}, in.gate.dtype());
  dispatch(bias.dtype(), [&](auto type) { pj::evaluate(c, tables, bias.data<decltype(type)>()); });
  return tape.record("pj-bias",
                     {in.gate, in.fj_cos, in.fj_sin, in.damping, in.affine_const, in.affine_slope, in.lc_cos, in.lc_sin,
                      in.log_frequency, in.log_scale},
                     bias, [in, c, tables](const Tensor& dbias) {
                       dispatch(dbias.dtype(), [&](auto type) {
                         using T = decltype(type);
                         deliver_all(in, c,
                                     pj::moments(in.gate.tape().arena(), c, tables, dbias.data<T>(), dbias.stride(0)));
                       });
                     });
}

// ---- composed -----------------------------------------------------------------------------------------------------

namespace {

Variable lag_constant(Tape& tape, int64_t lags, DType dtype) {
  const Tensor d = tape.empty({1, lags}, dtype);
  for (int64_t i = 0; i < lags; ++i) d.set_flat(i, static_cast<double>(i));
  return tape.constant(d);
}

// [1, x, x^2, ..] as [orders, lags] from x [1, lags].
Variable powers(Variable x, int64_t orders) {
  Variable power = x.tape().constant(full(x.tape().arena(), x.shape(), 1.0, x.dtype())), all = power;
  for (int64_t r = 1; r < orders; ++r) {
    power = multiply(power, x);
    all = concatenate(all, power, 0);
  }
  return all;
}

// sum_kr amplitude_hkr wave_k(d) power_r(d): amplitudes [H, K, R+1], wave [K, lags], power [R+1, lags] -> [H, lags]
Variable combine(Variable amplitudes, Variable wave, Variable power) {
  const int64_t heads = amplitudes.size(0), count = amplitudes.size(1), orders = amplitudes.size(2),
                lags = wave.size(1);
  const Variable basis = multiply(reshape(wave, {count, 1, lags}), reshape(power, {1, orders, lags}));
  return matmul(reshape(amplitudes, {heads, count * orders}), reshape(basis, {count * orders, lags}));
}

struct Waves {
  Variable cosine, sine;  // [K, lags]
};

// cos and sin of w_k angle(d), angle [1, lags].
Waves waves_of(Variable w, Variable angle) {
  const Variable product = multiply(reshape(w, {w.size(0), 1}), angle);
  return {cos(product), sin(product)};
}

}  // namespace

Variable pj_bias_composed(const PjBiasVariables& in, const PjBiasSettings& settings, int64_t lags) {
  Tape& tape = in.gate.tape();
  const DType dtype = in.gate.dtype();
  const int64_t count = static_cast<int64_t>(settings.frequencies.size());
  const Variable gates = sigmoid(in.gate);
  const auto gate = [&](int64_t sector) { return reshape(slice(gates, 0, sector, 1), {1, 1}); };
  const Variable L = in.log_scale.defined() ? reshape(exp(in.log_scale), {1, 1})
                                            : tape.constant(full(tape.arena(), {1, 1}, settings.length_scale, dtype));
  const Variable d = lag_constant(tape, lags, dtype), x = divide(d, L);
  Variable w;
  if (in.log_frequency.defined()) {
    w = exp(in.log_frequency);
  } else {
    const Tensor fixed = tape.empty({count}, dtype);
    for (int64_t k = 0; k < count; ++k) fixed.set_flat(k, settings.frequencies[static_cast<size_t>(k)].value());
    w = tape.constant(fixed);
  }
  Variable bias = tape.constant(zeros(tape.arena(), {settings.heads, lags}, dtype));
  if (in.fj_cos.defined()) {
    const Waves wave = waves_of(w, d);
    const Variable envelope = exp(negate(multiply(reshape(softplus(in.damping), {count, 1}), x)));
    const Variable power = powers(x, in.fj_cos.size(2));
    const Variable sum = add(combine(in.fj_cos, multiply(envelope, wave.cosine), power),
                             combine(in.fj_sin, multiply(envelope, wave.sine), power));
    bias = add(bias, multiply(gate(0), sum));
  }
  if (in.affine_const.defined()) {
    const Shape column{settings.heads, 1};
    const Variable line =
        subtract(reshape(in.affine_const, column), multiply(reshape(softplus(in.affine_slope), column), x));
    bias = add(bias, multiply(gate(1), line));
  }
  if (in.lc_cos.defined()) {
    const Waves wave = waves_of(w, multiply(L, asinh(x)));
    const Variable power = powers(divide(d, sqrt(add(square(d), square(L)))), in.lc_cos.size(2));
    const Variable sum = add(combine(in.lc_cos, wave.cosine, power), combine(in.lc_sin, wave.sine, power));
    bias = add(bias, multiply(gate(2), sum));
  }
  return bias;
}

}  // namespace sextant
