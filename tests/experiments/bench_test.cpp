// sextant bench: what it measures on shapes of a moment's work, what it refuses, and how contenders take turns.
#include "experiments/bench.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/experiments/program.h"

namespace sextant::test {
namespace {

using nlohmann::json;

std::vector<std::string> tiny_bench(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"bench", "--layers", "1",  "--width",   "16", "--heads", "2", "--batch",
                                        "2",     "--vocab",  "32", "--context", "16", "--steps", "4", "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

json run_bench(const std::vector<std::string>& more) {
  const ProgramRun run = sextant(tiny_bench(more));
  EXPECT_EQ(run.status, 0) << run.err;
  return json::parse(run.out);
}

TEST(Bench, ResultHasTheFiguresAndTheyFitTogether) {
  const auto start = std::chrono::steady_clock::now();
  const json result = run_bench({"--position", "none"});
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // 32 x 16 embeddings; 3 x 16 x 16 + 48, 16 x 16 + 16, 2 x 4 x 16 x 16 + 64 + 16 in the block; three norms of 2 x 16.
  EXPECT_EQ(result["parameters"], 512 + 816 + 272 + 2128 + 96);
  // 6 a weight of the 12 x 16^2 + 32 x 16 in matrices; 8.5 keys a query, 4 x 16 FLOP each, 3.5 times.
  EXPECT_DOUBLE_EQ(result["flops_per_token"].get<double>(), 6 * (3072 + 512) + 3.5 * 4 * 16 * 8.5);
  const double step = result["seconds_per_step"], speed = result["tokens_per_second"];
  EXPECT_GT(step, 1e-6);
  EXPECT_LT(step, elapsed);
  EXPECT_NEAR(speed * step, 2 * 16, 1e-6);
  EXPECT_GE(result["best_tokens_per_second"].get<double>(), speed);
  EXPECT_NEAR(result["gflops"].get<double>(), speed * result["flops_per_token"].get<double>() * 1e-9, 1e-9);
  EXPECT_NEAR(result["share_of_peak"].get<double>() * result["peak_gflops"].get<double>(), result["gflops"], 1e-9);
  EXPECT_GT(result["peak_gflops"].get<double>(), 0.1);
  EXPECT_GT(result["share_of_peak"].get<double>(), 0);
  EXPECT_LT(result["share_of_peak"].get<double>(), 1);
  EXPECT_GT(result["peak_memory_bytes"].get<double>(), 1e6);
  EXPECT_LT(result["peak_memory_bytes"].get<double>(), 1e9);
  EXPECT_FALSE(result.contains("ratio"));
}

TEST(Bench, OneRowForEachShapeAndStrategy) {
  const json object = run_bench({"--positions", "none,rope(base=500,pairing=half),alibi", "--threads", "1"});
  ASSERT_EQ(object["results"].size(), 3u);
  EXPECT_EQ(object["results"][1]["position"], "rope(base=500,pairing=half)");
  EXPECT_EQ(object["results"][2]["position"], "alibi");
  EXPECT_EQ(object["threads"], 1);
  EXPECT_FALSE(object.contains("tokens_per_second"));
  for (const json& row : object["results"]) EXPECT_GT(row["tokens_per_second"].get<double>(), 0);
}

// Every operation's time is measured on its own; together they must make the step, which is timed around them.
TEST(Bench, ProfileAddsUpToTheStep) {
  TrainingBench bench(
      {.vocab = 64, .layers = 2, .width = 32, .heads = 2, .context = 64, .position = "rope", .data = ""}, 4);
  bench.seconds(2);
  const TrainingBench::Profile profile = bench.profile(5);
  double sum = 0;
  std::set<std::string> names;
  for (const TrainingBench::Operation& operation : profile.operations) {
    sum += operation.seconds();
    names.insert(operation.name);
    EXPECT_GE(operation.forward_seconds, 0) << operation.name;
    EXPECT_GE(operation.backward_seconds, 0) << operation.name;
  }
  EXPECT_LE(sum, profile.step_seconds * 1.001);
  EXPECT_GE(sum, profile.step_seconds * 0.3);  // on a busy machine much may pass between two operations
  for (const char* name : {"linear", "attention", "clipping", "adamw"}) EXPECT_TRUE(names.contains(name)) << name;
  for (const TrainingBench::Operation& operation : profile.operations)
    if (operation.name == "attention") {
      EXPECT_EQ(operation.calls, 2);
      EXPECT_GT(operation.flops, 0);
      EXPECT_GT(operation.forward_seconds, 0);
      EXPECT_GT(operation.backward_seconds, 0);
    }
}

TEST(Bench, ProfileOfTheCommandIsATable) {
  const json profile = run_bench({"--profile"})["profile"];
  double shares = 0;
  for (const json& row : profile["operations"]) shares += row["share"].get<double>();
  EXPECT_GT(shares, 0.5);
  EXPECT_LE(shares, 1.001);
  EXPECT_GT(profile["seconds_per_step"].get<double>(), 0);
}

TEST(Bench, ModelLearnsTheBatchItIsTimedOn) {
  TrainingBench bench({.vocab = 8, .layers = 1, .width = 16, .heads = 2, .context = 8, .position = "none", .data = ""},
                      1);
  const auto weights = [&] {
    double sum = 0;
    for (Parameter* parameter : bench.model().parameters())
      for (int64_t i = 0; i < parameter->value.elements(); ++i) sum += std::abs(parameter->value.flat(i));
    return sum;
  };
  const double before = weights();
  bench.seconds(3);
  EXPECT_NE(weights(), before);
}

TEST(Bench, SamplingSpeedAtEachPosition) {
  const json rows = run_bench({"--sample", "--sample-at", "5,40", "--sample-tokens", "3"})["sampling"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["position"], 40);
  for (const json& row : rows) {
    EXPECT_GT(row["tokens_per_second"].get<double>(), 1);
    EXPECT_LT(row["tokens_per_second"].get<double>(), 1e7);
  }
}

TEST(Bench, ContendersTakeTurnsAndDoTheSameNumberOfSteps) {
  std::string order;
  int64_t steps_a = 0, steps_b = 0, rounds = 0;
  std::vector<Contender> contenders;
  contenders.push_back(
      {[&](int64_t steps) { return order += 'a', steps_a += steps, 0.04 * static_cast<double>(steps); }});
  contenders.push_back(
      {[&](int64_t steps) { return order += 'b', steps_b += steps, 0.02 * static_cast<double>(steps); }});
  take_turns(contenders, 7, 0, [&] { ++rounds; });
  EXPECT_EQ(order, "abababab");  // one step each to warm up, then rounds of 3, 3 and 1
  EXPECT_EQ(steps_a, 1 + 7);
  EXPECT_EQ(steps_b, 1 + 7);
  EXPECT_EQ(rounds, 3);
  EXPECT_DOUBLE_EQ(contenders[0].median(), 0.04);
  take_turns(contenders, 0, 0, [] {});
  EXPECT_EQ(contenders[1].seconds_per_step.size(), 3u + 3u);  // three rounds at least
}

TEST(Bench, MedianAndBest) {
  const Contender odd{{}, {5, 1, 3}}, even{{}, {4, 1, 2, 100}};
  EXPECT_EQ(odd.median(), 3);
  EXPECT_EQ(odd.best(), 1);
  EXPECT_EQ(even.median(), 3);
  EXPECT_EQ(even.best(), 1);
}

TEST(Bench, UnknownNamesAreAnsweredWithTheNearest) {
  const auto expect_refused = [](const std::vector<std::string>& arguments, const std::string& part) {
    const ProgramRun run = sextant(arguments);
    EXPECT_EQ(run.status, 2) << run.err;
    EXPECT_EQ(count_lines(run.err), 1) << run.err;
    EXPECT_NE(run.err.find(part), std::string::npos) << run.err;
  };
  expect_refused({"bench", "--shape", "mediun"}, "'medium'");
  expect_refused({"bench", "--peer", "jax"}, "'torch'");
  expect_refused({"bench", "--positions", "rope,alibo"}, "alibi");
  expect_refused({"bench", "--dtype", "f16"}, "f32");
  expect_refused({"bench", "--width", "63"}, "heads");
}

TEST(Bench, WithoutPythonOrPyTorchThePeerIsMissing) {
  const ProgramRun no_python = sextant(tiny_bench({"--peer", "torch"}), {"PATH=/nonexistent"});
  EXPECT_EQ(no_python.status, 3) << no_python.err;
  EXPECT_EQ(count_lines(no_python.err), 1) << no_python.err;
  EXPECT_NE(no_python.err.find("install python3"), std::string::npos) << no_python.err;

  // python3 runs the peer; the program does not need it otherwise. The test scripts install it.
  if (std::system("python3 -c pass > /dev/null 2>&1") != 0) GTEST_SKIP() << "no python3 here";
  const Folder folder;
  folder.write("torch.py", "raise ImportError('planted')\n");
  const std::string path = "PYTHONPATH=" + std::filesystem::path(folder.path("torch.py")).parent_path().string();
  const ProgramRun no_torch = sextant(tiny_bench({"--peer", "torch"}), {path});
  EXPECT_EQ(no_torch.status, 3) << no_torch.err;
  EXPECT_EQ(count_lines(no_torch.err), 1) << no_torch.err;
  EXPECT_NE(no_torch.err.find("planted"), std::string::npos) << no_torch.err;
  EXPECT_NE(no_torch.err.find("pip install torch"), std::string::npos) << no_torch.err;
}

// What a broken PyTorch prints must not pass for an answer, and that its process ends is reported, not waited for.
TEST(Bench, PeerThatEndsIsReported) {
  // python3 runs the peer; the program does not need it otherwise. The test scripts install it.
  if (std::system("python3 -c pass > /dev/null 2>&1") != 0) GTEST_SKIP() << "no python3 here";
  const Folder folder;
  folder.write("torch.py", "import os\nos.write(1, b'{\"version\": \"0\"}\\n')\nos._exit(1)\n");
  const std::string path = "PYTHONPATH=" + std::filesystem::path(folder.path("torch.py")).parent_path().string();
  const ProgramRun run = sextant(tiny_bench({"--peer", "torch", "--quiet"}), {path, "PYTHONDONTWRITEBYTECODE=1"});
  EXPECT_EQ(run.status, 3) << run.err;
  EXPECT_NE(run.err.find("ended"), std::string::npos) << run.err;
}

TEST(Bench, PyTorchBuildsTheSameModel) {
  for (const char* position : {"none", "rope", "alibi"}) {
    const ProgramRun run = sextant(tiny_bench(
        {"--peer", "torch", "--peer-modes", "eager", "--position", position, "--sample", "--sample-at", "9"}));
    // PyTorch is for comparison only and never installed by a script: the line says that it is missing.
    if (run.status == 3 && run.err.find("--peer torch: python3 ") != std::string::npos) GTEST_SKIP() << run.err;
    ASSERT_EQ(run.status, 0) << run.err;
    const json result = json::parse(run.out);
    EXPECT_EQ(result["parameters"], result["peer_parameters"]);
    EXPECT_EQ(result["peer_mode"], "eager");
    const double ours = result["tokens_per_second"], theirs = result["peer_tokens_per_second"];
    EXPECT_GT(theirs, 1);
    EXPECT_NEAR(result["ratio"].get<double>(), ours / theirs, 1e-9 * ours / theirs);
    EXPECT_GT(result["sampling"][0]["peer_tokens_per_second"].get<double>(), 1);
  }
}

TEST(Bench, StrategyThatPyTorchLacksHasNoRatio) {
  const ProgramRun run = sextant(tiny_bench({"--peer", "torch", "--peer-modes", "eager", "--position", "alibi+gate"}));
  // As above: without PyTorch there is no peer to lack the strategy.
  if (run.status == 3 && run.err.find("--peer torch: python3 ") != std::string::npos) GTEST_SKIP() << run.err;
  ASSERT_EQ(run.status, 0) << run.err;
  const json result = json::parse(run.out);
  EXPECT_TRUE(result["ratio"].is_null());
  EXPECT_GT(result["tokens_per_second"].get<double>(), 0);
}

}  // namespace
}  // namespace sextant::test
