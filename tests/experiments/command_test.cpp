// The command line itself: help, versions, and wrong commands, options and values, each answered with one line and the
// exit status 2.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/experiments/program.h"

namespace sextant::test {
namespace {

void expect_refused(const std::vector<std::string>& arguments, const std::string& part) {
  const ProgramRun run = sextant(arguments);
  EXPECT_EQ(run.status, 2) << run.err;
  EXPECT_EQ(count_lines(run.err), 1) << run.err;
  EXPECT_EQ(run.out, "");
  EXPECT_TRUE(run.err.starts_with("sextant")) << run.err;
  EXPECT_NE(run.err.find(part), std::string::npos) << run.err;
}

TEST(Command, HelpListsEveryCommand) {
  const ProgramRun run = sextant({"--help"});
  EXPECT_EQ(run.status, 0);
  for (const char* name : {"train", "eval", "sample", "grads", "report"})
    EXPECT_NE(run.out.find(name), std::string::npos) << name;
  EXPECT_EQ(sextant({}).out, run.out);
}

TEST(Command, VersionIsOneLine) {
  const ProgramRun run = sextant({"--version"});
  EXPECT_EQ(run.status, 0);
  EXPECT_EQ(count_lines(run.out), 1);
  EXPECT_TRUE(run.out.starts_with("sextant ")) << run.out;
}

TEST(Command, EveryCommandHasHelpWithTheCommonOptions) {
  for (const char* name : {"train", "eval", "sample", "grads", "report"}) {
    const ProgramRun run = sextant({name, "--help"});
    EXPECT_EQ(run.status, 0) << name;
    for (const char* option : {"--threads", "--seed", "--json", "--quiet"})
      EXPECT_NE(run.out.find(option), std::string::npos) << name << option;
  }
}

TEST(Command, UnknownCommandNamesTheNearest) {
  expect_refused({"trian"}, "'train'");
}

TEST(Command, UnknownOptionNamesTheNearest) {
  expect_refused({"train", "--contxt", "12"}, "--context");
  expect_refused({"train", "--weight_decay", "0"}, "--weight-decay");
}

TEST(Command, BadValuesNameTheOption) {
  expect_refused({"train", "--steps", "many"}, "--steps");
  expect_refused({"train", "--steps", "1.5"}, "--steps");
  expect_refused({"train", "--steps", "-1"}, "--steps");
  expect_refused({"train", "--lr", "nan"}, "--lr");
  expect_refused({"train", "--lr", "1e999"}, "--lr");
  expect_refused({"train", "--batch", "99999999999999999999"}, "--batch");
  expect_refused({"train", "--threads", "0"}, "--threads");
  expect_refused({"train", "--dtype", "f16"}, "--dtype");
  expect_refused({"train", "--steps"}, "--steps needs a value");
  expect_refused({"train", "--steps", "5", "--tokens", "100"}, "--tokens");
  expect_refused({"eval"}, "CKPT");
  expect_refused({"train", "surplus"}, "surplus");
}

TEST(Command, WithJsonThereIsOneObjectWhateverHappens) {
  const std::vector<std::vector<std::string>> wrong = {{"trian"},
                                                       {"train", "--contxt", "12"},
                                                       {"train", "--steps"},
                                                       {"eval"},
                                                       {"eval", "/nothing/here"},
                                                       {"data", "show", "\xff\xfe"},
                                                       {"kernel", "rope(bases=1)"},
                                                       {"report"},
                                                       {"audit", "--only", "no such thing"}};
  for (std::vector<std::string> arguments : wrong) {
    arguments.push_back("--json");
    const ProgramRun run = sextant(arguments);
    const auto object = nlohmann::json::parse(run.out, nullptr, false);  // fails when anything stands before or behind
    ASSERT_TRUE(object.is_object()) << arguments[0] << ": " << run.out;
    EXPECT_EQ(object["status"], run.status);
    EXPECT_EQ(run.status, 2) << run.err;
    EXPECT_EQ(count_lines(run.err), 1) << run.err;
    EXPECT_NE(run.err.find(object["error"].get<std::string>().substr(0, 10)), std::string::npos) << run.err;
  }
  const auto help = nlohmann::json::parse(sextant({"train", "--help", "--json"}).out, nullptr, false);
  EXPECT_EQ(help["command"], "train");
}

TEST(Command, OutputThatCannotBeWrittenIsAnError) {
  // A device of Linux that some containers leave out: nothing else is sure to refuse a write.
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const std::string command = std::string(SEXTANT_PROGRAM) + " train --help > /dev/full 2> /dev/null";
  EXPECT_EQ(std::system(command.c_str()) >> 8, 3);
}

}  // namespace
}  // namespace sextant::test
