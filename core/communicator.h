// Several processes that work as one: ranks 0 .. size - 1, started by `mpirun -np N`. Everything that goes between
// processes goes through here. A program that was started alone is rank 0 of 1, and all of this then does nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"

namespace sextant {

class Communicator {
 public:
  virtual ~Communicator() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }
  bool first() const { return rank_ == 0; }

  // The following are collective: every rank calls them, in the same order. They may be called from any thread, but
  // from one at a time.

  // Everyone's text, by rank; any bytes.
  virtual std::vector<std::string> gather(const std::string& text) = 0;
  // Sends to `partner` and receives as many bytes from it, which exchanges with this rank at the same time.
  virtual void exchange(int partner, std::span<const std::byte> send, std::span<std::byte> receive) = 0;

  // Ends all ranks at once, without agreement: for an error that only this one knows of.
  [[noreturn]] virtual void abort(int status) = 0;

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_, size_;
};

Communicator& alone();  // this process only
// All processes that mpirun started together. Throws Error (environment) when there are several and the program was
// built without MPI.
Communicator& world();
// While one lives, a wait for another rank is not for ever. After `seconds` (0: no limit), or 45 from when stopping()
// says that this process was told to stop, the job ends with status 3 and one line that names the ranks that do not
// answer: they hang or are dead. Time in which this process was suspended does not count. For what keeps all ranks
// equally busy, as one that computes for so long is not told from one that hangs.
class Patience {
 public:
  Patience(double seconds, bool (*stopping)());
  ~Patience();
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;
};
bool world_started();  // whether world() has been called and connects several processes
bool first_rank();     // whether this is rank 0; asks nobody, so that it can be called before world()

// x = the sum of x over all ranks (a power of two of them), rank by rank along the binary tree: (0 + 1) + (2 + 3), ...
// Each rank sums a share, and the shares are exchanged again: 2 (size - 1) / size of the bytes go each way. Collective.
template <class T>
void sum_over_ranks(Communicator& ranks, std::span<T> x);

// Runs f on every rank. Where it throws Error on any, all of them throw, with the message of the lowest such rank.
// Collective.
void together(Communicator& ranks, const std::function<void()>& f);
// The same of what rank 0 alone does, such as writing files.
void on_first(Communicator& ranks, const std::function<void()>& f);

// An error that all ranks throw alike: one of them tells it.
class AgreedError : public Error {
 public:
  using Error::Error;
};

int ranks_on_this_host(Communicator& ranks);  // this one included; collective

// Throws AgreedError unless all ranks give the same values; it names the first that differs, a rank, its host and both
// values. Collective.
struct NamedValue {
  std::string name, value;
};
void require_agreement(Communicator& ranks, const std::vector<NamedValue>& values);

}  // namespace sextant
