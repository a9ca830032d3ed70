// Exact Jordan chains in f32 far from the origin, plain and anchored, against 113-bit arithmetic of the lag alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "positional/strategy.h"
#include "tests/positional/attention_layer.h"
#include "tests/positional/quad.h"

namespace sextant {
namespace {

using quad::Quad;

constexpr int64_t dim = 24, tile = TileTransport::tile;

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
std::vector<float> scores(const std::string& spec, const Tensor& q, const Tensor& k, int64_t query_tile,
                          int64_t key_tile) {
  Layer layer(spec);
  Tape tape;
  NoGrad none(tape);
  const auto call = [&](int64_t first) {
    return PositionCall{&tape, {}, {}, 1, tile, first, first + tile, false, nullptr};
  };
  Features queries{tape.constant(q), tape.constant(q), {}}, keys{tape.constant(k), tape.constant(k), {}};
  layer.position->transform(call(query_tile * tile), queries, nullptr);
  layer.position->transform(call(key_tile * tile), keys, nullptr);
  const Tensor rows = converted(tape.arena(), queries.q.value(), DType::f32)
                          .reshape({tile, dim});  // a copy, which carry() may write over
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

// q^T G(n) k for chains of the given order: with complex q_r, k_r per slot, Re sum_r conj(q_r) e^{-i w n} sum_s n^s /
// s! k_{r+s}.
Quad exact_score(const float* q, const float* k, int64_t order, int64_t n) {
  const int64_t chains = dim / (2 * order);
  Quad sum = 0;
  for (int64_t chain = 0; chain < chains; ++chain) {
    const Quad angle = -quad::exp(-quad::log(Quad(10000)) * chain / chains) * n;
    const Quad c = quad::cos(angle), s = quad::sin(angle);
    const float *qc = q + 2 * order * chain, *kc = k + 2 * order * chain;
    for (int64_t r = 0; r < order; ++r) {
      Quad re = 0, im = 0, jet = 1;
      for (int64_t t = r; t < order; ++t) {
        re += jet * Quad(kc[2 * t]);
        im += jet * Quad(kc[2 * t + 1]);
        jet *= Quad(n) / (t - r + 1);
      }
      sum += Quad(qc[2 * r]) * (c * re - s * im) + Quad(qc[2 * r + 1]) * (s * re + c * im);
    }
  }
  return sum;
}

// How large a logit at this lag can be: |q| |k| sum_r n^r / r!.
double size_of_logit(const float* q, const float* k, int64_t order, int64_t n) {
  double qq = 0, kk = 0, jets = 0, jet = 1;
  for (int64_t d = 0; d < dim; ++d) {
    qq += static_cast<double>(q[d]) * static_cast<double>(q[d]);
    kk += static_cast<double>(k[d]) * static_cast<double>(k[d]);
  }
  for (int64_t r = 0; r < order; ++r) {
    jets += jet;
    jet *= static_cast<double>(n) / static_cast<double>(r + 1);
  }
  return std::sqrt(qq * kk) * jets;
}

struct Errors {
  double plain = 0, anchored = 0;  // the largest, relative to the size a logit can have
};

Errors errors(int64_t order, int64_t length, int64_t key_tile) {
  Arena arena;
  const Tensor q = random_rows(arena, 1), k = random_rows(arena, 2);
  const int64_t query_tile = length / tile - 1;
  const std::string spec = "jordan(mode=exact,order=" + std::to_string(order);
  const auto plain = scores(spec + ")", q, k, query_tile, key_tile),
             anchored = scores(spec + ",anchored=1)", q, k, query_tile, key_tile);
  Errors worst;
  for (int64_t i = 0; i < tile; i += 3) {
    for (int64_t j = 0; j < tile; j += 3) {
      const int64_t lag = (query_tile - key_tile) * tile + i - j;
      if (lag < 0) continue;
      const float *qi = q.data<float>() + i * dim, *kj = k.data<float>() + j * dim;
      const double exact = static_cast<double>(exact_score(qi, kj, order, lag)),
                   size = size_of_logit(qi, kj, order, lag);
      const size_t at = static_cast<size_t>(i * tile + j);
      worst.plain = std::max(worst.plain, std::fabs(static_cast<double>(plain[at]) - exact) / size);
      worst.anchored = std::max(worst.anchored, std::fabs(static_cast<double>(anchored[at]) - exact) / size);
    }
  }
  return worst;
}

// ---- damping ------------------------------------------------------------------------------------------------------

// e^{g j} of the plain evaluation overflows f32 after some 88 / g positions; without a word in the SPEC there are
// anchors. In f32 against the definition, at lags where something is left: e^{-g n} <q, R(-n w) k> for order 1.
TEST(DampedJordan, IsEvaluatedFromAnchorsWithoutBeingAsked) {
  Arena arena;
  const Tensor q = random_rows(arena, 1), k = random_rows(arena, 2);
  const auto exact_score_at = [](const float* a, const float* b, double damping, int64_t lag) {
    double sum = 0;
    for (int64_t d = 0; d < dim; d += 2) {
      const double angle = -std::pow(10000.0, -static_cast<double>(d) / dim) * static_cast<double>(lag);
      const double a0 = a[d], a1 = a[d + 1], b0 = b[d], b1 = b[d + 1];
      sum += std::cos(angle) * (a0 * b0 + a1 * b1) + std::sin(angle) * (a1 * b0 - a0 * b1);
    }
    return std::exp(-damping * static_cast<double>(lag)) * sum;
  };
  for (const double damping : {1e-6, 0.01, 0.3, 2.2}) {
    const std::string spec = fmt::format("jordan(mode=exact,order=1,damping={})", damping);
    for (const int64_t query_tile : {int64_t{0}, int64_t{511}, int64_t{2047}}) {
      for (int64_t key_tile = std::max<int64_t>(0, query_tile - 1); key_tile <= query_tile; ++key_tile) {
        const auto have = scores(spec, q, k, query_tile, key_tile);
        for (int64_t i = 0; i < tile; ++i)
          for (int64_t j = 0; j < tile; ++j) {
            const int64_t lag = (query_tile - key_tile) * tile + i - j;
            if (lag < 0) continue;
            const float *qi = q.data<float>() + i * dim, *kj = k.data<float>() + j * dim;
            // What underflows at strong damping is below an ulp of what there would be without.
            const double undamped = size_of_logit(qi, kj, 1, lag), floor = damping > 1 ? 0x1p-23 * undamped : 1e-37;
            ASSERT_NEAR(static_cast<double>(have[static_cast<size_t>(i * tile + j)]),
                        exact_score_at(qi, kj, damping, lag),
                        1e-5 * std::exp(-damping * static_cast<double>(lag)) * undamped + floor)
                << damping << " query tile " << query_tile << " lag " << lag;
          }
      }
    }
  }
}

// Of stabilized chains the damping alone is anchored: the scores are those of the plain evaluation, in f64 and where
// that does not overflow.
TEST(DampedJordan, StabilizedChainsKeepTheirScores) {
  for (const char* sigma : {"tanh", "algebraic"}) {
    const std::string spec = fmt::format("jordan(order=3,mode=stabilized,sigma={},scale=64,damping=0.02", sigma);
    testing_layer::Layer plain(spec + ",anchored=0)", 2, 12, DType::f64), anchored(spec + ")", 2, 12, DType::f64);
    Arena arena;
    Tape tape;
    const auto s = testing_layer::random_sequence(arena, plain.settings, 2, 300);
    const Tensor expected = plain.run(tape, s).value();
    EXPECT_LT(testing_layer::difference(anchored.run(tape, s).value(), expected), 1e-12) << sigma;
    EXPECT_LT(testing_layer::difference(anchored.run(tape, s, true).value(), expected), 1e-12) << sigma;
    EXPECT_LT(testing_layer::difference(anchored.run_cached(arena, s, {1, 70, 29, 200}), expected), 1e-12) << sigma;
  }
}

TEST(DampedJordan, SaysWhereAndWhyTheFeaturesOverflow) {
  const auto said = [](const std::string& spec, int64_t positions) {
    return Layer(spec).position->overflow(positions);
  };
  // e^{0.01 j} leaves f32 at j = 8873, since 88.7228 is the logarithm of its largest number.
  EXPECT_EQ(said("jordan(order=1,damping=0.01,anchored=0)", 8873), "");
  const std::string plain = said("alibi+jordan(order=1,damping=0.01,anchored=0)", 32768);
  for (const char* part : {"jordan(", "f32", "position 8873", "anchored=0"})
    EXPECT_NE(plain.find(part), std::string::npos) << plain;
  EXPECT_EQ(said("jordan(damping=0.01)", 1 << 20), "");
  EXPECT_EQ(said("jordan", 1 << 20), "");
  EXPECT_NE(said("jordan(order=12,mode=exact)", 32768).find("fewer slots"), std::string::npos);
  EXPECT_NE(said("jordan(order=12,mode=exact,anchored=1)", 32768).find("at lag"), std::string::npos);
  EXPECT_NE(said("pj-rotary(order=11,scale=0.001)", 32768).find("chart=lc"), std::string::npos);
  EXPECT_EQ(said("pj-rotary(order=11,scale=0.001,chart=lc)", 32768), "");
}

// ---- exact chains -------------------------------------------------------------------------------------------------

struct Far {
  int64_t order, length;
};

class AnchoredJordan : public testing::TestWithParam<Far> {};

TEST_P(AnchoredJordan, KeepsItsDigitsWhereThePlainEvaluationDoesNot) {
  const int64_t last = GetParam().length / tile - 1;
  for (const int64_t key_tile : {int64_t{0}, last / 2, last - 1, last}) {
    const Errors error = errors(GetParam().order, GetParam().length, key_tile);
    EXPECT_LT(error.anchored, 1e-4) << "key tile " << key_tile;
    if (key_tile >= last - 1) {  // the lag is small there, and the absolute factors are not
      EXPECT_GT(error.plain, 1e-4) << "key tile " << key_tile;
    }
    RecordProperty("anchored_" + std::to_string(key_tile), fmt::format("{:.2g}", error.anchored));
    RecordProperty("plain_" + std::to_string(key_tile), fmt::format("{:.2g}", error.plain));
  }
}
INSTANTIATE_TEST_SUITE_P(Lengths, AnchoredJordan,
                         testing::Values(Far{2, 32768}, Far{2, 65536}, Far{3, 32768}, Far{3, 65536}),
                         [](const auto& instance) {
                           return fmt::format("order{}_{}", instance.param.order, instance.param.length);
                         });

}  // namespace
}  // namespace sextant
