// What eval, sample, grads and report say, checked against each other by other routes.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "core/safetensors.h"
#include "tests/experiments/program.h"

namespace sextant::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Trained : public testing::Test {
 protected:
  void SetUp() override {
    text_ = sample_text(4000);
    const ProgramRun run = sextant(
        tiny_model(folder_.write("text.txt", text_), folder_.path("run"),
                   {"--steps", "60", "--lr", "0.01", "--layers", "2", "--position", "rope+alibi", "--dtype", "f64"}));
    ASSERT_EQ(run.status, 0) << run.err;
  }
  SafetensorsFile grads(const std::string& tokens) const {
    folder_.write("tokens.txt", tokens);
    const ProgramRun run = sextant({"grads", folder_.path("run"), "--tokens", folder_.path("tokens.txt"), "--out",
                                    folder_.path("grads.safetensors")});
    EXPECT_EQ(run.status, 0) << run.err;
    return SafetensorsFile::open(folder_.path("grads.safetensors"));
  }
  Folder folder_;
  std::string text_;
};

// The streamed loss through the cache, in pieces, is the loss of one full forward pass.
TEST_F(Trained, EvaluationIsTheLossOfTheFullForwardPass) {
  const ProgramRun run =
      sextant({"eval", folder_.path("run"), "--lengths", "48,100", "--windows", "1", "--piece", "7", "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  const json lengths = json::parse(run.out).at("lengths");
  const std::string held_out = text_.substr(3600);  // the last tenth
  for (const json& row : lengths) {
    std::string line;
    for (int t = 0; t <= row.at("length").get<int>(); ++t)
      line += std::to_string(static_cast<unsigned char>(held_out[static_cast<size_t>(t)])) + " ";
    const double loss = grads(line + "\n").tensor("loss").item();
    const double nats = row.at("nats_per_token");
    EXPECT_NEAR(nats, loss, 1e-10);
    EXPECT_NEAR(row.at("bits_per_token").get<double>(), loss / std::numbers::ln2, 1e-10);
    EXPECT_NEAR(row.at("perplexity").get<double>(), std::exp(loss), 1e-8);
  }
  EXPECT_EQ(json::parse(read_file(folder_.path("run/eval.json"))).at("lengths").size(), 2u);
}

// A loss that is no number: a line that says from where on, and why where the strategy knows; null in the JSON.
TEST(Eval, SaysWhyALossIsNotFinite) {
  const Folder folder;
  const std::string data = folder.write("text.txt", sample_text(6000));
  const auto eval = [&](const std::string& position, const std::string& out) {
    EXPECT_EQ(sextant(tiny_model(data, folder.path(out), {"--steps", "1", "--position", position})).status, 0);
    return sextant({"eval", folder.path(out), "--lengths", "16,300", "--windows", "2", "--json"});
  };
  const ProgramRun bad = eval("jordan(damping=1,anchored=0)", "bad");
  ASSERT_EQ(bad.status, 0) << bad.err;
  const json lengths = json::parse(bad.out).at("lengths");
  EXPECT_TRUE(lengths[0].at("nats_per_token").is_number());
  EXPECT_FALSE(lengths[0].contains("note"));
  for (const char* key : {"nats_per_token", "perplexity", "ratio_to_training_length", "last_quarter_nats_per_token"})
    EXPECT_TRUE(lengths[1].at(key).is_null()) << key;
  const std::string note = lengths[1].at("note");
  for (const char* part : {"not finite from position", "'jordan(", "overflows f32 at position 88", "anchored=0"})
    EXPECT_NE(note.find(part), std::string::npos) << note;
  EXPECT_NE(bad.err.find("note: at length 300 " + note + "\n"), std::string::npos) << bad.err;
  const ProgramRun good = eval("jordan(damping=1)", "good");
  ASSERT_EQ(good.status, 0) << good.err;
  EXPECT_TRUE(json::parse(good.out).at("lengths")[1].at("nats_per_token").is_number()) << good.out;
  EXPECT_EQ(good.err.find("note:"), std::string::npos) << good.err;
}

// What cannot be written is refused before anything is computed: a million windows would take minutes.
TEST(Eval, RefusesAnOutputItCannotWriteAtOnce) {
  const Folder folder;
  const std::string data = folder.write("text.txt", sample_text(6000));
  ASSERT_EQ(sextant(tiny_model(data, folder.path("run"), {"--steps", "1"})).status, 0);
  const std::string out = data + "/eval.json";
  const ProgramRun eval =
      sextant({"eval", folder.path("run"), "--lengths", "64", "--windows", "1000000", "--out", out});
  EXPECT_EQ(eval.status, 2) << eval.err;
  EXPECT_EQ(count_lines(eval.err), 1) << eval.err;
  EXPECT_NE(eval.err.find(data), std::string::npos) << eval.err;
}

// Two terms of one sector have rows of their own, each with its own change of the loss.
TEST(Eval, TellsTermsThatShareASectorApart) {
  const Folder folder;
  const std::string data = folder.write("text.txt", sample_text(6000));
  const ProgramRun train =
      sextant(tiny_model(data, folder.path("run"),
                         {"--steps", "40", "--lr", "0.02", "--dtype", "f64", "--position", "alibi+affine(scale=2)"}));
  ASSERT_EQ(train.status, 0) << train.err;
  const ProgramRun eval = sextant({"eval", folder.path("run"), "--lengths", "16", "--windows", "4", "--json"});
  ASSERT_EQ(eval.status, 0) << eval.err;
  const json rows = json::parse(eval.out).at("sectors");
  ASSERT_EQ(rows.size(), 3u);
  const std::pair<const char*, int> expected[] = {{"alibi", 1}, {"affine", 0}, {"affine", 1}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(rows[i].at("term"), expected[i].first);
    EXPECT_EQ(rows[i].at("sector"), "affine");
    EXPECT_EQ(rows[i].at("order"), expected[i].second);
  }
  EXPECT_NE(rows[0].at("leave_one_out_nats_per_token"), rows[2].at("leave_one_out_nats_per_token"));
  EXPECT_NE(eval.err.find("alibi     affine"), std::string::npos) << eval.err;
}

// Section 6's measures of a trained model: one row a length and layer, of what its attention read.
TEST(Eval, HasStabilityAndResolutionByLengthAndLayer) {
  const Folder folder;
  const std::string data = folder.write("text.txt", sample_text(6000));
  const auto eval = [&](const std::string& position, const std::string& out) {
    const std::vector<std::string> more{"--steps", "1", "--layers", "2", "--position", position};
    EXPECT_EQ(sextant(tiny_model(data, folder.path(out), more)).status, 0);
    const ProgramRun run =
        sextant({"eval", folder.path(out), "--lengths", "100,300", "--windows", "2", "--piece", "70", "--json"});
    EXPECT_EQ(run.status, 0) << run.err;
    return json::parse(run.out);
  };
  const json config = eval("rope+pj-bias", "both"), rows = config.at("stability");
  ASSERT_EQ(rows.size(), 6u);  // at the training length, too
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(rows[i].at("layer"), i % 2);
    EXPECT_EQ(rows[i].at("length"), i < 2 ? rows[0].at("length").get<int>() : i < 4 ? 100 : 300);
    EXPECT_GT(rows[i].at("largest_logit"), 0.0);
    EXPECT_GE(rows[i].at("largest_key").get<double>(), rows[i].at("mean_key").get<double>());
    EXPECT_GE(rows[i].at("largest_query").get<double>(), rows[i].at("mean_query").get<double>());
  }
  EXPECT_EQ(rows[4].at("cached_key_bytes").get<double>(), 3 * rows[2].at("cached_key_bytes").get<double>());
  const json resolution = config.at("resolution");
  ASSERT_EQ(resolution.size() % 3, 0u);  // rope, FJ and LC
  EXPECT_EQ(resolution.back().at("sector"), "LC");
  EXPECT_EQ(resolution.back().at("chart"), "light-cone");
  EXPECT_EQ(resolution.back().at("last_lag"), 299);
  EXPECT_LT(resolution.back().at("phase_span"), resolution.back().at("phase_span_raw"));
  // e^j leaves f32 within 300 tokens; what has no number is null.
  const json broken = eval("jordan(damping=1,anchored=0)", "broken").at("stability").back();
  EXPECT_TRUE(broken.at("largest_key").is_null());
}

TEST_F(Trained, GreedySamplesAreTheFullForwardPasssFirstChoices) {
  const ProgramRun run =
      sextant({"sample", folder_.path("run"), "--prompt", "the s", "--tokens", "40", "--temperature", "0", "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  const std::vector<int> tokens = json::parse(run.out).at("tokens");
  ASSERT_EQ(tokens.size(), 45u);
  std::string line;
  for (const int token : tokens) line += std::to_string(token) + " ";
  SafetensorsFile file = grads(line + "\n");
  const Tensor logits = file.tensor("logits");  // [1, 44, 256]
  for (int64_t t = 4; t < 44; ++t) {
    int64_t best = 0;
    for (int64_t v = 1; v < 256; ++v)
      if (logits.at({0, t, v}) > logits.at({0, t, best})) best = v;
    EXPECT_EQ(best, tokens[static_cast<size_t>(t + 1)]) << "after " << t + 1 << " tokens";
  }
}

TEST_F(Trained, SamplesAreBytesAsTheyComeAndRepeatWithTheSeed) {
  const std::vector<std::string> arguments = {"sample", folder_.path("run"), "--prompt", "star",  "--tokens",
                                              "30",     "--top-k",           "5",        "--seed"};
  const auto with_seed = [&](const char* seed) {
    std::vector<std::string> all = arguments;
    all.push_back(seed);
    return sextant(all).out;
  };
  const std::string first = with_seed("3");
  EXPECT_EQ(first.size(), 4u + 30u + 1u);  // and a line break
  EXPECT_TRUE(first.starts_with("star"));
  EXPECT_EQ(first, with_seed("3"));
  EXPECT_NE(first, with_seed("4"));
}

// Along a weight: (loss(w + e) - loss(w - e)) / 2e, with the checkpoint's own number changed.
TEST_F(Trained, GradientsAreTheSlopeOfTheLoss) {
  const std::string batch = "10 20 30 40 50 60 70\n65 66 67 68 69 70 71\n";
  SafetensorsFile analytic = grads(batch);
  const std::string path = folder_.path("run/checkpoint.safetensors");
  for (const char* name : {"tok_embed.weight", "blocks.0.attn.qkv.weight", "blocks.1.mlp.down.bias", "norm_f.weight"}) {
    const std::string gradient_name = std::string("grad.") + name;
    const double expected = analytic.tensor(gradient_name).flat(5);
    double loss[2];
    for (const int side : {0, 1}) {
      SafetensorsFile file = SafetensorsFile::open(path);
      Arena arena;
      std::vector<NamedTensor> tensors;
      for (const std::string& tensor : file.names()) {
        tensors.push_back({tensor, converted(arena, file.tensor(tensor), DType::f64)});
        if (tensor == name)
          tensors.back().tensor.set_flat(5, tensors.back().tensor.flat(5) + (side == 0 ? -1e-5 : 1e-5));
      }
      fs::create_directories(folder_.path("moved"));
      write_safetensors(folder_.path("moved/checkpoint.safetensors"), tensors, file.metadata());
      folder_.write("tokens.txt", batch);
      const ProgramRun run = sextant({"grads", folder_.path("moved"), "--tokens", folder_.path("tokens.txt"), "--out",
                                      folder_.path("moved/grads.safetensors")});
      ASSERT_EQ(run.status, 0) << run.err;
      loss[side] = SafetensorsFile::open(folder_.path("moved/grads.safetensors")).tensor("loss").item();
    }
    EXPECT_NEAR((loss[1] - loss[0]) / 2e-5, expected, 1e-8 + 1e-6 * std::abs(expected)) << name;
  }
}

TEST_F(Trained, ReportIsOnePageAndItsNumbers) {
  const ProgramRun run = sextant({"report", folder_.path("run"), "--title", "A <b> & \"c\"", "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  const json result = json::parse(run.out);
  const std::string page = read_file(result.at("report"));
  EXPECT_NE(page.find("A &lt;b&gt; &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_EQ(page.find("<b>"), std::string::npos);
  for (const char* fetched : {"src=\"http", "href=\"http", "<script", "@import"})
    EXPECT_EQ(page.find(fetched), std::string::npos) << fetched;
  EXPECT_TRUE(page.find("<svg") != std::string::npos || page.find("gnuplot is not installed") != std::string::npos);
  EXPECT_NE(page.find("sextant train --data"), std::string::npos);
  const std::string curve = read_file(folder_.path("run/report-training-loss.csv"));
  EXPECT_EQ(count_lines(curve), 61);
  for (const json& file : result.at("files")) EXPECT_TRUE(fs::exists(file.get<std::string>())) << file;
}

TEST_F(Trained, WhatCannotBeReportedOrDrawnIsRefusedAndLeavesNothing) {
  const auto expect_refused = [](const std::vector<std::string>& arguments, const std::string& part) {
    const ProgramRun run = sextant(arguments);
    EXPECT_EQ(run.status, 2) << run.err;
    EXPECT_EQ(count_lines(run.err), 1) << run.err;
    EXPECT_NE(run.err.find(part), std::string::npos) << run.err;
  };
  fs::create_directory(folder_.path("page"));
  fs::create_directory(folder_.path("no runs"));
  expect_refused({"report", folder_.path("run"), "--out", folder_.path("page")}, "folder");
  EXPECT_FALSE(fs::exists(folder_.path("page-throughput.csv")));
  expect_refused({"report", folder_.path("run"), folder_.path("no runs")}, "no runs");
  expect_refused({"kernel", "alibi", "--checkpoint", folder_.path("run")}, "position is");
  expect_refused({"kernel", "rope", "--plot", folder_.path("kernel.png")}, "kernel.svg");
  EXPECT_FALSE(fs::exists(folder_.path("kernel.png")));
}

TEST_F(Trained, ReportWithoutGnuplotSaysSo) {
  const ProgramRun run = sextant({"report", folder_.path("run")}, {"PATH=/nonexistent"});
  ASSERT_EQ(run.status, 0) << run.err;
  const std::string page = read_file(folder_.path("run/report.html"));
  EXPECT_EQ(page.find("<svg"), std::string::npos);
  EXPECT_NE(page.find("gnuplot is not installed"), std::string::npos);
}

TEST_F(Trained, ReportOfManyRunsTellsThemApart) {
  ASSERT_EQ(
      sextant(tiny_model(folder_.path("text.txt"), folder_.path("runs/a"), {"--steps", "5", "--position", "none"}))
          .status,
      0);
  ASSERT_EQ(
      sextant(tiny_model(folder_.path("text.txt"), folder_.path("runs/b"), {"--steps", "5", "--position", "alibi"}))
          .status,
      0);
  const ProgramRun run = sextant({"report", folder_.path("runs")});
  ASSERT_EQ(run.status, 0) << run.err;
  const std::string lengths = read_file(folder_.path("runs/report-loss-by-length-table.csv"));
  EXPECT_NE(lengths.find("\nnone,16,"), std::string::npos) << lengths;
  EXPECT_NE(lengths.find("\nalibi,16,"), std::string::npos) << lengths;
  const ProgramRun nothing = sextant({"report", folder_.path("moved")});
  EXPECT_EQ(nothing.status, 2);
  EXPECT_EQ(count_lines(nothing.err), 1);
}

}  // namespace
}  // namespace sextant::test
