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

// core/communicator.cpp
std::string host_name();
extern std::atomic<bool (*)()> told_to_stop;
extern std::atomic<double> longest_wait;

namespace {

constexpr int tag = 1, alarm_tag = 2;
constexpr double patience_when_stopping = 45, answer_within = 5;  // seconds

double now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void sleep_for(long nanoseconds) {
  const timespec time{0, nanoseconds};
  ::nanosleep(&time, nullptr);
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

std::vector<std::string> hosts;  // by rank

std::string names_of(const std::vector<int>& ranks) {
  std::string names;
  for (const int rank : ranks)
    names += fmt::format("{}rank {} ({})", names.empty() ? "" : ", ", rank, hosts[static_cast<size_t>(rank)]);
  return names;
}

bool patience_is_over(double waited) {
  bool (*const stopping)() = told_to_stop;
  const double limit = longest_wait;
  return (limit > 0 && waited > limit) || (stopping != nullptr && waited > patience_when_stopping && stopping());
}

bool alarm_from(int& rank) {
  int arrived = 0;
  MPI_Status status{};
  MPI_Iprobe(MPI_ANY_SOURCE, alarm_tag, MPI_COMM_WORLD, &arrived, &status);
  rank = status.MPI_SOURCE;
  return arrived != 0;
}

// The rank this one waits for may itself wait for another. So whoever loses patience sends an alarm to all, and whoever
// waits and gets one does the same: those without an alarm are at fault, and the lowest of the others says so.
[[noreturn]] void give_up(double waited) {
  std::vector<bool> answered(static_cast<size_t>(world_size()), false);
  const auto others = [&](auto f) {
    for (int rank = 0; rank < world_size(); ++rank)
      if (rank != own_rank()) f(rank);
  };
  answered[static_cast<size_t>(own_rank())] = true;
  others([&](int rank) {
    MPI_Request request{};  // never waited for: the receiver may be dead
    MPI_Isend(nullptr, 0, MPI_BYTE, rank, alarm_tag, MPI_COMM_WORLD, &request);
  });
  for (const double start = now(); now() - start < answer_within;) {
    if (int rank = 0; alarm_from(rank)) {
      MPI_Recv(nullptr, 0, MPI_BYTE, rank, alarm_tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      answered[static_cast<size_t>(rank)] = true;
    } else {
      sleep_for(10'000'000);
    }
  }
  if (std::ranges::find(answered, true) - answered.begin() == own_rank()) {
    std::vector<int> missing;
    others([&](int rank) {
      if (!answered[static_cast<size_t>(rank)]) missing.push_back(rank);
    });
    fmt::print(
        stderr,
        "sextant: {} waited {:.0f} seconds for {}: it hangs, or its machine or network does; the job ends. Go on "
        "with --resume; a longer --mpi-timeout is for steps that take so long\n",
        names_of({own_rank()}), waited, missing.empty() ? "an answer, though all ranks are there" : names_of(missing));
  } else {
    for (const double start = now(); now() - start < answer_within;) sleep_for(100'000'000);  // it ends the job
  }
  MPI_Abort(MPI_COMM_WORLD, static_cast<int>(Status::environment));
  std::_Exit(static_cast<int>(Status::environment));
}

// MPI's own waiting spins, and would take the processor from the threads that compute meanwhile.
void wait_for(int count, MPI_Request* requests) {
  constexpr int tests_before_sleep = 100;
  constexpr long shortest = 20'000, longest = 500'000;  // nanoseconds
  long sleep = shortest;
  double waited = 0, last = now();
  for (int tests = 0;; ++tests) {
    int done = 0;
    MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE);
    if (done) return;
    if (tests < tests_before_sleep) {
      ::sched_yield();
      continue;
    }
    const double time = now();
    waited += std::min(1.0, time - last);  // more than that is no sleep of ours: the process was suspended
    last = time;
    if (int rank = 0; patience_is_over(waited) || alarm_from(rank)) give_up(waited);
    sleep_for(sleep);
    sleep = std::min(longest, sleep + sleep / 4);
  }
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
  hosts = mpi->gather(host_name());
  return mpi;
}

}  // namespace sextant
