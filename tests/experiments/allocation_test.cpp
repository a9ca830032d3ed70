// After the second step training asks the system for no memory: every allocation of the process is counted over the
// steps 3 to 10.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "core/arena.h"
#include "core/parallel.h"
#include "experiments/trainer.h"
#include "tests/experiments/program.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define COUNTING 0
#else
#define COUNTING 1
#endif

namespace {
std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};
void count() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

#if COUNTING
// Standing in front of the C library's: operator new and the arenas end here, too.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) noexcept {
  count();
  return __libc_malloc(size);
}
void* calloc(size_t number, size_t size) noexcept {
  count();
  return __libc_calloc(number, size);
}
void* realloc(void* old, size_t size) noexcept {
  count();
  return __libc_realloc(old, size);
}
void* aligned_alloc(size_t alignment, size_t size) noexcept {
  count();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** result, size_t alignment, size_t size) noexcept {
  count();
  *result = __libc_memalign(alignment, size);
  return *result == nullptr ? ENOMEM : 0;
}
}
#endif

namespace sextant::test {
namespace {

class Allocation : public testing::TestWithParam<std::string> {};

TEST_P(Allocation, NoneAfterTheSecondStep) {
  // The count is taken in a malloc of this file's own, which a sanitizer's would displace.
  if (!COUNTING) GTEST_SKIP() << "the sanitizer has the allocator";
  set_threads(1);  // with more, a thread's own buffers grow when it first gets work, which may be later
  const Folder folder;
  TrainOptions options;
  options.data = folder.write("text.txt", sample_text(4000));
  options.out = folder.path("run");
  options.position = GetParam();
  options.layers = 2;
  options.width = 32;
  options.context = 48;
  options.batch = 4;
  options.accumulate = 2;
  options.steps = 20;
  options.warmup = 2;
  const std::unique_ptr<Trainer> trainer = Trainer::start(options, "a test");
  for (int step = 1; step <= 2; ++step) trainer->step();
  allocations = 0;
  counting = true;
  for (int step = 3; step <= 10; ++step) trainer->step();
  counting = false;
  EXPECT_EQ(allocations.load(), 0);
  // That the counter counts.
  counting = true;
  std::free(std::malloc(16));
  counting = false;
  EXPECT_GE(allocations.load(), 1);
}

INSTANTIATE_TEST_SUITE_P(Strategies, Allocation,
                         testing::Values("none", "rope", "alibi", "rope+affine", "jordan(order=2)", "pj-bias",
                                         "pj-rotary", "transport(kind=learned,values=1)", "transport(kind=path)",
                                         "gate"),
                         [](const auto& instance) {
                           std::string name;
                           for (const char c : instance.param)
                             if (std::isalnum(static_cast<unsigned char>(c))) name += c;
                           return name;
                         });

}  // namespace
}  // namespace sextant::test
