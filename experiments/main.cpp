// The `sextant` program: finds the command, runs it, and turns whatever was thrown into one line and an exit status.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

#include "core/communicator.h"
#include "core/cpu.h"
#include "core/error.h"
#include "core/host.h"
#include "core/parallel.h"
#include "experiments/command.h"
#include "positional/spec.h"

namespace sextant {

namespace {

void print_overview() {
  fmt::print(
      "sextant COMMAND [OPTIONS]: position encodings for Transformers, trained, measured and audited\n\n"
      "`sextant COMMAND --help` tells a command's options.\n\n");
  for (const Command& command : commands()) fmt::print("  {:<12} {}\n", command.name, command.summary);
  fmt::print(
      "\nExit status: 0 done; 1 a check failed; 2 bad arguments or input; 3 the machine cannot (memory, disk, a "
      "missing program).\n"
      "SEXTANT_ISA=plain, avx2 or avx512 chooses the instruction set, SEXTANT_DATA the folder of named data sets.\n");
}

void print_version() {
  fmt::print("sextant {} ({}, {}, {})\n", SEXTANT_VERSION, SEXTANT_BUILD_TYPE, compiler(), name_of(isa()));
}

// Output that could not be written (a full disk behind a pipe or redirection) must not look like success.
void flush_output() {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    fail_environment("cannot write to standard output: {}", std::strerror(errno));
}

int run_command(const Command& command, int argc, char** argv) {
  const Arguments arguments = command.parse(argc, argv);
  if (arguments.flag("help")) {
    fmt::print(arguments.output(), "{}", command.help());
    arguments.print_json({{"command", command.name}, {"help", command.help()}});
    flush_output();
    return 0;
  }
  if (arguments.given("threads")) set_threads(static_cast<int>(arguments.integer("threads", 1, 1024)));
  const int status = command.run(arguments);
  flush_output();
  return status;
}

int run_program(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "--help";
  if (name == "--help" || name == "-h" || name == "help") return print_overview(), 0;
  if (name == "--version") return print_version(), 0;
  if (const Command* command = find_command(name)) return run_command(*command, argc - 1, argv + 1);
  std::vector<std::string> names;
  for (const Command& command : commands()) names.push_back(command.name);
  fail("there is no command '{}'; the nearest is '{}' (`sextant --help` lists them)", name, nearest(name, names));
}

// Between parallel loops OpenMP's idle threads spin, for milliseconds unless told otherwise. On a machine that is
// shared they then take the processor from the thread that they wait for: measured with five busy processes on two
// cores, 4 times fewer tokens a second. A spin of some microseconds loses nothing on an idle machine. The variable is
// read when the library loads, hence the program starts itself again, once. What the user has set is left alone.
void shorten_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  ::setenv("GOMP_SPINCOUNT", "10000", 1);
  ::execv("/proc/self/exe", argv);  // returns only where that cannot be done; then all works, too
}

// Large blocks that are freed go back to the system at once. Left alone, the C library takes them from its heap after
// the first few, where small ones that live on keep the gaps: over hours of validating the resident memory creeps up.
void return_large_blocks() {
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);  // a setting of one's own also ends its adapting
}

// Of an error that all ranks came upon alike rank 0 tells; any other ends them all.
int report(int argc, char** argv, std::string message, Status status, bool agreed = false) {
  for (char& c : message)
    if (c == '\n' || c == '\r') c = ' ';
  const Command* command = argc > 1 ? find_command(argv[1]) : nullptr;
  std::fflush(stdout);
  const bool alone_with_it = world_started() && !agreed;
  if (alone_with_it) message = fmt::format("rank {}: {}", world().rank(), message);
  if (alone_with_it || first_rank()) {
    fmt::print(stderr, "sextant{}{}: {}\n", command ? " " : "", command ? command->name : "", message);
    // With --json there is one object on stdout whatever happened. Looked for by hand: the command line itself may be
    // what is wrong.
    if (std::find(argv, argv + argc, std::string_view("--json")) != argv + argc) {
      const nlohmann::json object = {{"error", message}, {"status", static_cast<int>(status)}};
      fmt::print("{}\n", object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
      std::fflush(stdout);
    }
  }
  if (alone_with_it) world().abort(static_cast<int>(status));
  return static_cast<int>(status);
}

}  // namespace

}  // namespace sextant

int main(int argc, char** argv) {
  using sextant::Status;
  sextant::shorten_spinning(argv);
  sextant::return_large_blocks();
  try {
    return sextant::run_program(argc, argv);
  } catch (const sextant::AgreedError& error) {
    return sextant::report(argc, argv, error.what(), error.status(), true);
  } catch (const sextant::Error& error) {
    return sextant::report(argc, argv, error.what(), error.status());
  } catch (const std::bad_alloc&) {
    return sextant::report(argc, argv, "out of memory; a smaller --batch, --context, --width or length needs less",
                           Status::environment);
  } catch (const std::exception& error) {
    return sextant::report(argc, argv, error.what(), Status::environment);
  }
}
