// Driving the built program as a process, as a user does.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace sextant::test {

struct ProgramRun {
  int status = -1;  // exit status, or 128 + the signal that ended it
  std::string out, err;
};

// Runs `sextant ARGUMENTS...` and waits. `environment`: "NAME=value" entries on top of ours.
ProgramRun sextant(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

// The same by `mpirun -np RANKS`.
ProgramRun mpirun(int ranks, const std::vector<std::string>& arguments,
                  const std::vector<std::string>& environment = {});
std::vector<std::string> mpirun_arguments(int ranks);  // of mpirun, up to the program it starts
std::string why_no_mpi();                              // empty where there is MPI

// A program, ours or by name another, started and left running.
class RunningProgram {
 public:
  explicit RunningProgram(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {},
                          const std::string& program = SEXTANT_PROGRAM);
  ~RunningProgram();
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  void kill(int signal);
  pid_t process() const { return child_; }
  ProgramRun wait();

 private:
  pid_t child_ = -1;
  std::string out_, err_;
};

// A folder of its own for one test, removed afterwards.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& content) const;  // returns its path

 private:
  std::string path_;
};

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& content);
std::string metrics_without_time(const std::string& run);  // metrics.csv without the two columns that tell time
void wait_for_lines(const std::string& path, int lines);   // until the file has so many; 15 seconds at most
// "" when they are the same bytes, otherwise where they first differ.
std::string difference(const std::string& path_a, const std::string& path_b);
int count_lines(const std::string& text);

// Text with some structure, the same each time.
std::string sample_text(int bytes);

// Options of a model that trains in a fraction of a second.
std::vector<std::string> tiny_model(const std::string& data, const std::string& out,
                                    const std::vector<std::string>& more = {});

}  // namespace sextant::test
