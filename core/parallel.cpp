#include "core/parallel.h"

#include "core/error.h"

namespace sextant {

namespace {
int thread_count = omp_get_num_procs();
}

int threads() {
  return thread_count;
}

void set_threads(int count) {
  require(count >= 1 && count <= 1024, "threads is {}, must be between 1 and 1024", count);
  thread_count = count;
}

void ChunkShares::fail() noexcept {
  if (!failed_.exchange(true)) failure_ = std::current_exception();
  for (int64_t n = 0; n < count_; ++n) shares_[n].next.store(shares_[n].end, std::memory_order_relaxed);
}

}  // namespace sextant
