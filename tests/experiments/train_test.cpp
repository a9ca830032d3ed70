// Training as a process: the same bits for any number of threads, and after any interruption; and what stops it.
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "core/safetensors.h"
#include "tests/experiments/program.h"

namespace sextant::test {
namespace {

namespace fs = std::filesystem;

std::string checkpoint(const std::string& run) {
  return run + "/checkpoint.safetensors";
}

class Train : public testing::Test {
 protected:
  std::vector<std::string> train(const std::string& out, const std::vector<std::string>& more = {}) const {
    return tiny_model(data_, folder_.path(out), more);
  }
  Folder folder_;
  std::string data_ = folder_.write("text.txt", sample_text(6000));
};

TEST_F(Train, WritesTheRunFolder) {
  const ProgramRun run = sextant(train("run", {"--steps", "12", "--json"}));
  ASSERT_EQ(run.status, 0) << run.err;
  const auto result = nlohmann::json::parse(run.out);
  EXPECT_EQ(result.at("step"), 12);
  EXPECT_EQ(result.at("tokens"), 12 * 4 * 16);
  const auto manifest = nlohmann::json::parse(read_file(folder_.path("run/manifest.json")));
  EXPECT_EQ(manifest.at("options").at("steps"), 12);
  EXPECT_EQ(manifest.at("data").at("sha256").get<std::string>().size(), 64u);
  for (const char* key : {"version", "compiler", "cpu", "isa", "threads", "blas"})
    EXPECT_TRUE(manifest.at("environment").contains(key)) << key;
  const std::string metrics = read_file(folder_.path("run/metrics.csv"));
  EXPECT_TRUE(metrics.starts_with("step,tokens,seconds,loss,lr,grad_norm,tokens_per_second\n")) << metrics;
  EXPECT_EQ(count_lines(metrics), 13);
  const auto evaluation = nlohmann::json::parse(read_file(folder_.path("run/eval.json")));
  EXPECT_EQ(evaluation.at("lengths").at(0).at("length"), 16);
  EXPECT_EQ(evaluation.at("lengths").at(0).at("ratio_to_training_length"), 1.0);
  const SafetensorsFile file = SafetensorsFile::open(folder_.path("run/checkpoint.safetensors"));
  const auto config = nlohmann::json::parse(file.metadata("config"));
  for (const char* key : {"vocab", "layers", "width", "heads", "context", "position", "tied", "dtype", "data"})
    EXPECT_TRUE(config.contains(key)) << key;
}

TEST_F(Train, LearnsTheText) {
  const ProgramRun run = sextant(train("run", {"--steps", "150", "--lr", "0.01", "--json", "--quiet"}));
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.err, "");
  // log(256) = 5.5 at the start; the words are drawn uniformly from ten: about ln(10) / 4.6 = 0.5 nats a byte is the
  // best there is.
  const double loss = nlohmann::json::parse(run.out).at("evaluation").at("lengths").at(0).at("nats_per_token");
  EXPECT_LT(loss, 2.2);
  EXPECT_GT(loss, 0.45);
}

TEST_F(Train, SameBitsForAnyNumberOfThreads) {
  for (const char* threads : {"1", "2", "3"})
    ASSERT_EQ(
        sextant(train(threads, {"--steps", "15", "--position", "rope+alibi", "--layers", "2", "--threads", threads}))
            .status,
        0);
  EXPECT_EQ(difference(checkpoint(folder_.path("1")), checkpoint(folder_.path("2"))), "");
  EXPECT_EQ(difference(checkpoint(folder_.path("1")), checkpoint(folder_.path("3"))), "");
  EXPECT_EQ(metrics_without_time(folder_.path("1")), metrics_without_time(folder_.path("3")));
}

TEST_F(Train, AnotherSeedGivesAnotherModel) {
  for (const char* seed : {"1", "2"}) ASSERT_EQ(sextant(train(seed, {"--steps", "3", "--seed", seed})).status, 0);
  EXPECT_NE(metrics_without_time(folder_.path("1")), metrics_without_time(folder_.path("2")));
}

TEST_F(Train, PartsOfABatchGiveTheBitsOfTheWhole) {
  const std::vector<std::string> more = {"--batch", "6", "--steps", "8", "--position", "pj-bias+rope", "--clip", "0.1"};
  for (const char* parts : {"1", "2", "4", "6"}) {
    std::vector<std::string> options = more;
    options.insert(options.end(), {"--accumulate", parts});
    ASSERT_EQ(sextant(train(parts, options)).status, 0);
    EXPECT_EQ(difference(checkpoint(folder_.path("1")), checkpoint(folder_.path(parts))), "") << parts;
    EXPECT_EQ(metrics_without_time(folder_.path("1")), metrics_without_time(folder_.path(parts))) << parts;
  }
}

TEST_F(Train, AStoppedRunGoesOnBitForBit) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string whole = "whole" + std::to_string(signal), parts = "parts" + std::to_string(signal);
    ASSERT_EQ(sextant(train(whole, {"--steps", "400", "--eval-every", "100"})).status, 0);
    RunningProgram running(train(parts, {"--steps", "400", "--eval-every", "100"}));
    wait_for_lines(folder_.path(parts + "/metrics.csv"), 20);
    running.kill(signal);
    const ProgramRun stopped = running.wait();
    // The signal races with a short run; one that was over had nothing to stop.
    if (stopped.status == 0) GTEST_SKIP() << "the run ended before the signal came";
    EXPECT_EQ(stopped.status, 128 + signal) << stopped.err;
    const ProgramRun resumed = sextant({"train", "--resume", folder_.path(parts), "--threads", "1"});
    EXPECT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_EQ(difference(checkpoint(folder_.path(whole)), checkpoint(folder_.path(parts))), "");
    EXPECT_EQ(metrics_without_time(folder_.path(whole)), metrics_without_time(folder_.path(parts)));
    EXPECT_EQ(read_file(folder_.path(whole + "/validation.csv")), read_file(folder_.path(parts + "/validation.csv")));
  }
}

TEST_F(Train, ResumingRefusesOtherOptionsAndNamesThem) {
  ASSERT_EQ(sextant(train("run", {"--steps", "4"})).status, 0);
  const std::string run = folder_.path("run");
  const std::vector<std::pair<std::string, std::string>> changes = {{"--width", "32"},  {"--lr", "0.5"},
                                                                    {"--steps", "9"},   {"--position", "alibi"},
                                                                    {"--dtype", "f64"}, {"--seed", "7"}};
  for (const auto& [option, value] : changes) {
    const ProgramRun resumed = sextant({"train", "--resume", run, option, value});
    EXPECT_EQ(resumed.status, 2) << option;
    EXPECT_EQ(count_lines(resumed.err), 1) << resumed.err;
    EXPECT_NE(resumed.err.find(option), std::string::npos) << resumed.err;
  }
  EXPECT_EQ(sextant({"train", "--resume", run, "--width", "16", "--steps", "4"}).status, 0);
}

TEST_F(Train, ResumingRefusesChangedData) {
  ASSERT_EQ(sextant(train("run", {"--steps", "4"})).status, 0);
  write_file(data_, sample_text(5000));
  const ProgramRun resumed = sextant({"train", "--resume", folder_.path("run")});
  EXPECT_EQ(resumed.status, 2);
  EXPECT_NE(resumed.err.find("SHA-256"), std::string::npos) << resumed.err;
}

TEST_F(Train, RefusesToOverwriteARun) {
  ASSERT_EQ(sextant(train("run", {"--steps", "2"})).status, 0);
  fs::copy_file(checkpoint(folder_.path("run")), folder_.path("before"));
  const ProgramRun again = sextant(train("run", {"--steps", "3"}));
  EXPECT_EQ(again.status, 2);
  EXPECT_NE(again.err.find("--resume"), std::string::npos) << again.err;
  EXPECT_EQ(count_lines(again.err), 1) << again.err;
  EXPECT_EQ(difference(checkpoint(folder_.path("run")), folder_.path("before")), "");
}

TEST_F(Train, RefusesAFolderThatAnotherProcessWrites) {
  RunningProgram first(train("run", {"--steps", "1000000"}));
  wait_for_lines(folder_.path("run/metrics.csv"), 3);
  const ProgramRun second = sextant({"train", "--resume", folder_.path("run")});
  EXPECT_EQ(second.status, 2) << second.err;
  EXPECT_EQ(count_lines(second.err), 1) << second.err;
  EXPECT_NE(second.err.find("another process"), std::string::npos) << second.err;
  first.kill(SIGTERM);
  EXPECT_EQ(first.wait().status, 143);
}

TEST_F(Train, ANumberThatIsNotFiniteStopsTheRunAndKeepsTheCheckpoint) {
  const ProgramRun run = sextant(train("run", {"--steps", "50", "--lr", "1e30", "--warmup", "0", "--save-every", "1"}));
  EXPECT_EQ(run.status, 1) << run.err;
  EXPECT_EQ(count_lines(run.err), 1) << run.err;
  EXPECT_NE(run.err.find("step "), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("first in "), std::string::npos) << run.err;
  SafetensorsFile file = SafetensorsFile::open(folder_.path("run/checkpoint.safetensors"));
  for (const std::string& name : file.names()) EXPECT_TRUE(all_finite(file.tensor(name))) << name;
  // Good means that it can be used: finite weights alone may still give NaN.
  const ProgramRun eval = sextant({"eval", folder_.path("run"), "--lengths", "16", "--json"});
  EXPECT_EQ(eval.status, 0) << eval.err;
  EXPECT_TRUE(nlohmann::json::parse(eval.out).at("lengths").at(0).at("nats_per_token").is_number()) << eval.out;
}

TEST_F(Train, ABatchBeyondMemoryLeavesNoFolder) {
  const ProgramRun run = sextant(train("run", {"--steps", "5", "--batch", "1.6e7"}));
  EXPECT_EQ(run.status, 3) << run.err;
  EXPECT_EQ(count_lines(run.err), 1) << run.err;
  EXPECT_NE(run.err.find("memory"), std::string::npos) << run.err;
  EXPECT_FALSE(fs::exists(folder_.path("run")));
}

TEST_F(Train, KeepsOlderCheckpoints) {
  ASSERT_EQ(sextant(train("run", {"--steps", "10", "--save-every", "2", "--keep", "2"})).status, 0);
  EXPECT_FALSE(fs::exists(folder_.path("run/checkpoint-000000006.safetensors")));
  EXPECT_TRUE(fs::exists(folder_.path("run/checkpoint-000000008.safetensors")));
  EXPECT_EQ(difference(folder_.path("run/checkpoint-000000010.safetensors"), checkpoint(folder_.path("run"))), "");
  EXPECT_NE(difference(folder_.path("run/checkpoint-000000008.safetensors"), checkpoint(folder_.path("run"))), "");
}

TEST_F(Train, WithoutItsCheckpointAKeptOneIsNamed) {
  const std::string run = folder_.path("run"), kept = folder_.path("run/checkpoint-000000008.safetensors");
  ASSERT_EQ(sextant(train("run", {"--steps", "10", "--save-every", "2", "--keep", "2"})).status, 0);
  const std::string whole = read_file(checkpoint(run)), metrics = metrics_without_time(run);
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& part) {
    const ProgramRun run_again = sextant(arguments);
    EXPECT_EQ(run_again.status, 2) << run_again.err;
    EXPECT_EQ(count_lines(run_again.err), 1) << run_again.err;
    EXPECT_NE(run_again.err.find(part), std::string::npos) << run_again.err;
  };
  // The newest kept one is the same file under another name, and damaged with it.
  for (const std::string& name : {checkpoint(run), folder_.path("run/checkpoint-000000010.safetensors")})
    write_file(name, whole.substr(0, whole.size() / 2));
  refused({"train", "--resume", run}, kept + " is whole");
  fs::remove(checkpoint(run));
  refused({"train", "--resume", run}, kept + " is whole");
  refused(train("run", {"--steps", "10"}), "there is a run already");
  fs::copy_file(kept, checkpoint(run));
  ASSERT_EQ(sextant({"train", "--resume", run}).status, 0);
  EXPECT_EQ(read_file(checkpoint(run)), whole);
  EXPECT_EQ(metrics_without_time(run), metrics);
}

TEST_F(Train, ComposedTrainsTheSameModelUpToRounding) {
  ASSERT_EQ(sextant(train("fused", {"--steps", "5", "--dtype", "f64"})).status, 0);
  ASSERT_EQ(sextant(train("composed", {"--steps", "5", "--dtype", "f64", "--composed"})).status, 0);
  SafetensorsFile fused = SafetensorsFile::open(folder_.path("fused/checkpoint.safetensors"));
  SafetensorsFile composed = SafetensorsFile::open(folder_.path("composed/checkpoint.safetensors"));
  const Tensor a = fused.tensor("tok_embed.weight"), b = composed.tensor("tok_embed.weight");
  ASSERT_EQ(a.dtype(), DType::f64);
  double worst = 0;
  for (int64_t i = 0; i < a.elements(); ++i) worst = std::max(worst, std::abs(a.flat(i) - b.flat(i)));
  EXPECT_LT(worst, 1e-9);
}

TEST_F(Train, ZeroStepsWriteTheInitialModel) {
  ASSERT_EQ(sextant(train("run", {"--steps", "0"})).status, 0);
  EXPECT_EQ(SafetensorsFile::open(folder_.path("run/checkpoint.safetensors")).metadata("step"), "0");
}

}  // namespace
}  // namespace sextant::test
