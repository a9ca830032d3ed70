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
