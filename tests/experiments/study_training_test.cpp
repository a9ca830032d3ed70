// Experiments that train: one run folder a piece, taken up again after a kill, measured as `eval` measures.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "experiments/study_training.h"
#include "tests/experiments/program.h"

namespace sextant::test {
namespace {

using nlohmann::json;

const std::string key = "rope+affine/text/seed-1";

std::vector<std::string> command(const std::string& data, const std::string& out) {
  return {"experiment", "byte-lm", "--data", data, "--only", "rope+affine/", "--out", out, "--json", "--quiet"};
}

// What is the same for every run of one piece.
json without_measured_times(json result) {
  for (json& row : result.at("result").at("evaluation").at("lengths")) row.erase("seconds"), row.erase("peak_bytes");
  result.at("result").at("training").erase("seconds");
  result.erase("seconds");
  return result;
}

TEST(TrainingStudies, AKilledRunContinuesToTheSameResult) {
  const Folder folder;
  const std::string data = folder.write("text.txt", sample_text(20000));
  const ProgramRun whole = sextant(command(data, folder.path("whole")));
  ASSERT_EQ(whole.status, 0) << whole.err;
  {
    RunningProgram killed(command(data, folder.path("killed")));
    while (!std::filesystem::exists(folder.path("killed/runs/" + key + "/checkpoint.safetensors")))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    killed.kill(SIGKILL);
    killed.wait();
  }
  const ProgramRun continued = sextant(command(data, folder.path("killed")));
  ASSERT_EQ(continued.status, 0) << continued.err;
  const std::string result = "/results/" + key + ".json";
  EXPECT_EQ(without_measured_times(json::parse(read_file(folder.path("whole") + result))),
            without_measured_times(json::parse(read_file(folder.path("killed") + result))));
  if (json::parse(continued.out).at("worked") == 1) {
    const json manifest = json::parse(read_file(folder.path("killed/runs/" + key + "/manifest.json")));
    EXPECT_EQ(manifest.at("resumed").size(), 1u);
  }
  EXPECT_EQ(json::parse(sextant(command(data, folder.path("killed"))).out).at("skipped"), 1);
}

TEST(TrainingStudies, LossesAndSectorsAreThoseOfEval) {
  const Folder folder;
  const std::string data = folder.write("text.txt", sample_text(20000));
  ASSERT_EQ(sextant(command(data, folder.path("out"))).status, 0);
  const json result = json::parse(read_file(folder.path("out/results/" + key + ".json"))).at("result");
  const ProgramRun eval = sextant({"eval", folder.path("out/runs/" + key), "--lengths", "64,128", "--windows", "16",
                                   "--out", folder.path("eval.json"), "--json"});
  ASSERT_EQ(eval.status, 0) << eval.err;
  const json expected = json::parse(eval.out);
  EXPECT_EQ(study::at_length(result, 64), expected.at("lengths").at(0).at("nats_per_token").get<double>());
  EXPECT_NE(study::at_length(result, 128), expected.at("lengths").at(1).at("nats_per_token").get<double>())
      << "8 windows against 16";
  EXPECT_EQ(result.at("sectors"), expected.at("sectors"));
  ASSERT_EQ(result.at("layers").size(), 3u);
  double slope = 0;  // the model's mass is the mean of its layers'
  for (const json& layer : result.at("layers")) slope += layer.at(1).at("mass").get<double>() / 3;
  EXPECT_NEAR(slope, result.at("sectors").at(1).at("mass").get<double>(), 1e-12);
  // The kernel as it was stored falls by that slope: b(0) - b(L) at the training length, mean over layers and heads.
  const json& kernels = result.at("kernels");
  const json& lags = kernels.at("lags");
  const size_t last = lags.size() - 1;
  double fall = 0;
  for (const json& layer : kernels.at("layers"))
    for (const json& head : layer) fall += (head.at(0).get<double>() - head.at(last).get<double>()) / 12;
  EXPECT_NEAR(fall / lags.at(last).get<double>() * 64, slope, 1e-5);
}

TEST(TrainingStudies, AFileTooShortIsRefusedInOneLine) {
  const Folder folder;
  const ProgramRun run = sextant(command(folder.write("text.txt", sample_text(300)), folder.path("out")));
  EXPECT_EQ(run.status, 2);
  EXPECT_NE(run.err.find("needs 65"), std::string::npos) << run.err;
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
}

TEST(TrainingStudies, WithoutDataSmokeUsesTheGeneratedCorpus) {
  const Folder folder;
  const std::vector<std::string> nowhere = {"SEXTANT_DATA=" + folder.path("none"), "XDG_CACHE_HOME=" + folder.path("")};
  const auto run = [&](const char* scale) {
    return sextant({"experiment", "byte-lm", "--scale", scale, "--only", "none/", "--out", folder.path("out")},
                   nowhere);
  };
  const ProgramRun smoke = run("smoke");
  EXPECT_EQ(smoke.status, 0) << smoke.err;
  EXPECT_NE(read_file(folder.path("out/report.html")).find("stands in"), std::string::npos);
  const ProgramRun quick = run("quick");
  EXPECT_EQ(quick.status, 2);
  EXPECT_NE(quick.err.find("--data"), std::string::npos) << quick.err;
}

TEST(TrainingStudies, ReadingResults) {
  const json diverged = {{"evaluation", nullptr}, {"sectors", json::array()}};
  const auto with_loss = [](json loss) {
    return json{{"evaluation", {{"lengths", {{{"length", 64}, {"nats_per_token", std::move(loss)}}}}}}};
  };
  const study::Results results = {{"rope/a/seed-1", with_loss(2.0)},  {"rope/a/seed-2", with_loss(4.0)},
                                  {"rope/a/seed-3", diverged},        {"rope/a/seed-4", with_loss(nullptr)},
                                  {"rope/ab/seed-1", with_loss(9.0)}, {"rope+affine/a/seed-1", with_loss(7.0)}};
  EXPECT_EQ(study::results_of(results, "rope/a").size(), 4u);
  EXPECT_EQ(study::over_seeds(results, "rope/a", 64).count, 2);
  EXPECT_EQ(study::over_seeds(results, "rope/a", 64).mean, 3);
  EXPECT_EQ(study::over_seeds(results, "rope/a", 128).count, 0);
  EXPECT_EQ(study::lengths_of(results), std::vector<int64_t>{64});
}

}  // namespace
}  // namespace sextant::test
