// The studies of accumulated transport: closed forms of their stylized models, what is measured of a model against
// other ways to it, and each study at scale smoke through the program.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "data/corpus.h"
#include "experiments/study_random_steps.h"
#include "experiments/study_transport_measure.h"
#include "experiments/study_value_incoherence.h"
#include "positional/logits.h"
#include "positional/mechanism.h"
#include "tests/experiments/program.h"

namespace sextant::test {
namespace {

using nlohmann::json;

// ---- stylized models ------------------------------------------------------------------------------------------------

TEST(ValueIncoherence, FarVarianceIsTheDoubleSum) {
  for (const std::complex<double> z : {std::complex<double>(1.0), std::complex<double>(0.9), std::polar(1.0, 0.3),
                                       std::polar(0.95, 2.0), std::complex<double>(0.0)})
    for (const int64_t count : {1, 2, 17, 300}) {
      const study::FarSources sources{.count = count, .weight = 0.01, .background = 1.5, .noise = 0.5};
      double expected = static_cast<double>(count) * 0.25;
      for (int64_t j = 0; j < count; ++j)
        for (int64_t k = 0; k < count; ++k)
          expected += 2.25 * (j == k ? 1.0 : std::pow(z, static_cast<double>(std::abs(j - k))).real());
      EXPECT_NEAR(study::far_variance(sources, z) / (1e-4 * expected), 1.0, 1e-9) << z << " " << count;
    }
}

TEST(ValueIncoherence, FarVarianceAgreesWithTheRecursion) {
  const study::FarSources sources{.count = 5000, .weight = 2e-4, .background = 1, .noise = 1};
  const mechanism::FarModel model{std::vector<double>(5000, 2e-4), 2, 1, 1};
  for (const double resultant : {1.0, 0.999, 0.5})
    EXPECT_NEAR(study::far_variance(sources, resultant) / mechanism::far_variance(model, resultant), 1.0, 1e-9);
}

TEST(ValueIncoherence, NearCoefficientIsTheSum) {
  EXPECT_DOUBLE_EQ(study::near_coefficient(64, 1.0), 64);
  const std::complex<double> z = std::polar(0.97, 0.05);
  double sum = 0;
  for (int n = 0; n < 64; ++n) sum += std::pow(z, n).real();
  EXPECT_NEAR(study::near_coefficient(64, z), sum, 1e-11);
}

TEST(RandomSteps, WindowOfTheGap) {
  // std 0.25: (1 - gap)^n = e^{-n / 32}
  EXPECT_NEAR(study::predicted_window(1 - std::exp(-1.0 / 32)), 32 * std::log(10.0), 1e-9);
  EXPECT_TRUE(std::isinf(study::predicted_window(0)));
  EXPECT_EQ(study::predicted_window(1), 1);
  EXPECT_EQ(study::mixing_window_of({0, 1, 2, 4, 8}, {1.0, 0.5, -0.05, 0.2, 0.05}), 8);
  EXPECT_EQ(study::mixing_window_of({0, 1, 2, 4, 8}, {1.0, 0.5, 0.2}), -1);
}

TEST(RandomSteps, RouteLengthsRise) {
  const std::vector<int64_t> lengths = study::route_lengths(1000);
  EXPECT_EQ(lengths[0], 0);
  EXPECT_EQ(lengths[16], 16);
  EXPECT_TRUE(std::ranges::is_sorted(lengths) && lengths.back() <= 1000 && lengths.back() > 900);
  EXPECT_EQ(std::ranges::adjacent_find(lengths), lengths.end());
}

// ---- measuring a model ----------------------------------------------------------------------------------------------

ModelConfig small_model(const std::string& position) {
  return {.vocab = 256, .layers = 2, .width = 16, .heads = 2, .context = 64, .position = position, .data = "test"};
}

std::vector<int32_t> bytes_of(int64_t count) {
  std::vector<int32_t> tokens;
  for (const char c : sample_text(static_cast<int>(count))) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

// The weights that attention itself gives: its output for one-hot values, D keys at a time.
std::vector<double> attention_weights(const AttentionInputs& inputs, int64_t head, int64_t row) {
  const int64_t keys = inputs.k.size(1), dim = inputs.k.size(3), queries = inputs.q.size(1);
  std::vector<double> weights;
  for (int64_t first = 0; first < keys; first += dim) {
    Arena arena;
    AttentionInputs one_hot = inputs;
    one_hot.v = zeros(arena, inputs.k.shape(), inputs.k.dtype());
    for (int64_t d = 0; d < dim && first + d < keys; ++d) one_hot.v.select(1, first + d).select(2, d).fill(1.0);
    const Tensor out = empty(arena, inputs.q.shape(), inputs.q.dtype());
    kernels::attention(one_hot, out, empty(arena, {1, inputs.q.size(2), queries}, inputs.q.dtype()));
    for (int64_t d = 0; d < dim && first + d < keys; ++d) weights.push_back(out.at({0, row, head, d}));
  }
  return weights;
}

TEST(LogitsOfQuery, GiveTheWeightsThatAttentionGives) {
  for (const char* spec :
       {"rope", "alibi", "transport(kind=learned,values=1)+gate", "transport(kind=householder)", "transport(kind=path)",
        "transport(kind=path,gate=1)", "jordan(order=2,mode=exact,anchored=1)", "pj-bias+transport(kind=random)"}) {
    ModelConfig config = small_model(spec);
    config.dtype = DType::f64;
    Transformer model(config);
    Tape tape;
    // 150 tokens in two pieces: queries that are the last 83 of 150 positions, keys over more than two tiles.
    const std::vector<int32_t> tokens = bytes_of(150);
    Cache cache = model.new_cache(1, 150, 150);
    int looked = 0;
    model.set_observer([&](const AttentionView& view) {
      const AttentionInputs inputs = values_of(view.arguments);
      for (const int64_t row : {int64_t{0}, inputs.q.size(1) / 2, inputs.q.size(1) - 1}) {
        const std::vector<double> logits = logits_of_query(inputs, 0, 1, row);
        ASSERT_EQ(static_cast<int64_t>(logits.size()), inputs.k.size(1) - inputs.q.size(1) + row + 1);
        const std::vector<double> weights = attention_weights(inputs, 1, row);
        double sum = 0;
        for (const double logit : logits) sum += std::exp(logit);
        for (size_t j = 0; j < logits.size(); ++j)
          ASSERT_NEAR(std::exp(logits[j]) / sum, weights[j], 1e-12) << spec << " row " << row << " key " << j;
        ++looked;
      }
    });
    model.extend(tape, cache, std::span(tokens).first(67), 67);
    model.extend(tape, cache, std::span(tokens).subspan(67), 83);
    EXPECT_EQ(looked, 2 * 2 * 3) << spec;
  }
}

std::shared_ptr<Corpus> text_corpus(const Folder& folder, int bytes) {
  return open_corpus(folder.write("text.txt", sample_text(bytes)));
}

// With all queries 0 every logit is 0: the mass is the share of the far sources, and so is the bound with lambda = 0.
TEST(FarMass, OfEqualLogitsIsTheBoundItself) {
  const Folder folder;
  const auto corpus = text_corpus(folder, 8000);
  Transformer model(small_model("none"));
  for (Parameter* parameter : model.parameters())
    if (parameter->name.find("attn.qkv") != std::string::npos) parameter->value.zero();
  Progress silent(nullptr);
  const json rows = study::measure_far_mass(
      model, *corpus, {.lengths = {64, 128, 512, 100000}, .near = {16, 64}, .queries = 3, .windows = 2}, silent);
  ASSERT_EQ(rows.size(), 3);  // the last is longer than the text
  for (const json& row : rows) {
    EXPECT_NEAR(row.at("margin").get<double>(), 0, 1e-14);
    EXPECT_EQ(row.at("lambda")[1][1], 0);
    for (const json& near : row.at("near")) {
      double expected = 0;
      for (int n = 0; n < 3; ++n) {
        const double position = row.at("length").get<double>() - 1 - 4 * n, k = near.at("near");
        expected += std::max(0.0, position - k) / (position + 1) / 3;
      }
      for (const char* what : {"mass", "bound", "bound_half_range"})
        EXPECT_NEAR(near.at(what)[0][1].get<double>(), expected, 1e-14) << what;
    }
  }
}

TEST(FarMass, OfAModelIsNeverBelowItsBound) {
  const Folder folder;
  const auto corpus = text_corpus(folder, 8000);
  Progress silent(nullptr);
  for (const char* spec : {"rope", "alibi", "transport(kind=path)", "transport(kind=random,values=1)+gate"}) {
    Transformer model(small_model(spec));
    for (Parameter* parameter : model.parameters())  // larger logits than at the start
      if (parameter->name.find("qkv.weight") != std::string::npos)
        for (int64_t i = 0; i < parameter->value.elements(); ++i)
          parameter->value.set_flat(i, 8 * parameter->value.flat(i));
    for (const json& row :
         study::measure_far_mass(model, *corpus, {.lengths = {64, 256, 512}, .near = {16, 64}}, silent)) {
      EXPECT_GE(row.at("margin").get<double>(), -1e-12) << spec;
      EXPECT_GE(row.at("lambda")[0][0].get<double>(), row.at("half_range")[0][0].get<double>()) << spec;
      const json& near = row.at("near")[0];
      EXPECT_GE(near.at("mass")[1][0].get<double>(), near.at("bound_half_range")[1][0].get<double>() - 1e-12) << spec;
      EXPECT_GE(near.at("bound_half_range")[1][0].get<double>(), near.at("bound")[1][0].get<double>()) << spec;
    }
  }
}

TEST(Routes, OfFixedAndRandomRotations) {
  const Folder folder;
  const auto corpus = text_corpus(folder, 30000);
  Progress silent(nullptr);
  // rope: the probe's score is the mean cosine of the pairs at that lag, whatever the text.
  Transformer rope(small_model("rope"));
  const json fixed = study::measure_decoherence(rope, *corpus, {256, 1024}, silent);
  for (size_t n = 0; n < fixed.at("contexts")[0].at("probe").size(); ++n) {
    double expected = 0;
    for (int p = 0; p < 4; ++p)
      expected += std::cos(fixed.at("lengths")[n].get<double>() * std::pow(10000.0, -p / 4.0)) / 4;
    EXPECT_NEAR(fixed.at("contexts")[0].at("probe")[n].get<double>(), expected, 1e-5);
  }
  EXPECT_TRUE(fixed.at("layers")[0].at("gaps").empty());
  // Independent angles of deviation 0.25: gap 1 - e^{-1/32}, scores e^{-n/32}. 2 layers, 2 heads, 4 pairs.
  Transformer random(small_model("transport(kind=random,by=position)"));
  const json free = study::measure_decoherence(random, *corpus, {512, 2048}, silent);
  for (const json& layer : free.at("layers"))
    for (const json& gap : layer.at("gaps")) EXPECT_NEAR(gap.get<double>(), 1 - std::exp(-1.0 / 32), 0.01);
  const json& probe = free.at("contexts")[1].at("probe");
  for (size_t n = 0; n < probe.size(); ++n)
    EXPECT_NEAR(probe[n].get<double>(), std::exp(-free.at("lengths")[n].get<double>() / 32), 0.08) << n;
  for (size_t n = 0; n < probe.size(); ++n)
    EXPECT_NEAR(free.at("layers")[0].at("predicted")[n].get<double>(),
                std::exp(-free.at("lengths")[n].get<double>() / 32), 0.05);
  EXPECT_EQ(free.at("contexts")[0].at("score")[0].get<double>() > -1, true);
}

// PaTH's steps are taken from its parameters; with a constant input direction the probe shrinks by 1 - beta a step.
TEST(Routes, OfPathWithOneDirection) {
  const Folder folder;
  const auto corpus = text_corpus(folder, 8000);
  Transformer model(small_model("transport(kind=path)"));
  for (Parameter* parameter : model.parameters()) {
    if (parameter->name.find("transport.weight") != std::string::npos ||
        parameter->name.find("transport.beta") != std::string::npos)
      parameter->value.zero();
    if (parameter->name.find("transport.bias") != std::string::npos)  // the probe's direction, beta = 1 / 2
      for (int64_t i = 0; i < parameter->value.elements(); i += 2) parameter->value.set_flat(i, 3.0);
    if (parameter->name.find("transport.beta_bias") != std::string::npos) parameter->value.fill(-std::log(3.0));
  }
  Progress silent(nullptr);
  const json routes = study::measure_decoherence(model, *corpus, {64, 256}, silent);
  for (size_t n = 0; n < routes.at("contexts")[0].at("probe").size(); ++n)
    EXPECT_NEAR(routes.at("contexts")[0].at("probe")[n].get<double>(),
                std::pow(0.5, routes.at("lengths")[n].get<double>()), 1e-6);
  EXPECT_NEAR(routes.at("layers")[0].at("gaps")[0].get<double>(), 0.0, 1e-6);  // other directions stay
  EXPECT_TRUE(routes.at("layers")[0].at("predicted").empty());
}

// ---- the studies, through the program -------------------------------------------------------------------------------

json finding_of(const ProgramRun& run, const std::string& part) {
  const json report = json::parse(run.out);
  for (const json& finding : report.at("findings"))
    if (finding.at("paper").get<std::string>().find(part) != std::string::npos) return finding;
  ADD_FAILURE() << "no finding about " << part;
  return {};
}

TEST(TransportStudies, ValueIncoherence) {
  const Folder folder;
  const std::vector<std::string> command = {"experiment", "value-incoherence", "--out", folder.path("out"), "--json"};
  const ProgramRun run = sextant(command);
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(finding_of(run, "covariance").at("agrees"), true);
  // Where values stay, the whole background comes through: far mass squared, and the noise.
  const json rows = json::parse(read_file(folder.path("out/results/still.json"))).at("result").at("rows");
  for (const json& row : rows) {
    const double mass = row.at("far_mass"), far = row.at("far");
    EXPECT_NEAR(row.at("variance").get<double>() / (mass * mass * (1 + 1 / far)), 1.0, 5 * std::sqrt(2.0 / 200 / 16))
        << row.dump();
  }
  EXPECT_EQ(json::parse(sextant(command).out).at("worked"), 0);
}

TEST(TransportStudies, DecoherenceOfRandomSteps) {
  const Folder folder;
  const ProgramRun run =
      sextant({"experiment", "decoherence", "--only", "steps/", "--out", folder.path("out"), "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  const json result = json::parse(read_file(folder.path("out/results/steps/rotation-0.5.json"))).at("result");
  EXPECT_NEAR(result.at("gap").get<double>(), 1 - std::exp(-0.125), 0.03);
  const json& mean = result.at("contexts").back().at("mean");
  for (size_t n = 0; n < mean.size(); ++n)
    EXPECT_NEAR(mean[n].get<double>(), std::exp(-result.at("lengths")[n].get<double>() / 8), 0.06);
}

// One run serves all three; a mass below its bound fails the check.
TEST(TransportStudies, ShareTheirRuns) {
  const Folder folder;
  const std::string out = folder.path("extrapolation");
  const ProgramRun trained = sextant(
      {"experiment", "extrapolation", "--data", "canon", "--only", "learned-qkv/canon", "--out", out, "--json"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_EQ(json::parse(trained.out).at("worked"), 1);
  EXPECT_NE(read_file(folder.path("extrapolation/report-ratios.csv")).find("learned-qkv"), std::string::npos);
  const auto read = [&](const std::string& study) {
    return sextant({"experiment", study, "--data", "canon", "--only", "learned-qkv/canon", "--from", out, "--out",
                    folder.path(study), "--json"});
  };
  for (const std::string study : {"far-mass", "decoherence"}) {
    const ProgramRun run = read(study);
    ASSERT_EQ(run.status, 0) << run.err;
    EXPECT_EQ(json::parse(run.out).at("worked"), 0) << study;
  }
  EXPECT_EQ(finding_of(read("far-mass"), "rho_far").at("agrees"), true);
  const std::string path = folder.path("far-mass/results/learned-qkv/canon/seed-1.json");
  json stored = json::parse(read_file(path));
  stored.at("result").at("measured").at("far_mass").at(0).at("margin") = -1e-6;
  write_file(path, stored.dump());
  EXPECT_EQ(read("far-mass").status, 1);
}

}  // namespace
}  // namespace sextant::test
