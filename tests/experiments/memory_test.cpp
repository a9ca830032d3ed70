// Memory: the estimate before training against the peak that the system then counts, and the refusal of what does not
// fit.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/experiments/program.h"

namespace sextant::test {
namespace {

using nlohmann::json;

class Memory : public testing::Test {
 protected:
  Folder folder_;
  std::string data_ = folder_.write("text.txt", sample_text(60000));
};

TEST_F(Memory, TheEstimateIsWithin15PercentOfThePeak) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  // Shadow memory and red zones are resident, too: the peak is not the program's own.
  GTEST_SKIP() << "a sanitizer takes memory of its own";
#endif
  using Options = std::vector<std::string>;
  std::vector<Options> shapes = {
      {"--batch", "16", "--context", "512", "--width", "64", "--heads", "4", "--layers", "3", "--position", "rope"},
      {"--batch", "6", "--context", "1000", "--width", "96", "--heads", "2", "--layers", "2", "--position",
       "pj-bias+alibi"},
      {"--batch", "8", "--context", "512", "--width", "64", "--heads", "4", "--layers", "3", "--accumulate", "4",
       "--untied", "--position", "affine"}};
  if (std::getenv("SEXTANT_LONG_TESTS") != nullptr)
    for (const Options& shape : std::vector<Options>{
             {"--batch", "16", "--context", "256", "--width", "64", "--heads", "4", "--layers", "3"},
             {"--batch", "4", "--context", "2048", "--width", "64", "--heads", "1", "--layers", "2"},
             {"--batch", "4", "--context", "256", "--width", "512", "--heads", "8", "--layers", "6"},
             {"--batch", "2", "--context", "3000", "--width", "128", "--heads", "8", "--layers", "4", "--position",
              "transport(kind=path)"},
             {"--batch", "16", "--context", "300", "--width", "64", "--heads", "4", "--layers", "2", "--dtype", "f64"},
             {"--batch", "2", "--context", "400", "--width", "32", "--heads", "2", "--layers", "2", "--composed"},
             {"--batch", "32", "--context", "512", "--width", "128", "--heads", "4", "--layers", "4", "--position",
              "transport(kind=learned,values=1)+gate"}})
      shapes.push_back(shape);
  for (size_t i = 0; i < shapes.size(); ++i) {
    Options options = {"train",   "--data", data_,    "--out",  folder_.path("run" + std::to_string(i)),
                       "--steps", "2",      "--json", "--quiet"};
    options.insert(options.end(), shapes[i].begin(), shapes[i].end());
    const ProgramRun run = sextant(options);
    ASSERT_EQ(run.status, 0) << run.err;
    const json memory = json::parse(run.out).at("memory");
    const double estimated = memory.at("estimated_bytes"), peak = memory.at("peak_bytes");
    std::string shape;
    for (const std::string& word : shapes[i]) shape += word + " ";
    EXPECT_NEAR(estimated / peak, 1, 0.15)
        << shape << estimated / 1e6 << " MB estimated, " << peak / 1e6 << " MB taken";
    if (std::getenv("SEXTANT_LONG_TESTS") != nullptr)
      std::printf("%6.1f MB estimated  %6.1f MB taken  %s\n", estimated / 1e6, peak / 1e6, shape.c_str());
  }
}

TEST_F(Memory, AValidationTakesTheMemoryOfTheStep) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  // Shadow memory and red zones are resident, too: the peak is not the program's own.
  GTEST_SKIP() << "a sanitizer takes memory of its own";
#endif
  const auto peak = [&](const std::string& every) {
    const ProgramRun run = sextant({"train", "--data", data_, "--out", folder_.path("every" + every), "--steps", "3",
                                    "--batch", "2", "--context", "1024", "--eval-every", every, "--json", "--quiet"});
    EXPECT_EQ(run.status, 0) << run.err;
    return json::parse(run.out).at("memory").at("peak_bytes").get<double>();
  };
  EXPECT_LT(peak("1"), peak("0") + 5e6);
}

TEST_F(Memory, TooLittleIsRefusedWithTheFigureAndWhatToLower) {
  const auto train = [&](const std::vector<std::string>& more, const char* memory) {
    std::vector<std::string> options = {"train",   "--data", data_,    "--out", folder_.path("run"),
                                        "--steps", "2",      "--quiet"};
    options.insert(options.end(), more.begin(), more.end());
    return sextant(options, {std::string("SEXTANT_MEMORY=") + memory});
  };
  const auto expect_refused = [&](const ProgramRun& run, const std::vector<std::string>& parts, int status = 3) {
    EXPECT_EQ(run.status, status) << run.err;
    EXPECT_EQ(count_lines(run.err), 1) << run.err;
    for (const std::string& part : parts) EXPECT_NE(run.err.find(part), std::string::npos) << run.err;
    EXPECT_FALSE(std::filesystem::exists(folder_.path("run/checkpoint.safetensors")));
  };
  expect_refused(train({"--batch", "64", "--context", "1024"}, "300M"),
                 {"MiB", "SEXTANT_MEMORY", "--accumulate", "--batch"});
  expect_refused(train({"--width", "65536"}, "300M"), {"GiB", "--width"});
  expect_refused(train({"--batch", "4"}, "many"), {"SEXTANT_MEMORY", "many"}, 2);
  EXPECT_EQ(train({"--batch", "4", "--context", "64"}, "300M").status, 0);
}

TEST_F(Memory, ALongEvaluationThatDoesNotFitIsRefused) {
  ASSERT_EQ(sextant(tiny_model(data_, folder_.path("run"), {"--steps", "2", "--quiet"})).status, 0);
  const std::string long_text = folder_.write("long.txt", sample_text(2400000));
  const ProgramRun run = sextant({"eval", folder_.path("run"), "--data", long_text, "--split", "train", "--lengths",
                                  "2000000", "--windows", "1", "--quiet"},
                                 {"SEXTANT_MEMORY=200M"});
  EXPECT_EQ(run.status, 3) << run.err;
  EXPECT_EQ(count_lines(run.err), 1) << run.err;
  EXPECT_NE(run.err.find("--lengths"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace sextant::test
