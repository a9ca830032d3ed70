// Experiments that train: one run folder a piece, taken up again after a kill, measured as `eval` measures.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "experiments/study_sectors.h"
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
  for (size_t i = 0; i < 2; ++i)
    for (const auto& [what, value] : expected.at("sectors").at(i).items())
      EXPECT_EQ(result.at("sectors").at(i).at(what), value) << what;
  ASSERT_EQ(result.at("layers").size(), 3u);
  double slope = 0;  // the model's mass is the mean of its layers'
  for (const json& layer : result.at("layers")) slope += layer.at(1).at("mass").get<double>() / 3;
  EXPECT_NEAR(slope, result.at("sectors").at(1).at("mass").get<double>(), 1e-12);
  // The kernel as it was stored falls by that slope: b(0) - b(63), mean over layers and heads.
  const json& kernels = result.at("kernels");
  const json& lags = kernels.at("lags");
  const size_t last = 63;  // the last that is no mean of several
  ASSERT_EQ(lags.at(last), 63);
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

json row(const char* sector, int order, double mass, double left_out) {
  return {{"sector", sector}, {"order", order}, {"mass", mass}, {"leave_one_out_nats_per_token", left_out}};
}

TEST(TrainingStudies, SharesAndNeedOfComponents) {
  const auto run = [](double slope) {
    return json{{"sectors", {row("FJ", 0, 1, 0.1), row("FJ", 1, 2, -0.2), row("affine", 1, slope, 0.05)}}};
  };
  const study::Results results = {{"pj/a/seed-1", run(1)}, {"pj/a/seed-2", run(5)}};
  EXPECT_DOUBLE_EQ(study::share_in(run(1).at("sectors"), "mass", study::high_order), 0.5);
  const study::Sample share = study::share_over_seeds(results, "pj/a", "mass", study::high_order);
  EXPECT_DOUBLE_EQ(share.mean, (2.0 / 4 + 2.0 / 8) / 2);
  EXPECT_EQ(share.count, 2);
  EXPECT_TRUE(std::isnan(study::share_in(json::array(), "mass", study::high_order)));
  const study::Needed most = study::most_needed(results, "pj/a");
  EXPECT_EQ(most.component, "FJ 0");
  EXPECT_DOUBLE_EQ(most.change, 0.1);
  study::Finding finding;
  study::for_each_corpus(results, "pj", finding, [](const std::string& prefix) { return study::Seen{prefix, false}; });
  EXPECT_EQ(finding.here, "a: pj/a");
  EXPECT_EQ(finding.agrees, false);
  study::for_each_corpus(results, "other", finding = {}, [](const std::string&) { return study::Seen{"", true}; });
  EXPECT_FALSE(finding.agrees.has_value()) << "without a run nothing can be told";
}

TEST(TrainingStudies, RankingLeavesOutWhatDiverged) {
  const auto with_loss = [](json loss) {
    return json{{"evaluation", {{"lengths", {{{"length", 64}, {"nats_per_token", std::move(loss)}}}}}}};
  };
  const study::Results results = {{"rope/a/seed-1", with_loss(3.0)},
                                  {"alibi/a/seed-1", with_loss(2.0)},
                                  {"none/a/seed-1", {{"evaluation", nullptr}, {"diverged", "step 3"}}},
                                  {"alibi/b/seed-1", with_loss(9.0)}};
  const auto all = study::ranking(results, "a", 64);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_STREQ(all[0].variant->name, "alibi");
  EXPECT_STREQ(all[1].variant->name, "rope");
}

// At scale smoke, on one small file: every table, plot and finding is made.
TEST(TrainingStudies, ThePageOfSectors) {
  const Folder folder;
  const std::string data = folder.write("text.txt", sample_text(20000)), out = folder.path("out");
  const ProgramRun run = sextant({"experiment", "byte-lm", "--data", data, "--out", out, "--json", "--quiet"});
  ASSERT_EQ(run.status, 0) << run.err;
  const json answer = json::parse(run.out);
  EXPECT_EQ(answer.at("worked"), 13);
  EXPECT_EQ(answer.at("findings").size(), 7u);
  for (const json& finding : answer.at("findings")) {
    EXPECT_FALSE(finding.at("here").get<std::string>().empty()) << finding.dump();
    EXPECT_TRUE(finding.at("agrees").is_null()) << "thirty steps are no evidence";
  }
  const std::string page = read_file(out + "/report.html");
  for (const char* part : {"Loss by context length: text", "Sector mass by corpus and layer", "Kernels learned"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  EXPECT_NE(page.find("<b>"), std::string::npos) << "the best is marked";
  EXPECT_NE(read_file(out + "/report.md").find("| pj-bias-all | 1 |"), std::string::npos);
  EXPECT_NE(read_file(out + "/report-mass-by-layer-plot.csv").find("FJ 0,text 1,"), std::string::npos);
}

// Every experiment that is registered, as a whole, without any data on the machine.
class SmokeScale : public testing::TestWithParam<std::string> {};

TEST_P(SmokeScale, NeedsNoDataAndMakesAPage) {
  const Folder folder;
  const ProgramRun run =
      sextant({"experiment", GetParam(), "--scale", "smoke", "--out", folder.path("out"), "--json", "--quiet"},
              {"SEXTANT_DATA=" + folder.path("none"), "XDG_CACHE_HOME=" + folder.path("cache")});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_FALSE(json::parse(run.out).at("findings").empty());
  EXPECT_GT(std::filesystem::file_size(folder.path("out/report.html")), 5000u);
}

std::vector<std::string> names_of_studies() {
  std::vector<std::string> names;
  for (const study::Study& each : study::studies()) names.push_back(each.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Every, SmokeScale, testing::ValuesIn(names_of_studies()), [](const auto& each) {
  std::string name = each.param;
  std::erase(name, '-');
  return name;
});

// The exact solution of a task is in the span of its own strategy: some steps bring it well below the start.
TEST(TrainingStudies, SyntheticTasksLearnAndReport) {
  const Folder folder;
  const ProgramRun run = sextant(
      {"experiment", "synthetic-tasks", "--only", "affine/affine/", "--out", folder.path("out"), "--json", "--quiet"});
  ASSERT_EQ(run.status, 0) << run.err;
  const json result = json::parse(read_file(folder.path("out/results/affine/affine/seed-1.json"))).at("result");
  EXPECT_GT(result.at("excess").get<double>(), 0) << "nothing is better than Bayes";
  EXPECT_EQ(result.at("sectors").size(), 2u);
  EXPECT_EQ(result.at("kernel").at(0).size(), 128u);
}

}  // namespace
}  // namespace sextant::test
