#include "positional/invariants.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <complex>

#include "positional/affine.h"
#include "positional/alibi.h"
#include "positional/functions.h"
#include "positional/pj_bias.h"
#include "positional/rope.h"
#include "positional/strategy.h"

namespace sextant {

namespace {

// A position layer of one head, with everything it stands on.
struct Layer {
  Arena weights;
  PositionTables tables;
  std::unique_ptr<Position> position;
  DType dtype;
  int64_t dim;

  Layer(const std::string& spec, int64_t head_dim, DType type) : dtype(type), dim(head_dim) {
    PositionSettings settings;
    settings.head_dim = settings.width = head_dim;
    settings.context = 256;
    settings.dtype = type;
    settings.weights = &weights;
    settings.tables = &tables;
    position = std::make_unique<Position>(spec, settings);
  }

  // q and k [B, T, 1, D] at positions first .. first + T - 1, transformed and copied into `arena`.
  std::pair<Tensor, Tensor> transformed(Arena& arena, const Tensor& q, const Tensor& k, int64_t first) {
    Tape tape;
    NoGrad none(tape);
    const PositionCall call{&tape, {}, {}, q.size(0), q.size(1), first, first + q.size(1), false, nullptr};
    Features features{tape.constant(q), tape.constant(k), tape.constant(k)};
    position->transform(call, features, nullptr);
    const Tensor query = converted(arena, features.q.value(), dtype);
    if (const TileTransport* transport =
            position->tile_transport(call, features, nullptr)) {  // the queries as their own tile's keys see them
      const Tensor rows = query.reshape({q.size(1), dim}), raw = converted(arena, rows, dtype);
      transport->carry({0, 0, first / TileTransport::tile, first / TileTransport::tile, first, q.size(1), q.size(1)},
                       raw, rows);
    }
    return {converted(arena, query, DType::f64), converted(arena, features.k.value(), DType::f64)};
  }

  // G(n)^T and G(-n), both [D, D], from the unit vectors: row a holds the transformed e_a.
  std::pair<Tensor, Tensor> matrices(Arena& arena, int64_t n) {
    const Tensor unit = zeros(arena, {dim, 1, 1, dim}, dtype);
    for (int64_t a = 0; a < dim; ++a) unit.set_flat(a * dim + a, 1.0);
    const auto [q, k] = transformed(arena, unit, unit, n);
    return {q.reshape({dim, dim}), k.reshape({dim, dim})};
  }
};

double largest(const Tensor& x) {
  double most = 0;
  for (int64_t i = 0; i < x.elements(); ++i) most = std::max(most, std::fabs(x.flat(i)));
  return most;
}

double relative_difference(const Tensor& a, const Tensor& b) {
  double most = 0;
  for (int64_t i = 0; i < a.elements(); ++i) most = std::max(most, std::fabs(a.flat(i) - b.flat(i)));
  return most / std::max({largest(a), largest(b), 1e-300});
}

Tensor product(Arena& arena, const Tensor& a, const Tensor& b) {
  const Tensor c = empty(arena, {a.size(0), b.size(1)}, DType::f64);
  kernels::matmul(a, b, {c, false});
  return c;
}

// Row e_a of what matrices() gives for the query holds column .. of G: as rows stand, it is G(n); for the keys it is
// G(-n)^T.
double closure_error(Layer& layer, int64_t a, int64_t b) {
  Arena arena;
  const Tensor ga = layer.matrices(arena, a).first, gb = layer.matrices(arena, b).first,
               sum = layer.matrices(arena, a + b).first;
  return relative_difference(product(arena, ga, gb), sum);
}
double inverse_error(Layer& layer, int64_t n) {
  Arena arena;
  const auto [g, back] = layer.matrices(arena, n);
  const Tensor identity = zeros(arena, {layer.dim, layer.dim}, DType::f64);
  for (int64_t i = 0; i < layer.dim; ++i) identity.set_flat(i * layer.dim + i, 1.0);
  // Relative to the factors: their product cancels down to 1.
  return relative_difference(product(arena, g, back.transpose(0, 1)), identity) /
         std::max(1.0, largest(g) * largest(back));
}

// All logits of 40 random queries and keys (one tile) against those at shifted positions, relative to the largest.
double translation_error(Layer& layer, int64_t shift) {
  const int64_t count = 40;
  Arena arena;
  const Tensor q = empty(arena, {1, count, 1, layer.dim}, layer.dtype),
               k = empty(arena, {1, count, 1, layer.dim}, layer.dtype);
  fill_normal(q, Random(5, "translation q"), 0.0, 1.0);
  fill_normal(k, Random(5, "translation k"), 0.0, 1.0);
  const auto logits = [&](int64_t first) {
    auto [tq, tk] = layer.transformed(arena, q, k, first);
    return product(arena, tq.reshape({count, layer.dim}), tk.reshape({count, layer.dim}).transpose(0, 1));
  };
  const Tensor near = logits(0), far = logits(shift);
  double most = 0, size = 0;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      most = std::max(most, std::fabs(near.at({i, j}) - far.at({i, j})));
      size = std::max(size, std::fabs(near.at({i, j})));
    }
  }
  return most / size;
}

// Differing bits of the two SPECs' features: the largest difference, 0 when they are the same to the bit.
double feature_difference(const std::string& a, const std::string& b, DType dtype) {
  Arena arena;
  const Tensor x = empty(arena, {1, 300, 1, 12}, dtype);
  fill_normal(x, Random(6, "containment"), 0.0, 1.0);
  Layer one(a, 12, dtype), two(b, 12, dtype);
  const auto [qa, ka] = one.transformed(arena, x, x, 1000);
  const auto [qb, kb] = two.transformed(arena, x, x, 1000);
  return std::max(relative_difference(qa, qb), relative_difference(ka, kb));
}

Variable parameter(Tape& tape, const Shape& shape, double value, DType dtype) {
  return tape.constant(full(tape.arena(), shape, value, dtype));
}

constexpr double open_gate = 40.0, no_damping = -800.0;  // sigmoid gives exactly 1, softplus exactly 0

// pj-bias with one frequency and a single amplitude: d^r cos or sin (w d), in units of L, or the light-cone chart's.
Tensor single_wave(Tape& tape, bool light_cone, bool sine, int64_t order, double w, double L, int64_t lags,
                   DType dtype) {
  const Shape shape{1, 1, order + 1};
  const auto amplitude = [&](bool wanted) {
    const Tensor x = zeros(tape.arena(), shape, dtype);
    if (wanted) x.set_flat(order, 1.0);
    return tape.constant(x);
  };
  PjBiasVariables in;
  in.gate = parameter(tape, {3}, open_gate, dtype);
  (light_cone ? in.lc_cos : in.fj_cos) = amplitude(!sine);
  (light_cone ? in.lc_sin : in.fj_sin) = amplitude(sine);
  if (!light_cone) in.damping = parameter(tape, {1}, no_damping, dtype);
  return pj_bias(in, {1, {{w}}, L, nullptr}, lags).value();
}

// |(E - z)^n f| over |f|'s largest times 2^n, the sum of the binomial's coefficients.
double annihilation_error(std::vector<std::complex<double>> f, std::complex<double> z, int64_t times) {
  double size = 0;
  for (const auto& value : f) size = std::max(size, std::abs(value));
  for (int64_t n = 0; n < times; ++n) {
    for (size_t d = 0; d + 1 < f.size(); ++d) f[d] = f[d + 1] - z * f[d];
    f.pop_back();
  }
  double most = 0;
  for (const auto& value : f) most = std::max(most, std::abs(value));
  return most / size / std::exp2(static_cast<double>(times));
}

double wave_annihilation(bool light_cone, int64_t order, DType dtype) {
  Tape tape;
  const double w = 0.3;
  const int64_t lags = 200;
  const Tensor cosine = single_wave(tape, light_cone, false, order, w, 256, lags, dtype),
               sine = single_wave(tape, light_cone, true, order, w, 256, lags, dtype);
  std::vector<std::complex<double>> f;
  for (int64_t d = 0; d < lags; ++d) f.emplace_back(cosine.flat(d), sine.flat(d));
  return annihilation_error(f, std::polar(1.0, w), order + 1);
}

double affine_annihilation(DType dtype) {
  Tape tape;
  const Tensor bias = affine_bias(parameter(tape, {1}, 0.7, dtype), parameter(tape, {1}, 1.3, dtype), 200, 64).value();
  std::vector<std::complex<double>> f;
  for (int64_t d = 0; d < 200; ++d) f.emplace_back(bias.flat(d), 0.0);
  return annihilation_error(f, 1.0, 2);
}

double pj_against_affine(DType dtype) {
  Tape tape;
  const Variable constant = parameter(tape, {2}, 0.4, dtype), slope = parameter(tape, {2}, -0.3, dtype);
  PjBiasVariables in;
  in.gate = parameter(tape, {3}, open_gate, dtype);
  in.affine_const = constant;
  in.affine_slope = slope;
  return relative_difference(pj_bias(in, {2, {{1.0}}, 64, nullptr}, 5000).value(),
                             affine_bias(constant, slope, 5000, 64).value());
}

double affine_against_alibi(DType dtype) {
  Tape tape;
  const int64_t heads = 6;
  const std::vector<double> slopes = alibi_slopes(heads);
  const Tensor raw = tape.empty({heads}, dtype), expected = tape.empty({heads, 5000}, dtype);
  for (int64_t h = 0; h < heads; ++h) raw.set_flat(h, softplus_inverse(256 * slopes[static_cast<size_t>(h)]));
  for (int64_t i = 0; i < expected.elements(); ++i)
    expected.set_flat(i, -slopes[static_cast<size_t>(i / 5000)] * static_cast<double>(i % 5000));
  return relative_difference(affine_bias(parameter(tape, {heads}, 0.0, dtype), tape.constant(raw), 5000, 256).value(),
                             expected);
}

// The change of a character under an infinitesimal NTK change of the grid, against the first jet i d e^{i w d} that it
// must be.
double tangent_error() {
  const double step = 1e-5;
  const auto grid = [](double factor) { return rope_frequencies(10000.0, "ntk", {factor}, 16, 256); };
  const auto at = grid(1.0), above = grid(1.0 + step), below = grid(1.0 - step);
  double worst = 0;
  for (size_t k = 1; k < at.size(); ++k) {
    const double dw = (above[k] - below[k]).value();
    Tape tape;
    const Tensor jet_cosine = single_wave(tape, false, false, 1, at[k].value(), 1, 200, DType::f64);
    const Tensor jet_sine = single_wave(tape, false, true, 1, at[k].value(), 1, 200, DType::f64);
    double error = 0, size = 0;
    for (int64_t d = 0; d < 200; ++d) {
      const Phasor up = phasor(d, in_turns(above[k])), down = phasor(d, in_turns(below[k]));
      const double dc = (up.cosine - down.cosine) / dw, ds = (up.sine - down.sine) / dw;
      error = std::max(error, std::hypot(dc + jet_sine.flat(d), ds - jet_cosine.flat(d)));
      size = std::max(size, std::hypot(jet_cosine.flat(d), jet_sine.flat(d)));
    }
    worst = std::max(worst, error / size);
  }
  return worst;
}

}  // namespace

std::vector<InvariantRow> measure_invariants(DType dtype) {
  std::vector<InvariantRow> rows;
  const double unit = dtype == DType::f64 ? 1e-12 : 2e-6;
  const auto law_if = [&](bool law) { return law ? unit : 0.0; };
  struct Family {
    const char* spec;
    bool representation;
  };
  for (const Family& family :
       {Family{"rope", true}, Family{"jordan(order=3)", true},
        Family{"jordan(order=2,damping=0.00001,anchored=0)", true}, Family{"pj-rotary(order=2)", true},
        Family{"pj-rotary(order=2,affine=0)", true}, Family{"jordan(order=2,mode=stabilized)", false},
        Family{"pj-rotary(order=2,chart=lc)", false}}) {
    Layer layer(family.spec, 12, dtype);
    rows.push_back({"closure", family.spec, closure_error(layer, 37, 1200), law_if(family.representation)});
    rows.push_back({"inverse", family.spec, inverse_error(layer, 777), unit});
    // Absolute factors that grow with the position cancel in a logit: of 16 digits a million positions leave 6 or more,
    // of f32's 7 none that a law could be made of. That is what anchoring is for.
    const bool grows = family.representation && family.spec != std::string_view("rope");
    const double left = !grows ? law_if(family.representation) : dtype == DType::f64 ? 1e-6 : 0.0;
    rows.push_back({"translation", family.spec, translation_error(layer, 1000000), left});
  }
  for (const char* spec : {"jordan(order=3,anchored=1)", "jordan(order=3,mode=exact,damping=0.001,anchored=1)"}) {
    Layer layer(spec, 12, dtype);
    rows.push_back({"translation", spec, translation_error(layer, 1000000), unit});
  }
  for (const char* spec : {"jordan(order=1)", "jordan(order=1,mode=exact)", "pj-rotary(order=1,affine=0)"}) {
    InvariantRow row{"containment", std::string(spec) + " = rope, to the bit", feature_difference(spec, "rope", dtype),
                     5e-324};
    rows.push_back(std::move(row));
  }
  rows.push_back({"containment", "pj-bias without phases = affine", pj_against_affine(dtype), unit});
  rows.push_back({"containment", "affine with ALiBi's slopes = alibi", affine_against_alibi(dtype), unit});
  for (int64_t order = 0; order < 3; ++order)
    rows.push_back({"annihilation", fmt::format("FJ order {} by (E - e^iw)^{}", order, order + 1),
                    wave_annihilation(false, order, dtype), unit});
  rows.push_back({"annihilation", "affine by (E - 1)^2", affine_annihilation(dtype), unit});
  for (int64_t order = 0; order < 2; ++order)
    rows.push_back({"annihilation", fmt::format("LC order {} by (E - e^iw)^{}", order, order + 1),
                    wave_annihilation(true, order, dtype), 0});
  if (dtype == DType::f64) rows.push_back({"tangent", "NTK change of the grid = first jet", tangent_error(), 1e-6});
  return rows;
}

}  // namespace sextant
