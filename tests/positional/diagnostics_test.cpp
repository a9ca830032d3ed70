// Masses, energies, leave-one-out, fits and long-range measures against values known in advance.
#include "positional/diagnostics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sextant {
namespace {

PositionSettings settings_of(int64_t heads, int64_t head_dim) {
  PositionSettings settings;
  settings.heads = heads;
  settings.head_dim = head_dim;
  settings.context = 256;
  return settings;
}

TEST(Sectors, AlibiHasItsMeanSlopeAndTheEnergyOfALine) {
  PositionStand stand("alibi", settings_of(2, 4));  // slopes 2^-4, 2^-8
  const auto rows = sector_diagnostics(stand.position(), 2, 3);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].sector, "affine");
  EXPECT_EQ(rows[0].order, 1);
  EXPECT_DOUBLE_EQ(rows[0].mass, (0.0625 + 0.00390625) / 2);
  EXPECT_EQ(rows[0].mass_share, 1.0);
  const double squares = (0.0625 * 0.0625 + 0.00390625 * 0.00390625) / 2;
  EXPECT_DOUBLE_EQ(rows[0].energy, squares * (0 + 1 + 4) / 3);          // lags 0, 1, 2
  EXPECT_DOUBLE_EQ(rows[0].centred_energy, squares * (1 + 0 + 1) / 3);  // about their mean 1
  EXPECT_DOUBLE_EQ(rows[0].cancellation, std::sqrt(rows[0].energy) / rows[0].mass);
}

TEST(Sectors, OppositeWavesHaveMassButNoEnergy) {
  PositionStand stand("pj-bias(jets=1,lc-jets=0,affine=0,frequencies=1)", settings_of(1, 4));
  for (Parameter* parameter : stand.position().parameters()) parameter->value.fill(0.0);
  Parameter* const cosine = stand.position().parameters()[1];
  ASSERT_NE(cosine->name.find("fj_cos"), std::string::npos);
  cosine->value.fill(3.0);
  const auto rows = sector_diagnostics(stand.position(), 1, 1);  // lag 0 alone: cos 0 = 1
  EXPECT_DOUBLE_EQ(rows[0].mass, 1.5);                           // gate 1/2
  EXPECT_DOUBLE_EQ(rows[0].energy, 2.25);
  EXPECT_EQ(rows[0].centred_energy, 0.0);
}

TEST(LeaveOneOut, ZeroesEachComponentAndRestoresIt) {
  PositionStand stand("pj-bias(jets=2,lc-jets=1,frequencies=2)", settings_of(2, 4));
  const std::vector<int64_t> lags{0, 1, 2, 3, 4, 5};
  Position* const layer = &stand.position();
  // The loss is the bias at lag 5 of head 1, so each change is minus that component's value there.
  const auto loss = [&] { return bias_responses(stand, lags, 1).front().values[5]; };
  const double before = loss();
  const auto responses = bias_responses(stand, lags, 1);
  const auto rows = leave_one_out({&layer, 1}, loss);
  ASSERT_EQ(rows.size() + 1, responses.size());
  for (size_t i = 0; i < rows.size(); ++i)
    EXPECT_NEAR(rows[i].change, -responses[i + 1].values[5], 1e-14) << rows[i].sector << rows[i].order;
  EXPECT_EQ(loss(), before);
}

TEST(RidgeFit, RecoversTheCoefficientsOfEachFamily) {
  std::vector<int64_t> lags(400);
  for (size_t d = 0; d < lags.size(); ++d) lags[d] = static_cast<int64_t>(d);
  const auto basis = pj_basis(lags, 3, 2, 1, true, 64);
  ASSERT_EQ(basis.size(), 3u * 2 * 2 + 2 + 3u * 2);
  std::vector<double> target(lags.size(), 0.0);
  for (size_t d = 0; d < lags.size(); ++d) {
    const double x = static_cast<double>(d) / 64;
    target[d] = 0.5 * x * std::sin(static_cast<double>(d)) - 2.0 * x + 0.25 * std::cos(64 * std::asinh(x));
  }
  const auto fit = ridge_fit(basis, target, 0.0);
  EXPECT_LT(normalised_error(basis, fit, target), 1e-20);
  const auto heavy = ridge_fit(basis, target, 100.0);  // shrinks towards zero
  EXPECT_GT(normalised_error(basis, heavy, target), 0.01);
  // The recency and the jets are needed; an order that the target has nothing of is not.
  for (const FitLeaveOneOut& row : fit_leave_one_out(basis, target, 1e-10)) {
    if (row.sector == "affine" && row.order == 1) {
      EXPECT_GT(row.change, 0.1);
    }
    if (row.sector == "FJ" && row.order == 1) {
      EXPECT_GT(row.change_refitted, 1e-3);
    }
    if (row.sector == "FJ" && row.order == 0) {
      EXPECT_LT(row.change_refitted, 1e-6);
    }
    EXPECT_LE(row.change_refitted, row.change + 1e-9);
  }
}

TEST(RidgeFit, SolvesTheNormalEquations) {
  const std::vector<BasisColumn> basis{{"a", 0, {1, 0, 2}}, {"b", 0, {0, 3, 1}}};
  const std::vector<double> target{1, 2, 3};
  // Columns scaled to unit norm: (A^T A + ridge) y = A^T t with A^T A = [[1, c], [c, 1]], solved by hand.
  const double ridge = 0.5, na = std::sqrt(5.0), nb = std::sqrt(10.0), c = 2 / (na * nb), ta = 7 / na, tb = 9 / nb;
  const double determinant = (1 + ridge) * (1 + ridge) - c * c;
  const auto x = ridge_fit(basis, target, ridge);
  EXPECT_NEAR(x[0], ((1 + ridge) * ta - c * tb) / determinant / na, 1e-14);
  EXPECT_NEAR(x[1], ((1 + ridge) * tb - c * ta) / determinant / nb, 1e-14);
}

TEST(Stability, RotationsKeepNormsAndJetsGrow) {
  const std::vector<int64_t> positions{0, 255, 32767};
  PositionStand rope("rope", settings_of(1, 16)), jordan("jordan(order=2)", settings_of(1, 16)),
      bounded("pj-rotary(affine=0,chart=lc)", settings_of(1, 16));
  for (const StabilityRow& row : stability(rope, positions)) {
    EXPECT_NEAR(row.largest_query, 1.0, 1e-12);
    EXPECT_NEAR(row.mean_key, 1.0, 1e-12);
    EXPECT_LE(row.largest_logit, 0.25 + 1e-12);  // 1 / sqrt(16)
  }
  const auto grown = stability(jordan, positions);
  EXPECT_GT(grown[2].largest_key, 30.0);  // jets of n / L = 128 on unit keys
  EXPECT_LT(grown[2].largest_key, 130.0);
  EXPECT_LT(stability(bounded, positions)[2].largest_key, 2.0);  // |1 + B N| < 1.7
  EXPECT_EQ(grown[2].key_bytes, 32768.0 * 16 * 4);
}

TEST(Resolution, LightConeLosesFarPhaseSpanAndRetrieval) {
  const PhaseSpan span = phase_span(1.0, 256, 16384, 32768);
  EXPECT_EQ(span.raw, 16384.0);
  EXPECT_NEAR(span.light_cone, 256 * std::log(2.0), 0.1);  // asinh(2x) - asinh(x) tends to log 2
  std::vector<int64_t> far(200);
  for (size_t n = 0; n < far.size(); ++n) far[n] = 30000 + static_cast<int64_t>(n);
  const auto raw = phase_features(far, 8, 256, false), light_cone = phase_features(far, 8, 256, true);
  EXPECT_EQ(retrieval_accuracy(raw, 8, 0.0, 50), 1.0);
  EXPECT_EQ(retrieval_accuracy(light_cone, 8, 0.0, 50), 1.0);  // told apart without noise
  const double raw_hits = retrieval_accuracy(raw, 8, 0.05, 400),
               light_cone_hits = retrieval_accuracy(light_cone, 8, 0.05, 400);
  EXPECT_GT(raw_hits, 0.9);
  EXPECT_LT(light_cone_hits, 0.3);
}

// Two heads of two coordinates; the last of 3 queries meets all of 70 keys.
TEST(Stability, OfWhatAttentionReads) {
  Arena arena;
  const Tensor q = zeros(arena, {1, 3, 2, 2}, DType::f32), k = zeros(arena, {1, 70, 2, 2}, DType::f32);
  for (int64_t i = 0; i < 3; ++i) q.set_flat(4 * i, 3.0 + static_cast<double>(i));  // norms 3, 4, 5 and 0, 0, 0
  for (int64_t j = 0; j < 70; ++j) k.set_flat(4 * j + 3, j < 6 ? 100.0 : 2.0);      // 100 is before the last 64
  k.set_flat(4, -8.0);
  const Tensor bias = full(arena, {2, 70}, 1e3, DType::f32);  // no part of it
  const StabilityRow row = stability_of({q, k, k, bias, {}, 0.5, nullptr});
  EXPECT_EQ(row.position, 69);
  EXPECT_EQ(row.largest_query, 5.0);
  EXPECT_DOUBLE_EQ(row.mean_query, (3 + 4 + 5) / 6.0);
  EXPECT_EQ(row.largest_key, 2.0);
  EXPECT_EQ(row.mean_key, 1.0);
  EXPECT_EQ(row.largest_logit, 0.5 * 5 * 8);
  EXPECT_EQ(row.key_bytes, 70 * 2 * 4);
}

TEST(Resolution, IsThatOfALayersOwnWaves) {
  const auto of = [](const std::string& spec, int64_t length) {
    PositionStand stand(spec, settings_of(1, 16));
    return resolution(stand.position(), length);
  };
  EXPECT_TRUE(of("alibi+affine", 32768).empty());
  EXPECT_TRUE(of("rope", 8).empty());  // too short for the probe
  const auto raw = of("rope+affine", 32768);
  ASSERT_EQ(raw.size(), 1u);
  EXPECT_EQ(raw[0].term, "rope");
  EXPECT_FALSE(raw[0].light_cone);
  EXPECT_EQ(raw[0].from, 32704);
  EXPECT_EQ(raw[0].to, 32767);
  EXPECT_EQ(raw[0].span.raw, 63.0);
  EXPECT_GT(raw[0].hits, 0.95);
  const auto chart = of("pj-rotary(affine=0,chart=lc)", 32768);
  ASSERT_EQ(chart.size(), 1u);
  EXPECT_TRUE(chart[0].light_cone);
  EXPECT_NEAR(chart[0].span.light_cone, 256 * std::log(32767.0 / 32704), 1e-4);  // asinh x tends to log 2x
  EXPECT_LT(chart[0].hits, 0.3);
  EXPECT_EQ(of("jordan(order=4)", 4096).at(0).span.raw, 63.0);
  // As it is now: a learned scale moves the chart, and not the raw phases.
  PositionStand stand("pj-bias(learn-scale=1,learn-frequencies=1)", settings_of(1, 16));
  for (Parameter* parameter : stand.position().parameters()) {
    if (parameter->name.ends_with("log_scale")) parameter->value.fill(std::log(1e9));
    if (parameter->name.ends_with("log_frequency")) parameter->value.fill(std::log(0.5));
  }
  const auto learned = resolution(stand.position(), 32768);
  ASSERT_EQ(learned.size(), 2u);
  EXPECT_EQ(learned[0].sector, "FJ");
  EXPECT_EQ(learned[0].span.raw, 31.5);
  EXPECT_EQ(learned[1].sector, "LC");
  EXPECT_NEAR(learned[1].span.light_cone, 31.5, 1e-6);
}

// ALiBi's slope and the affine term's are one sector: a reader must be able to tell them apart.
TEST(Responses, TermsThatShareASectorHaveNamesOfTheirOwn) {
  const std::vector<int64_t> lags{0, 5, 9};
  const auto names = [&](const char* spec) {
    PositionStand stand(spec, settings_of(1, 16));
    std::vector<std::string> all;
    for (const Response& response : bias_responses(stand, lags, 0)) all.push_back(response.component);
    return all;
  };
  EXPECT_EQ(names("alibi+affine"), (std::vector<std::string>{"sum", "alibi affine 1", "affine 0", "affine 1"}));
  EXPECT_EQ(names("rope+affine"), (std::vector<std::string>{"sum", "affine 0", "affine 1"}));
}

}  // namespace
}  // namespace sextant
