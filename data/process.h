// Running another program, without a shell between.
#pragma once

#include <string>
#include <vector>

namespace sextant {

struct ProgramResult {
  int status;          // the exit status; 128 + the signal that ended it
  std::string output;  // what it wrote to stdout
};

// Waits for it; what it writes to stderr is dropped, since its exit status is what gets reported. arguments[0] is
// looked for in PATH; throws Error (environment) naming it when it is not there.
ProgramResult run_program(const std::vector<std::string>& arguments);

}  // namespace sextant
