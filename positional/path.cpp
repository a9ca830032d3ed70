// kind=path: PaTH attention (Yang et al., arXiv 2505.16381), position-space.md section 7.
//
//   logit(i, j) = q_i^T H_i H_{i-1} ... H_{j+1} k_j / sqrt(D)
//   H_t = I - beta_t w_t w_t^T,   |w_t| = 1,   beta_t in (0, 2)
//
//   w_t = (W x_t + c) / |W x_t + c|,   beta_t = 2 sigmoid(W_beta x_t + c_beta)
//
// The steps are not orthogonal, so prefix products cannot be undone; the scores go through attention by tiles
// (positional/path_transport.cpp). W starts as N(0, 0.02^2), c as 0; c_beta as -2, so that beta starts near 0.24 and a
// route of some tens of steps still carries a score.
//
// With a cache the keys of a tile are brought up to date once, when its last token has come (until then only queries of
// the same tile meet them, and those are scored from the keys as they are): 64 rows of products per 64 tokens. A new
// query is carried back through all complete tiles, 2 D^2 operations each beside the 256 D of its scores there. The
// layer keeps, beside keys and values, a D x D product a tile and the steps of the tile under way.
#include "positional/path.h"

#include <cmath>
#include <new>

#include "autograd/attention.h"
#include "autograd/elementwise.h"
#include "autograd/formula.h"
#include "autograd/gradient_check.h"
#include "autograd/reductions.h"
#include "autograd/shaping.h"
#include "core/error.h"
#include "core/parallel.h"
#include "positional/projection.h"
#include "positional/transport.h"

namespace sextant {

namespace {

constexpr double smallest_norm = 1e-12;

// f(row of x, row of y, row of z) for all rows; x, y, z contiguous of one shape.
template <class T, class F>
void for_rows(const Tensor& x, const Tensor& y, const Tensor& z, F&& f) {
  const int64_t dim = x.size(-1);
  parallel_ranges(x.shape().rows(), 256, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) f(x.data<T>() + n * dim, y.data<T>() + n * dim, z.data<T>() + n * dim, dim);
  });
}

template <class T>
double norm_of(const T* x, int64_t dim) {
  double sum = 0;
  for (int64_t d = 0; d < dim; ++d) sum += static_cast<double>(x[d]) * static_cast<double>(x[d]);
  return std::sqrt(sum);
}

}  // namespace

FORMULA("unit_rows", "y = x / |x|, row by row", "dx = (dy - y <y, dy>) / |x|");
Variable unit_rows(Variable x) {
  Tape& tape = x.tape();
  const Tensor in = contiguous(tape.arena(), x.value()), y = tape.empty(x.shape(), x.dtype());
  dispatch(x.dtype(), [&](auto type) {
    using T = decltype(type);
    for_rows<T>(in, y, y, [](const T* from, T* to, T*, int64_t dim) {
      const double norm = norm_of(from, dim), factor = norm >= smallest_norm ? 1.0 / norm : 0.0;
      for (int64_t d = 0; d < dim; ++d) to[d] = static_cast<T>(static_cast<double>(from[d]) * factor);
    });
  });
  return tape.record("unit_rows", {x}, y, [x, in, y](const Tensor& dout) {
    Arena& arena = x.tape().arena();
    const Tensor dx = empty(arena, x.shape(), x.dtype());
    dx.copy_from(dout);
    dispatch(x.dtype(), [&](auto type) {
      using T = decltype(type);
      for_rows<T>(in, y, dx, [](const T* from, const T* unit, T* d_row, int64_t dim) {
        const double norm = norm_of(from, dim), factor = norm >= smallest_norm ? 1.0 / norm : 0.0;
        double along = 0;
        for (int64_t d = 0; d < dim; ++d) along += static_cast<double>(unit[d]) * static_cast<double>(d_row[d]);
        for (int64_t d = 0; d < dim; ++d)
          d_row[d] = static_cast<T>((static_cast<double>(d_row[d]) - static_cast<double>(unit[d]) * along) * factor);
      });
    });
    x.accumulate(dx);
  });
}

Variable unit_rows_composed(Variable x) {
  return divide(x, sqrt(sum(square(x), -1, true)));
}

FORMULA(
    "path_keys",
    "k~_j = H_e .. H_{j+1} k_j,  e the end of j's tile;  as rows K~ = K + Z^T W,  Z = M R,  R = -tril(W K^T, -1)",
    "dZ = W dK~^T,  dM = dZ R^T,  dR = M^T dZ,  dK = dK~ - tril(dR, -1)^T W,  dW = Z dK~ - tril(dR, -1) K + the part "
    "through M;  with what the attention gathered of the steps");
Variable path_keys(Variable w, Variable beta, Variable k, const PathTiles& tiles) {
  Tape& tape = k.tape();
  const int64_t length = k.size(1);
  const Tensor keys = tiles.keys.slice(1, tiles.rows - length, length);
  return tape.record("path_keys", {w, beta, k}, keys, [w, beta, k, &tiles](const Tensor& dkeys) {
    path_tiles_backward(tiles, dkeys);
    w.accumulate(tiles.dw);
    beta.accumulate(tiles.dbeta);
    k.accumulate(tiles.dk);
  });
}

// ---- composed -----------------------------------------------------------------------------------------------------

// With x_i = H_{j+1} .. H_i q_i for all rows i >= j at once, from j = T-1 down to 0:  x_i -= beta_j (x_i . w_j) w_j for
// i >= j gives those of j - 1.
PathFeatures path_composed(Variable w, Variable beta, Variable q, Variable k, Variable v) {
  Tape& tape = q.tape();
  const int64_t batch = q.size(0), length = q.size(1), heads = q.size(2), dim = q.size(3);
  Variable x = contiguous(q), all;
  Variable key_blocks;
  const Variable keys = contiguous(k);
  for (int64_t j = length - 1; j >= 0; --j) {
    const Tensor here = tape.zeros({1, length, 1, 1}, q.dtype()), from_here = tape.zeros({1, length, 1, 1}, q.dtype());
    here.set_flat(j, 1.0);
    for (int64_t i = j; i < length; ++i) from_here.set_flat(i, 1.0);
    const Variable key_block = multiply(keys, tape.constant(here));
    all = all.defined() ? concatenate(x, all, 3) : x;
    key_blocks = key_blocks.defined() ? concatenate(key_block, key_blocks, 3) : key_block;
    const Variable step = contiguous(slice(w, 1, j, 1));  // [B, 1, H, D]
    const Variable strength = reshape(contiguous(slice(beta, 1, j, 1)), {batch, 1, heads, 1});
    const Variable along = multiply(sum(multiply(x, step), -1, true), multiply(strength, tape.constant(from_here)));
    x = subtract(x, multiply(along, step));
  }
  if (length == 1) return {all, key_blocks, v};
  const Variable padding = tape.constant(tape.zeros({batch, length, heads, (length - 1) * dim}, q.dtype()));
  return {all, key_blocks, concatenate(v, padding, 3)};
}

Variable path_composed_output(Variable output, int64_t dim) {
  return contiguous(slice(output, 3, 0, dim));
}

// ---- the term -----------------------------------------------------------------------------------------------------

namespace {

struct PathState : TermState {
  Arena arena;
  std::vector<Tensor> products;  // E of each complete tile, [B, H, D, D]
  Tensor w, beta, k;             // [B, 64, H, D], [B, 64, H]: the tile under way
};

class Path : public Term {
 public:
  explicit Path(const PositionSettings& settings)
      : settings_(settings),
        direction_(settings, "transport", "weight", "bias", settings.heads * settings.head_dim, 0.02),
        strength_(settings, "transport", "beta_weight", "beta_bias", settings.heads, 0.02) {
    strength_.bias.value.fill(-2.0);
  }

  std::vector<Parameter*> parameters() override {
    return {&direction_.weight, &direction_.bias, &strength_.weight, &strength_.bias};
  }

  void transform(const PositionCall& call, Features& features) override {
    const Variable direction =
        reshape(direction_(call), {call.batch, call.length, settings_.heads, settings_.head_dim});
    const Variable beta = scale(sigmoid(strength_(call)), 2.0);
    if (call.composed) {
      require(call.state == nullptr,
              "position: the composed form of transport(kind=path) goes through whole sequences, without a cache");
      const PathFeatures plain = path_composed(unit_rows_composed(direction), beta, features.q, features.k, features.v);
      features = {plain.q, plain.k, plain.v};
      return;
    }
    const Variable w = unit_rows(direction);
    auto* state = static_cast<PathState*>(call.state);
    // Steps of earlier calls are no variables any more, and cached keys are brought up to date in place.
    require(state == nullptr || !(features.q.needs_gradient() || features.k.needs_gradient() || w.needs_gradient() ||
                                  beta.needs_gradient()),
            "position: transport(kind=path) with a cache has no gradient; read under NoGrad, or the whole sequence "
            "without a cache");
    const PathRows rows = rows_of_tiles(call, {w.value(), beta.value(), features.k.value()});
    tiles_ = build_path_tiles(*call.tape, rows, call.first / PathTiles::tile,
                              state == nullptr ? std::span<const Tensor>{} : state->products,
                              state == nullptr ? call.tape->arena() : state->arena);
    features.k = path_keys(w, beta, features.k, *tiles_);
  }

  Variable restore(const PositionCall& call, Variable output) override {
    return call.composed ? path_composed_output(output, settings_.head_dim) : output;
  }

  TileTransport* tile_transport(const PositionCall& call, const Features& features) override {
    if (call.composed) return nullptr;
    if (call.state != nullptr) remember(call, features.k.value());
    return new (call.tape->arena().allocate(sizeof(PathTransport))) PathTransport(*tiles_);
  }

  std::unique_ptr<TermState> new_state(int64_t batch) const override {
    auto state = std::make_unique<PathState>();
    const Shape rows{batch, PathTiles::tile, settings_.heads, settings_.head_dim};
    state->w = zeros(state->arena, rows, settings_.dtype);
    state->k = zeros(state->arena, rows, settings_.dtype);
    state->beta = zeros(state->arena, {batch, PathTiles::tile, settings_.heads}, settings_.dtype);
    return state;
  }

 private:
  // The call's rows behind those of the tile under way.
  PathRows rows_of_tiles(const PositionCall& call, const PathRows& rows) const {
    const int64_t before = call.first % PathTiles::tile;
    if (before == 0) return rows;
    const auto behind = [&](const Tensor& earlier, const Tensor& now) {
      Shape shape = now.shape();
      shape.set(1, before + call.length);
      const Tensor all = empty(call.tape->arena(), shape, settings_.dtype);
      all.slice(1, 0, before).copy_from(earlier.slice(1, 0, before));
      all.slice(1, before, call.length).copy_from(now);
      return all;
    };
    const auto* state = static_cast<const PathState*>(call.state);
    return {behind(state->w, rows.w), behind(state->beta, rows.beta), behind(state->k, rows.k)};
  }

  // Once a call, with a cache: keeps the complete tiles' products and the rows of the tile under way, and writes the
  // final form of cached keys whose tile this call has completed. cached [B, S, H, D] are all keys.
  void remember(const PositionCall& call, const Tensor& cached) {
    auto* state = static_cast<PathState*>(call.state);
    const PathTiles& tiles = *tiles_;
    const int64_t before = tiles.rows - call.length, complete = tiles.complete(),
                  under_way = tiles.rows - complete * PathTiles::tile;
    require(cached.size(1) == call.first + call.length,
            "position: transport(kind=path) with a cache is given {} keys, must be given all {}", cached.size(1),
            call.first + call.length);
    if (before > 0 && complete > 0)
      cached.slice(1, call.first - before, before).copy_from(tiles.keys.slice(1, 0, before));
    state->products.assign(tiles.products, tiles.products + tiles.first_tile + complete);
    const auto keep = [&](const Tensor& rows, const Tensor& kept) {
      kept.slice(1, 0, under_way).copy_from(rows.slice(1, tiles.rows - under_way, under_way));
    };
    keep(tiles.w, state->w);
    keep(tiles.beta, state->beta);
    keep(tiles.k, state->k);
  }

  PositionSettings settings_;
  Projection direction_, strength_;
  PathTiles* tiles_ = nullptr;  // of the call under way, in its tape's arena
};

}  // namespace

std::unique_ptr<Term> make_path_transport(const PositionSettings& settings) {
  return std::make_unique<Path>(settings);
}

// ---- audit --------------------------------------------------------------------------------------------------------

namespace {

// q, k, v, and before their normalisation w and beta
AuditCase path_case(Arena& arena, const char* label, int64_t length, int64_t dim, double beta) {
  const Shape shape{1, length, 2, dim};
  AuditCase result;
  result.label = label;
  result.inputs = {sample(arena, shape, 1, 3), sample(arena, shape, 1, 4), sample(arena, shape, 1, 5),
                   sample(arena, shape, 1, 6), sample(arena, {1, length, 2}, 1, 7)};
  result.function = [beta](Tape& tape, std::span<const Variable> x) {
    const Variable w = unit_rows(x[3]), strength = scale(sigmoid(shift(x[4], beta)), 2.0);
    const PathTiles& tiles = *build_path_tiles(tape, {w.value(), strength.value(), x[1].value()}, 0, {}, tape.arena());
    auto* transport = new (tape.arena().allocate(sizeof(PathTransport))) PathTransport(tiles);
    return attention({x[0], path_keys(w, strength, x[1], tiles), x[2], {}, {}, 0.7, transport});
  };
  result.composed = [beta, dim](Tape&, std::span<const Variable> x) {
    const Variable w = unit_rows_composed(x[3]), strength = scale(sigmoid(shift(x[4], beta)), 2.0);
    const PathFeatures plain = path_composed(w, strength, x[0], x[1], x[2]);
    return path_composed_output(attention_composed({plain.q, plain.k, plain.v, {}, {}, 0.7, nullptr}), dim);
  };
  return result;
}

}  // namespace

AUDIT(path_attention, "positional") {
  return {path_case(arena, "ordinary", 6, 4, 0.0),      path_case(arena, "one token", 1, 4, 0.0),
          path_case(arena, "beta near 0", 7, 4, -20.0), path_case(arena, "beta near 2", 7, 4, 20.0),
          path_case(arena, "two tiles", 80, 2, 0.0),    path_case(arena, "three tiles and some", 134, 2, -3.0)};
}

AUDIT(unit_rows, "positional") {
  const auto f = [](Tape&, std::span<const Variable> x) { return unit_rows(x[0]); };
  const auto composed = [](Tape&, std::span<const Variable> x) { return unit_rows_composed(x[0]); };
  AuditCase tiny{"tiny", {sample(arena, {2, 3}, 1e-5)}, f, composed};
  tiny.step = 1e-9;
  return {{"ordinary", {sample(arena, {2, 3, 2, 5})}, f, composed},
          {"one coordinate", {sample(arena, {2, 1})}, f, composed},
          tiny,
          {"huge", {sample(arena, {2, 3}, 1e100)}, f, composed},
          {"no direction", {zeros(arena, {1, 4}, DType::f64)}, f, {}, false}};
}

}  // namespace sextant
