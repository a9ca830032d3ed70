// Parallel loops over fixed chunks. The chunk boundaries depend on the problem alone, never on the number of threads,
// and whoever reduces over chunks does so in their order: hence the same bits for any number of threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

namespace sextant {

int threads();                // how many threads loops use; all the machine's at start
void set_threads(int count);  // throws Error unless 1 <= count <= 1024

// ThreadSanitizer knows nothing of libgomp, which is not built for it. Told where threads fork and join, and kept out
// of the function through which the compiler hands them the loop's variables, it raises no false alarm and still sees
// races within f. There each thread does all of its own share before any helps another: on a busy machine one thread
// would often do every chunk, and a race between chunks show only now and then.
#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_acquire(void* order);
extern "C" void __tsan_release(void* order);
#define SEXTANT_HIDDEN_FROM_TSAN __attribute__((no_sanitize("thread")))
#else
#define SEXTANT_HIDDEN_FROM_TSAN
#endif

// Which thread does which chunk. Each has a contiguous share and begins with it, so that loop after loop over the same
// rows finds them in the same core's cache; who is done takes from the others' shares.
class ChunkShares {
 public:
  ChunkShares(int64_t chunks, int64_t threads) : count_(std::min<int64_t>({threads, chunks, most})) {
    for (int64_t n = 0; n < count_; ++n) {
      shares_[n].next.store(chunks * n / count_, std::memory_order_relaxed);
      shares_[n].end = chunks * (n + 1) / count_;
    }
  }
  // An exception must not leave an OpenMP region: the first one is kept for rethrow(), and the chunks that nobody has
  // begun are dropped.
  template <class F>
  void work(int64_t thread, F& f) noexcept {
    work(thread, f, count_);
  }
  // The same of this thread's share and those after it, `shares` in all.
  template <class F>
  void work(int64_t thread, F& f, int64_t shares) noexcept {
    try {
      for (int64_t n = 0; n < shares; ++n) {
        Share& share = shares_[(thread + n) % count_];
        for (int64_t chunk = take(share); chunk < share.end; chunk = take(share)) f(chunk);
      }
    } catch (...) {
      fail();
    }
  }
  void rethrow() const {  // after the region
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void fail() noexcept;  // within a handler
  static constexpr int64_t most = 64;
  struct alignas(64) Share {
    std::atomic<int64_t> next;
    int64_t end;
  };
  static int64_t take(Share& share) { return share.next.fetch_add(1, std::memory_order_relaxed); }
  Share shares_[most];
  const int64_t count_;
  std::atomic<bool> failed_ = false;
  std::exception_ptr failure_;
};

// f(chunk) for each chunk in [0, chunks). f writes only what belongs to its chunk. What it throws (out of memory, say)
// is thrown on when all threads have stopped; some chunks are not done then.
template <class F>
SEXTANT_HIDDEN_FROM_TSAN void parallel_chunks(int64_t chunks, F&& f) {
  if (chunks <= 1 || threads() == 1 || omp_in_parallel()) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) f(chunk);
    return;
  }
  ChunkShares shares(chunks, threads());
#ifndef __SANITIZE_THREAD__
#pragma omp parallel num_threads(threads())
  shares.work(omp_get_thread_num(), f);
#else
  uint64_t fork = 0, join = 0;
  __tsan_release(&fork);
#pragma omp parallel num_threads(threads())
  {
    __tsan_acquire(&fork);
    shares.work(omp_get_thread_num(), f, 1);
#pragma omp barrier
    shares.work(omp_get_thread_num(), f);
    __tsan_release(&join);
  }
  __tsan_acquire(&join);
#endif
  shares.rethrow();
}

// f(begin, end) over [0, count) in chunks of `grain`.
template <class F>
void parallel_ranges(int64_t count, int64_t grain, F&& f) {
  const int64_t chunks = (count + grain - 1) / grain;
  parallel_chunks(chunks, [&](int64_t chunk) { f(chunk * grain, std::min(count, (chunk + 1) * grain)); });
}

}  // namespace sextant
