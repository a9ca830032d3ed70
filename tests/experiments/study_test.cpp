// `sextant experiment`: the list, the laws, resuming, and what is said when something is wrong.
#include "experiments/study.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "experiments/study_kernels.h"
#include "positional/diagnostics.h"
#include "tests/experiments/program.h"

namespace sextant::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST(Experiments, ListNamesWhatExists) {
  const ProgramRun run = sextant({"experiment", "list", "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  std::set<std::string> names;
  const json list = json::parse(run.out);
  for (const json& each : list.at("experiments")) {
    names.insert(each.at("name"));
    EXPECT_FALSE(each.at("question").get<std::string>().empty());
    EXPECT_FALSE(each.at("paper").get<std::string>().empty());
  }
  for (const char* name :
       {"closure", "stability", "fixed-kernel", "adaptive-sector", "byte-lm", "music", "synthetic-tasks"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(Experiments, AWrongNameIsAnsweredWithTheNearestRightOne) {
  const ProgramRun run = sextant({"experiment", "closur"});
  EXPECT_EQ(run.status, 2);
  EXPECT_NE(run.err.find("'closure'"), std::string::npos) << run.err;
  const ProgramRun scale = sextant({"experiment", "closure", "--scale", "quik"});
  EXPECT_EQ(scale.status, 2);
  EXPECT_NE(scale.err.find("'quick'"), std::string::npos) << scale.err;
}

// The laws hold to 1e-12 in f64 (logits of growing absolute factors a million positions out to 1e-6: their terms are up
// to 1e7 times their size, and cancel), and to f32's rounding; a second call measures nothing again.
TEST(Experiments, ClosureHoldsAndIsNotMeasuredTwice) {
  const Folder folder;
  const std::vector<std::string> command = {"experiment", "closure", "--out", folder.path("out"), "--json"};
  const ProgramRun first = sextant(command);
  ASSERT_EQ(first.status, 0) << first.err;
  EXPECT_EQ(json::parse(first.out).at("worked"), 2);
  const json rows = json::parse(read_file(folder.path("out/results/f64.json"))).at("result");
  int laws = 0;
  for (const json& row : rows) {
    if (row.at("law") == "tangent" || row.at("tolerance").get<double>() == 0) continue;
    const std::string subject = row.at("subject");
    const bool grows =
        row.at("law") == "translation" && subject != "rope" && subject.find("anchored=1") == std::string::npos;
    EXPECT_LE(row.at("error").get<double>(), grows ? 1e-6 : 1e-12) << row.dump();
    ++laws;
  }
  EXPECT_GT(laws, 20);
  const ProgramRun second = sextant(command);
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(json::parse(second.out).at("worked"), 0);
  EXPECT_EQ(json::parse(second.out).at("skipped"), 2);
  EXPECT_NE(read_file(folder.path("out/report.html")).find("a chart, not a representation"), std::string::npos);
}

// A stored error above its tolerance fails the check: the verdict is read off the numbers.
TEST(Experiments, ABrokenLawFailsTheCheck) {
  const Folder folder;
  const std::vector<std::string> command = {"experiment", "closure",          "--only", "f64",
                                            "--out",      folder.path("out"), "--json"};
  ASSERT_EQ(sextant(command).status, 0);
  json stored = json::parse(read_file(folder.path("out/results/f64.json")));
  stored.at("result").at(0).at("error") = 1e-3;
  write_file(folder.path("out/results/f64.json"), stored.dump());
  const ProgramRun run = sextant(command);
  EXPECT_EQ(run.status, 1) << run.err;
  EXPECT_FALSE(json::parse(run.out).at("passed").get<bool>());
}

TEST(Experiments, ResultsOfOtherSettingsAreNotTakenForOurs) {
  const Folder folder;
  const auto run = [&](const char* seed) {
    return sextant(
        {"experiment", "stability", "--only", "resolution", "--seed", seed, "--out", folder.path("out"), "--quiet"});
  };
  ASSERT_EQ(run("1").status, 0);
  const ProgramRun other = run("2");
  EXPECT_EQ(other.status, 2);
  EXPECT_NE(other.err.find("other settings"), std::string::npos) << other.err;
}

TEST(Experiments, OnlyWithoutAMatchNamesThePieces) {
  const Folder folder;
  const ProgramRun run = sextant({"experiment", "stability", "--only", "nothing", "--out", folder.path("out")});
  EXPECT_EQ(run.status, 2);
  EXPECT_NE(run.err.find("jordan-anchored"), std::string::npos) << run.err;
}

TEST(Experiments, SpreadOfSeeds) {
  const study::Sample sample = study::sample_of({1, 2, 3, 6});
  EXPECT_DOUBLE_EQ(sample.mean, 3);
  EXPECT_NEAR(sample.deviation, std::sqrt(14.0 / 3), 1e-15);
  EXPECT_EQ(study::sample_of({5}).deviation, 0);
  EXPECT_EQ(study::sample_of({}).count, 0);
}

// Descent finds a kernel that is linear in the model's parameters, starting from the wrong one.
TEST(Experiments, DescentFitsAKernelInTheSpan) {
  const auto targets = study::kernel_targets(0.1);
  const auto wanted = study::values_of(targets.front(), 0, study::kernel_window);
  EXPECT_NEAR(wanted[10], std::cos(1.0), 1e-15);
  study::KernelModel model(1);
  const double before = study::normalised_error(model.kernel(study::kernel_window), wanted);
  model.train(wanted, 150);
  const double after = study::normalised_error(model.kernel(study::kernel_window), wanted);
  EXPECT_GT(before, 0.5);
  EXPECT_LT(after, 0.05);
}

// What training prices is what the diagnostics count: where the gates and all sectors have moved, and of several heads.
TEST(Experiments, ThePriceIsOnTheMassOfTheDiagnostics) {
  const auto targets = study::kernel_targets(0.1);
  ASSERT_EQ(targets[6].name, "affine+phase");
  study::KernelModel model(1);
  model.train(study::values_of(targets[6], 0, study::kernel_window), 300);
  PositionSettings settings;
  settings.heads = 3;
  PositionStand several(study::KernelModel::spec(), settings);
  for (const auto& [layer, heads] : {std::pair{&model.position(), int64_t{1}}, {&several.position(), 3}}) {
    double total = 0;
    for (const auto& part : sector_diagnostics(*layer, heads, study::kernel_window)) total += part.mass;
    Tape tape;
    EXPECT_NEAR(study::effective_mass(tape, *layer).value().item(), total, 1e-5);  // a component at zero counts 1e-6
  }
}

TEST(Experiments, APriceOnMassMovesItToTheTeachersComponent) {
  const auto targets = study::kernel_targets(0.1);
  const auto wanted = study::values_of(targets[1], 0, study::kernel_window);
  ASSERT_EQ(targets[1].name, "jet-1");
  study::KernelModel model(1);
  model.train(wanted, 2000, 0.01);
  for (const auto& part : sector_diagnostics(model.position(), 1, study::kernel_window)) {
    const bool teachers = part.sector == "FJ" && part.order == 1;
    EXPECT_EQ(part.mass_share > 0.9, teachers) << part.sector << " " << part.order << ": " << part.mass_share;
  }
  EXPECT_LT(study::normalised_error(model.kernel(study::kernel_window), wanted), 0.01);
}

}  // namespace
}  // namespace sextant::test
