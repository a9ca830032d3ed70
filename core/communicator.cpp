#include "core/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace sextant {

std::unique_ptr<Communicator> connect_by_mpi();  // core/communicator_mpi.cpp, where MPI is there

namespace {

class Alone final : public Communicator {
 public:
  Alone() : Communicator(0, 1) {}
  std::vector<std::string> gather(const std::string& text) override { return {text}; }
  void exchange(int, std::span<const std::byte>, std::span<std::byte>) override {
    assert(false && "a single process has no partner");
  }
  void abort(int status) override { std::_Exit(status); }
};

// What mpirun (or Slurm's srun) tells every process it starts; null when this one was started by hand.
const char* launcher_says(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const char* value = std::getenv(name)) return value;
  return nullptr;
}

std::unique_ptr<Communicator> connected;

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

#ifndef SEXTANT_MPI
std::unique_ptr<Communicator> connect_by_mpi() {
  const char* size = launcher_says({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"});
  if (size == nullptr || std::strtol(size, nullptr, 10) <= 1) return std::make_unique<Alone>();
  fail_environment(
      "started as one of {} processes, but this program was built without MPI: install libopenmpi-dev and build again",
      size);
}
#endif

Communicator& alone() {
  static Alone self;
  return self;
}

Communicator& world() {
  if (launcher_says({"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) == nullptr) return alone();
  if (connected == nullptr) connected = connect_by_mpi();
  return *connected;
}

// Read by core/communicator_mpi.cpp.
std::atomic<bool (*)()> told_to_stop{nullptr};
std::atomic<double> longest_wait{0};

Patience::Patience(double seconds, bool (*stopping)()) {
  longest_wait = seconds;
  told_to_stop = stopping;
}
Patience::~Patience() {
  longest_wait = 0;
  told_to_stop = nullptr;
}

bool world_started() {
  return connected != nullptr && connected->size() > 1;
}

bool first_rank() {
  const char* rank = launcher_says({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"});
  return rank == nullptr || std::strtol(rank, nullptr, 10) == 0;
}

template <class T>
void sum_over_ranks(Communicator& ranks, std::span<T> x) {
  constexpr size_t piece = size_t{1} << 18;  // numbers at a time
  if (ranks.size() == 1) return;
  assert((ranks.size() & (ranks.size() - 1)) == 0);
  thread_local std::vector<T> received;
  received.resize(std::min(piece, x.size()));
  const auto bytes = [](std::span<T> part) { return std::as_writable_bytes(part); };
  for (size_t start = 0; start < x.size(); start += piece) {
    // Halving: with the neighbour at distance 1, 2, 4, ... each keeps one half of what it has, and adds the other's.
    std::span<T> mine = x.subspan(start, std::min(piece, x.size() - start));
    std::array<std::span<T>, 32> given;
    size_t level = 0;
    for (int distance = 1; distance < ranks.size(); distance *= 2, ++level) {
      const bool upper = (ranks.rank() & distance) != 0;
      const size_t half = mine.size() / 2;
      std::span<T> low = mine.first(half), high = mine.subspan(half);
      mine = upper ? high : low;
      given[level] = upper ? low : high;
      const std::span<T> theirs = std::span(received).first(mine.size());
      // The halves may differ by one number, so each way has its own size.
      ranks.exchange(ranks.rank() ^ distance, bytes(given[level]), bytes(theirs));
      for (size_t i = 0; i < mine.size(); ++i) mine[i] += theirs[i];
    }
    // And back: each gives what it has summed for the sums it gave away.
    for (int distance = ranks.size() / 2; distance > 0; distance /= 2) {
      --level;
      ranks.exchange(ranks.rank() ^ distance, bytes(mine), bytes(given[level]));
      mine = {std::min(mine.data(), given[level].data()), mine.size() + given[level].size()};
    }
  }
}
template void sum_over_ranks(Communicator& ranks, std::span<float> x);
template void sum_over_ranks(Communicator& ranks, std::span<double> x);

void together(Communicator& ranks, const std::function<void()>& f) {
  if (ranks.size() == 1) return f();
  std::string trouble;  // the status as one character, then the message
  try {
    f();
  } catch (const Error& error) {
    trouble = static_cast<char>('0' + static_cast<int>(error.status())) + std::string(error.what());
  } catch (const std::bad_alloc&) {
    trouble = static_cast<char>('0' + static_cast<int>(Status::environment)) + std::string("out of memory");
  }
  const std::vector<std::string> all = ranks.gather(trouble);
  const auto found = std::ranges::find_if(all, [](const std::string& each) { return !each.empty(); });
  if (found == all.end()) return;
  const bool everyone = std::ranges::all_of(all, [&](const std::string& each) { return each == *found; });
  throw AgreedError(static_cast<Status>(found->front() - '0'),
                    everyone ? found->substr(1) : fmt::format("rank {}: {}", found - all.begin(), found->substr(1)));
}

void on_first(Communicator& ranks, const std::function<void()>& f) {
  together(ranks, [&] {
    if (ranks.first()) f();
  });
}

int ranks_on_this_host(Communicator& ranks) {
  return static_cast<int>(std::ranges::count(ranks.gather(host_name()), host_name()));
}

void require_agreement(Communicator& ranks, const std::vector<NamedValue>& values) {
  if (ranks.size() == 1) return;
  const std::vector<std::string> hosts = ranks.gather(host_name());
  for (const NamedValue& each : values) {
    const std::vector<std::string> all = ranks.gather(each.value);
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank] == all[0]) continue;
      throw AgreedError(
          Status::bad_input,
          fmt::format("the {} of rank {} ({}) is {}, that of rank 0 ({}) is {}: all ranks must have the same",
                      each.name, rank, hosts[rank], all[rank], hosts[0], all[0]));
    }
  }
}

}  // namespace sextant
