// Training, evaluation and experiments over MPI ranks: the bits of one process; ranks that do not fit together; ranks
// that die.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/safetensors.h"
#include "tests/experiments/program.h"

namespace sextant::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Lines of ours: mpirun adds some of its own.
std::vector<std::string> own_lines(const std::string& text) {
  std::istringstream lines(text);
  std::vector<std::string> own;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("sextant ") || line.starts_with("sextant: ")) own.push_back(line);
  return own;
}

class Ranks : public testing::Test {
 protected:
  void SetUp() override {
    // MPI is optional; the test scripts install it.
    if (const std::string reason = why_no_mpi(); !reason.empty()) GTEST_SKIP() << reason;
  }
  std::vector<std::string> train(const std::string& out, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments =
        tiny_model(data_, folder_.path(out),
                   {"--steps", "24", "--threads", "1", "--position", "pj-bias+rope", "--eval-every", "12"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::string checkpoint(const std::string& run) const { return folder_.path(run + "/checkpoint.safetensors"); }
  void expect_same_run(const std::string& a, const std::string& b) const {
    EXPECT_EQ(difference(checkpoint(a), checkpoint(b)), "");
    EXPECT_EQ(metrics_without_time(folder_.path(a)), metrics_without_time(folder_.path(b)));
    EXPECT_EQ(read_file(folder_.path(a + "/validation.csv")), read_file(folder_.path(b + "/validation.csv")));
    EXPECT_EQ(nats_of(a), nats_of(b));
  }
  std::vector<double> nats_of(const std::string& run) const {
    std::vector<double> nats;
    for (const json& row : json::parse(read_file(folder_.path(run + "/eval.json"))).at("lengths"))
      for (const char* key : {"nats_per_token", "standard_error", "last_quarter_nats_per_token"})
        nats.push_back(row.at(key).get<double>());
    return nats;
  }

  Folder folder_;
  std::string data_ = folder_.write("text.txt", sample_text(6000));
};

TEST_F(Ranks, GiveTheBitsOfOneProcess) {
  ASSERT_EQ(sextant(train("alone")).status, 0);
  for (const int ranks : {1, 2, 4}) {
    const std::string run = "ranks" + std::to_string(ranks);
    const ProgramRun made = mpirun(ranks, train(run));
    ASSERT_EQ(made.status, 0) << made.err;
    expect_same_run("alone", run);
  }
  const ProgramRun parts = mpirun(2, train("parts", {"--accumulate", "2"}));
  ASSERT_EQ(parts.status, 0) << parts.err;
  expect_same_run("alone", "parts");
}

TEST_F(Ranks, ShareAnEvaluation) {
  ASSERT_EQ(sextant(train("run")).status, 0);
  const std::vector<std::string> evaluation = {
      "eval", folder_.path("run"), "--lengths", "16,64", "--windows", "5", "--json", "--quiet"};
  const ProgramRun one = sextant(evaluation), two = mpirun(2, evaluation);
  ASSERT_EQ(one.status, 0) << one.err;
  ASSERT_EQ(two.status, 0) << two.err;
  const json a = json::parse(one.out), b = json::parse(two.out);  // one object, of rank 0
  for (size_t i = 0; i < 2; ++i)
    for (const char* key : {"length", "nats_per_token", "standard_error", "ratio_to_training_length"})
      EXPECT_EQ(a.at("lengths").at(i).at(key), b.at("lengths").at(i).at(key)) << key;
  EXPECT_EQ(a.at("sectors").size(), b.at("sectors").size());
}

TEST_F(Ranks, ShareTheQueueOfAnExperiment) {
  const auto experiment = [&](const char* out) {
    return std::vector<std::string>{"experiment", "closure", "--out",  folder_.path(out),
                                    "--threads",  "1",       "--json", "--quiet"};
  };
  const ProgramRun one = sextant(experiment("one")), two = mpirun(2, experiment("two"));
  ASSERT_EQ(one.status, 0) << one.err;
  ASSERT_EQ(two.status, 0) << two.err;
  const json a = json::parse(one.out), b = json::parse(two.out);
  EXPECT_EQ(a.at("worked"), b.at("worked"));
  EXPECT_EQ(a.at("findings"), b.at("findings"));
  const ProgramRun again = mpirun(2, experiment("two"));
  EXPECT_EQ(json::parse(again.out).at("worked"), 0) << again.err;
}

TEST_F(Ranks, ThatDoNotFitTogetherAreRefusedInOneLine) {
  const std::string other = folder_.write("other.txt", sample_text(5000));
  const auto refused = [&](const std::vector<std::string>& first, const std::vector<std::string>& second,
                           const std::vector<std::string>& parts) {
    std::vector<std::string> words = mpirun_arguments(1);
    words.push_back(SEXTANT_PROGRAM);
    words.insert(words.end(), first.begin(), first.end());
    words.insert(words.end(), {":", "-np", "1"});
    words.insert(words.end(), second.begin(), second.end());
    const ProgramRun run = RunningProgram(words, {}, "mpirun").wait();
    EXPECT_EQ(run.status, 2) << run.err;
    const std::vector<std::string> lines = own_lines(run.err);
    ASSERT_EQ(lines.size(), 1u) << run.err;
    for (const std::string& part : parts) EXPECT_NE(lines[0].find(part), std::string::npos) << lines[0];
    EXPECT_FALSE(fs::exists(checkpoint("run")));
  };
  const auto with_program = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), SEXTANT_PROGRAM);
    return arguments;
  };
  std::vector<std::string> other_data = train("run");
  std::ranges::replace(other_data, data_, other);
  refused(train("run"), with_program(other_data), {"data", "rank 1"});
  refused(train("run"), with_program(train("run", {"--lr", "0.5"})), {"configuration", "rank 1", "0.5"});
  std::vector<std::string> plain = with_program(train("run"));
  plain.insert(plain.begin(), {"env", "SEXTANT_ISA=plain"});
  refused(train("run"), plain, {"instruction set", "plain"});
}

TEST_F(Ranks, OfANumberThatDoesNotDivideTheBatchAreRefused) {
  for (const int ranks : {3, 8}) {
    const ProgramRun run = mpirun(ranks, train("run"));
    EXPECT_EQ(run.status, 2) << run.err;
    ASSERT_EQ(own_lines(run.err).size(), 1u) << run.err;
    EXPECT_NE(own_lines(run.err)[0].find("batch of 4"), std::string::npos) << run.err;
  }
}

TEST_F(Ranks, WrongArgumentsAreToldOnce) {
  const ProgramRun run = mpirun(2, train("run", {"--lrr", "1"}));
  EXPECT_EQ(run.status, 2);
  ASSERT_EQ(own_lines(run.err).size(), 1u) << run.err;
}

// The processes that mpirun started, by /proc.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string status = read_file(entry.path().string() + "/stat");
    const size_t end = status.rfind(')');  // "pid (name) state parent ..."
    if (end != std::string::npos && end + 4 < status.size() && std::stoi(status.substr(end + 4)) == parent)
      children.push_back(std::stoi(name));
  }
  return children;
}

TEST_F(Ranks, OneThatDiesStopsTheJobWhichGoesOnFromTheLastCheckpoint) {
  ASSERT_EQ(sextant(train("alone", {"--steps", "3000"})).status, 0);
  std::vector<std::string> words = mpirun_arguments(2);
  words.push_back(SEXTANT_PROGRAM);
  for (const std::string& word : train("run", {"--steps", "3000", "--save-every", "10"})) words.push_back(word);
  RunningProgram job(words, {}, "mpirun");
  wait_for_lines(folder_.path("run/metrics.csv"), 25);
  const std::vector<pid_t> ranks = children_of(job.process());
  ASSERT_EQ(ranks.size(), 2u);
  const auto start = std::chrono::steady_clock::now();
  ::kill(ranks[1], SIGKILL);
  EXPECT_NE(job.wait().status, 0);
  while (::kill(ranks[0], 0) == 0 && std::chrono::steady_clock::now() - start < std::chrono::seconds(60))
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // mpirun ends before its last child is gone
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60)) << "rank 0 still lives";
  EXPECT_GE(std::stoi(SafetensorsFile::open(checkpoint("run")).metadata("step")), 20);
  const ProgramRun resumed = sextant({"train", "--resume", folder_.path("run"), "--threads", "1"});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  expect_same_run("alone", "run");
}

// The processes of a job by rank, once it trains.
std::vector<pid_t> ranks_of(const RunningProgram& job, size_t count) {
  std::vector<pid_t> ranks(count, -1);
  for (const pid_t child : children_of(job.process())) {
    const std::string environment = read_file("/proc/" + std::to_string(child) + "/environ"),
                      name = "OMPI_COMM_WORLD_RANK=";
    if (const size_t place = environment.find(name); place != std::string::npos)
      ranks.at(static_cast<size_t>(std::stoi(environment.substr(place + name.size())))) = child;
  }
  return ranks;
}

// Stopped by a signal a process neither dies nor answers. Of four ranks others wait for those that wait for it; it
// alone is named.
TEST_F(Ranks, OneThatHangsStopsTheJobAndIsNamed) {
  for (const auto& [count, hanging] : {std::pair(2, 1), std::pair(2, 0), std::pair(4, 2)}) {
    SCOPED_TRACE(hanging);
    const std::string run = fmt::format("run{}-{}", count, hanging);
    std::vector<std::string> words = mpirun_arguments(count);
    words.push_back(SEXTANT_PROGRAM);
    for (const std::string& word : train(run, {"--steps", "1000000", "--save-every", "10", "--mpi-timeout", "4"}))
      words.push_back(word);
    RunningProgram job(words, {}, "mpirun");
    wait_for_lines(folder_.path(run + "/metrics.csv"), 25);
    const std::vector<pid_t> ranks = ranks_of(job, static_cast<size_t>(count));
    ASSERT_EQ(std::ranges::count(ranks, -1), 0);
    ::kill(ranks[static_cast<size_t>(hanging)], SIGSTOP);
    const ProgramRun ended = job.wait();
    EXPECT_EQ(ended.status, 3) << ended.err;
    std::vector<std::string> lines;
    for (const std::string& line : own_lines(ended.err))
      if (line.find("waited") != std::string::npos) lines.push_back(line);
    ASSERT_EQ(lines.size(), 1u) << ended.err;
    const std::string waited = fmt::format("rank {} (", hanging == 0 ? 1 : 0);
    EXPECT_NE(lines[0].find(waited), std::string::npos) << lines[0];
    for (int rank = 0; rank < count; ++rank)
      EXPECT_EQ(lines[0].find(fmt::format("seconds for rank {} (", rank)) != std::string::npos, rank == hanging)
          << lines[0];
    EXPECT_EQ(lines[0].find(", rank"), std::string::npos) << lines[0];
    EXPECT_NE(lines[0].find("--resume"), std::string::npos) << lines[0];
    EXPECT_GE(std::stoi(SafetensorsFile::open(checkpoint(run)).metadata("step")), 20);
  }
}

// As a batch system does to make room for another job.
TEST_F(Ranks, SuspendedForLongerThanTheTimeoutGoOn) {
  std::vector<std::string> words = mpirun_arguments(2);
  words.push_back(SEXTANT_PROGRAM);
  for (const std::string& word : train("run", {"--steps", "1000000", "--save-every", "0", "--mpi-timeout", "4"}))
    words.push_back(word);
  RunningProgram job(words, {}, "mpirun");
  const std::string metrics = folder_.path("run/metrics.csv");
  wait_for_lines(metrics, 10);
  const std::vector<pid_t> ranks = ranks_of(job, 2);
  ASSERT_EQ(std::ranges::count(ranks, -1), 0);
  for (const pid_t rank : ranks) ::kill(rank, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(6));
  for (const pid_t rank : ranks) ::kill(rank, SIGCONT);
  const int lines = count_lines(read_file(metrics));
  wait_for_lines(metrics, lines + 100);
  EXPECT_GE(count_lines(read_file(metrics)), lines + 100);
  ::kill(ranks[0], SIGTERM);
  const ProgramRun ended = job.wait();
  EXPECT_EQ(ended.status, 143) << ended.err;
}

TEST_F(Ranks, ASignalToOneEndsAllAfterTheStepAndSaves) {
  std::vector<std::string> words = mpirun_arguments(2);
  words.push_back(SEXTANT_PROGRAM);
  for (const std::string& word : train("run", {"--steps", "100000", "--save-every", "0"})) words.push_back(word);
  RunningProgram job(words, {}, "mpirun");
  wait_for_lines(folder_.path("run/metrics.csv"), 10);
  const std::vector<pid_t> ranks = children_of(job.process());
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[1], SIGTERM);
  EXPECT_EQ(job.wait().status, 143);
  EXPECT_GE(std::stoi(SafetensorsFile::open(checkpoint("run")).metadata("step")), 9);
}

}  // namespace
}  // namespace sextant::test
