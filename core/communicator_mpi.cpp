// Ranks connected by MPI. Compiled where CMake finds MPI; nothing else in the project includes <mpi.h>.
#define OMPI_SKIP_MPICXX 1  // the C interface only
#include <mpi.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cstdlib>
#include <memory>

#include "core/communicator.h"

namespace sextant {

extern std::atomic<bool (*)()> told_to_stop;  // core/communicator.cpp

namespace {

constexpr int tag = 1;
constexpr double patience = 45;  // seconds

double now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Ends all ranks where this one was told to stop and has waited in vain since `start`.
void give_up_after(double start) {
  bool (*const stopping)() = told_to_stop;
  if (stopping == nullptr || !stopping() || now() - start < patience) return;
  MPI_Abort(MPI_COMM_WORLD, static_cast<int>(Status::environment));
}

// MPI's own waiting spins, and would take the processor from the threads that compute meanwhile.
void wait_for(int count, MPI_Request* requests) {
  constexpr int tests_before_sleep = 100;
  constexpr long shortest = 20'000, longest = 500'000;  // nanoseconds
  long sleep = shortest;
  const double start = now();
  for (int tests = 0;; ++tests) {
    int done = 0;
    MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE);
    if (done) return;
    if (tests < tests_before_sleep) {
      ::sched_yield();
      continue;
    }
    give_up_after(start);
    const timespec time{0, sleep};
    ::nanosleep(&time, nullptr);
    sleep = std::min(longest, sleep + sleep / 4);
  }
}

int own_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

class Mpi final : public Communicator {
 public:
  Mpi() : Communicator(own_rank(), world_size()) {}
  ~Mpi() override { MPI_Finalize(); }

  std::vector<std::string> gather(const std::string& text) override {
    const size_t ranks = static_cast<size_t>(size());
    std::vector<int> sizes(ranks), starts(ranks, 0);
    const int own = static_cast<int>(text.size());
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallgather(&own, 1, MPI_INT, sizes.data(), 1, MPI_INT, MPI_COMM_WORLD, &request);
    wait_for(1, &request);
    for (size_t i = 1; i < ranks; ++i) starts[i] = starts[i - 1] + sizes[i - 1];
    std::string all(static_cast<size_t>(starts.back() + sizes.back()), '\0');
    MPI_Iallgatherv(text.data(), own, MPI_CHAR, all.data(), sizes.data(), starts.data(), MPI_CHAR, MPI_COMM_WORLD,
                    &request);
    wait_for(1, &request);
    std::vector<std::string> texts;
    for (size_t i = 0; i < ranks; ++i)
      texts.push_back(all.substr(static_cast<size_t>(starts[i]), static_cast<size_t>(sizes[i])));
    return texts;
  }

  void exchange(int partner, std::span<const std::byte> send, std::span<std::byte> receive) override {
    assert(send.size() < (size_t{1} << 31) && receive.size() < (size_t{1} << 31));
    std::array<MPI_Request, 2> requests{};
    MPI_Irecv(receive.data(), static_cast<int>(receive.size()), MPI_BYTE, partner, tag, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(send.data(), static_cast<int>(send.size()), MPI_BYTE, partner, tag, MPI_COMM_WORLD, &requests[1]);
    wait_for(2, requests.data());
  }

  void abort(int status) override {
    MPI_Abort(MPI_COMM_WORLD, status);
    std::_Exit(status);
  }
};

}  // namespace

// Throws Error (environment) when this MPI does not let another thread than the first communicate.
std::unique_ptr<Communicator> connect_by_mpi() {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  auto mpi = std::make_unique<Mpi>();
  if (provided < MPI_THREAD_SERIALIZED)
    fail_environment("this MPI was built without threads (it provides level {}, needed is MPI_THREAD_SERIALIZED)",
                     provided);
  return mpi;
}

}  // namespace sextant
