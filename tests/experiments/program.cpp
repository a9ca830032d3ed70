#include "tests/experiments/program.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace sextant::test {

namespace fs = std::filesystem;

namespace {

std::string temporary_name(const char* kind) {
  static int counter = 0;
  return (fs::temp_directory_path() /
          ("sextant-test-" + std::to_string(::getpid()) + "-" + kind + std::to_string(counter++)))
      .string();
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

}  // namespace

RunningProgram::RunningProgram(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                               const std::string& program)
    : out_(temporary_name("out")), err_(temporary_name("err")) {
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  variables.insert(variables.begin(), environment.begin(), environment.end());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int error =
      posix_spawnp(&child_, program.c_str(), &actions, nullptr, pointers(words).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + program);
}

RunningProgram::~RunningProgram() {
  if (child_ > 0) {
    kill(SIGKILL);
    wait();
  }
}

void RunningProgram::kill(int signal) {
  ::kill(child_, signal);
}

ProgramRun RunningProgram::wait() {
  int status = 0;
  ::waitpid(child_, &status, 0);
  child_ = -1;
  ProgramRun run{WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(out_), read_file(err_)};
  fs::remove(out_);
  fs::remove(err_);
  return run;
}

ProgramRun sextant(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  return RunningProgram(arguments, environment).wait();
}

std::vector<std::string> mpirun_arguments(int ranks) {
  std::vector<std::string> words = {"--allow-run-as-root", "--oversubscribe", "-np", std::to_string(ranks)};
  // A container without ptrace cannot copy straight from process to process, and says so each time.
  for (const char* word : {"--mca", "btl_vader_single_copy_mechanism", "none"}) words.push_back(word);
  return words;
}

ProgramRun mpirun(int ranks, const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  std::vector<std::string> words = mpirun_arguments(ranks);
  words.push_back(SEXTANT_PROGRAM);
  words.insert(words.end(), arguments.begin(), arguments.end());
  return RunningProgram(words, environment, "mpirun").wait();
}

std::string why_no_mpi() {
#ifndef SEXTANT_HAS_MPI
  return "built without MPI";
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return "MPI is not built for the sanitizer";
#else
  return std::system("mpirun --version >/dev/null 2>&1") == 0 ? "" : "mpirun is not installed";
#endif
}

Folder::Folder() : path_(temporary_name("folder")) {
  fs::create_directories(path_);
}

Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string Folder::write(const std::string& name, const std::string& content) const {
  write_file(path(name), content);
  return path(name);
}

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void write_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string difference(const std::string& path_a, const std::string& path_b) {
  const std::string a = read_file(path_a), b = read_file(path_b);
  if (a.empty() || b.empty()) return "one is missing or empty";
  const size_t place = static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  return a == b ? ""
                : "sizes " + std::to_string(a.size()) + " and " + std::to_string(b.size()) +
                      ", first difference at byte " + std::to_string(place);
}

std::string metrics_without_time(const std::string& run) {
  std::istringstream lines(read_file(run + "/metrics.csv"));
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string field;
    for (int column = 0; std::getline(fields, field, ','); ++column)
      if (column != 2 && column != 6) kept += field + ",";
    kept += "\n";
  }
  return kept;
}

void wait_for_lines(const std::string& path, int lines) {
  for (int tries = 0; tries < 3000 && count_lines(read_file(path)) < lines; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

int count_lines(const std::string& text) {
  return static_cast<int>(std::ranges::count(text, '\n'));
}

std::string sample_text(int bytes) {
  const std::vector<std::string> words = {"the ", "sea ",   "and ",  "a ",     "star ",
                                          "of ",  "night ", "over ", "ship, ", "sails. "};
  std::string text;
  for (unsigned state = 1; static_cast<int>(text.size()) < bytes; state = state * 1103515245u + 12345u)
    text += words[(state >> 16) % words.size()];
  return text.substr(0, static_cast<size_t>(bytes));
}

std::vector<std::string> tiny_model(const std::string& data, const std::string& out,
                                    const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"train", "--data",  data, "--out",     out,  "--layers", "1", "--width",
                                        "16",    "--heads", "2",  "--context", "16", "--batch",  "4"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

}  // namespace sextant::test
