// Exact Jordan chains in f32 far from the origin, plain and anchored, against 113-bit arithmetic of the lag alone.
#include <gtest/gtest.h>

#include <cmath>

#include "positional/strategy.h"
#include "tests/positional/quad.h"

namespace sextant {
namespace {

using quad::Quad;

constexpr int64_t dim = 16, tile = TileTransport::tile;

struct Layer {
  Arena weights;
  PositionTables tables;
  std::unique_ptr<Position> position;

  explicit Layer(const std::string& spec) {
    PositionSettings settings;
    settings.head_dim = settings.width = dim;
    settings.weights = &weights;
    settings.tables = &tables;
    position = std::make_unique<Position>(spec, settings);
  }
};

Tensor random_rows(Arena& arena, uint64_t seed) {
  const Tensor x = empty(arena, {1, tile, 1, dim});
  fill_normal(x, Random(seed, "anchored test"), 0.0, 1.0);
  return x;
}

// f32 scores of the queries of `query_tile` with the keys of `key_tile`, as attention would see them.
std::vector<float> scores(const std::string& spec, const Tensor& q, const Tensor& k, int64_t query_tile, int64_t key_tile) {
  Layer layer(spec);
  Tape tape;
  NoGrad none(tape);
  const auto call = [&](int64_t first) { return PositionCall{&tape, {}, {}, 1, tile, first, first + tile, false, nullptr}; };
  Features queries{tape.constant(q), tape.constant(q), {}}, keys{tape.constant(k), tape.constant(k), {}};
  layer.position->transform(call(query_tile * tile), queries, nullptr);
  layer.position->transform(call(key_tile * tile), keys, nullptr);
  const Tensor rows = converted(tape.arena(), queries.q.value(), DType::f32).reshape({tile, dim});  // a copy, which carry() may write over
  if (const TileTransport* transport = layer.position->tile_transport(call(query_tile * tile), queries, nullptr)) {
    const Tensor raw = converted(tape.arena(), rows, DType::f32);
    transport->carry({0, 0, query_tile, key_tile, query_tile * tile, tile, tile}, raw, rows);
  }
  const float *a = rows.data<float>(), *b = keys.k.value().data<float>();
  std::vector<float> result;
  for (int64_t i = 0; i < tile; ++i) {
    for (int64_t j = 0; j < tile; ++j) {
      float sum = 0;
      for (int64_t d = 0; d < dim; ++d) sum += a[i * dim + d] * b[j * dim + d];
      result.push_back(sum);
    }
  }
  return result;
}

// q^T G(n) k for chains of order 2: with complex q_r, k_r per slot, Re sum conj(q_r) e^{-i w n} (k_r + n k_{r+1}).
Quad exact_score(const float* q, const float* k, int64_t n) {
  Quad sum = 0;
  for (int64_t chain = 0; chain < dim / 4; ++chain) {
    const Quad angle = -quad::exp(-quad::log(Quad(10000)) * chain / (dim / 4)) * n;
    const Quad c = quad::cos(angle), s = quad::sin(angle);
    const float *qc = q + 4 * chain, *kc = k + 4 * chain;
    for (int64_t r = 0; r < 2; ++r) {
      const Quad re = Quad(kc[2 * r]) + (r == 0 ? n * Quad(kc[2]) : Quad(0)), im = Quad(kc[2 * r + 1]) + (r == 0 ? n * Quad(kc[3]) : Quad(0));
      sum += Quad(qc[2 * r]) * (c * re - s * im) + Quad(qc[2 * r + 1]) * (s * re + c * im);
    }
  }
  return sum;
}

struct Errors {
  double plain, anchored;  // the largest difference, relative to the tile's largest exact score
};

Errors errors(int64_t length, int64_t key_tile) {
  Arena arena;
  const Tensor q = random_rows(arena, 1), k = random_rows(arena, 2);
  const int64_t query_tile = length / tile - 1;
  const auto plain = scores("jordan(order=2,mode=exact)", q, k, query_tile, key_tile);
  const auto anchored = scores("jordan(order=2,mode=exact,anchored=1)", q, k, query_tile, key_tile);
  double plain_error = 0, anchored_error = 0, size = 0;
  for (int64_t i = 0; i < tile; i += 3) {
    for (int64_t j = 0; j < tile; j += 3) {
      const int64_t lag = (query_tile - key_tile) * tile + i - j;
      if (lag < 0) continue;
      const double exact = static_cast<double>(exact_score(q.data<float>() + i * dim, k.data<float>() + j * dim, lag));
      const size_t at = static_cast<size_t>(i * tile + j);
      plain_error = std::max(plain_error, std::fabs(static_cast<double>(plain[at]) - exact));
      anchored_error = std::max(anchored_error, std::fabs(static_cast<double>(anchored[at]) - exact));
      size = std::max(size, std::fabs(exact));
    }
  }
  return {plain_error / size, anchored_error / size};
}

class AnchoredJordan : public testing::TestWithParam<int64_t> {};

TEST_P(AnchoredJordan, KeepsItsDigitsWhereThePlainEvaluationDoesNot) {
  const int64_t length = GetParam(), last = length / tile - 1;
  for (const int64_t key_tile : {int64_t{0}, last / 2, last - 1, last}) {
    const Errors error = errors(length, key_tile);
    EXPECT_LT(error.anchored, 1e-4) << "key tile " << key_tile;
    // Next to the diagonal the lag is small and the absolute factors are not.
    if (key_tile >= last - 1) {
      EXPECT_GT(error.plain, 1e-4) << "key tile " << key_tile;
    }
    RecordProperty("anchored_" + std::to_string(key_tile), std::to_string(error.anchored));
    RecordProperty("plain_" + std::to_string(key_tile), std::to_string(error.plain));
  }
}
INSTANTIATE_TEST_SUITE_P(Lengths, AnchoredJordan, testing::Values(32768, 65536));

}  // namespace
}  // namespace sextant
