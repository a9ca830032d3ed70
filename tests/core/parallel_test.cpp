// Parallel loops: every chunk once, boundaries that do not depend on the threads, and refusals.
#include "core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/scratch.h"

namespace sextant {
namespace {

class ParallelTest : public testing::Test {
 protected:
  ~ParallelTest() override { set_threads(before_); }

 private:
  int before_ = threads();
};

TEST_F(ParallelTest, EveryChunkRunsOnce) {
  for (int count : {1, 2, 3, 7}) {
    set_threads(count);
    EXPECT_EQ(threads(), count);
    for (int64_t chunks : {0, 1, 2, 5, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(chunks));
      parallel_chunks(chunks, [&](int64_t chunk) { ++runs.at(static_cast<size_t>(chunk)); });
      for (int64_t chunk = 0; chunk < chunks; ++chunk)
        EXPECT_EQ(runs[static_cast<size_t>(chunk)], 1) << "chunk " << chunk << " of " << chunks;
    }
  }
}

TEST_F(ParallelTest, RangesAreTheSameForAnyThreads) {
  for (const auto& [elements, grain] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 4}, {1, 4}, {4, 4}, {5, 4}, {1003, 10}, {7, 100}}) {
    for (int count : {1, 2, 3}) {
      set_threads(count);
      std::mutex mutex;
      std::set<std::pair<int64_t, int64_t>> ranges;
      parallel_ranges(elements, grain, [&](int64_t begin, int64_t end) {
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(ranges.emplace(begin, end).second);
      });
      std::set<std::pair<int64_t, int64_t>> expected;
      for (int64_t begin = 0; begin < elements; begin += grain)
        expected.emplace(begin, begin + grain < elements ? begin + grain : elements);
      EXPECT_EQ(ranges, expected) << elements << " by " << grain << " with " << count << " threads";
    }
  }
}

TEST_F(ParallelTest, SeveralThreadsTakePart) {
  set_threads(2);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  parallel_chunks(8, [&](int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::lock_guard lock(mutex);
    seen.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(seen.size(), 2u);
}

TEST_F(ParallelTest, AnInnerLoopRunsInItsOwnThread) {
  set_threads(3);
  std::atomic<int> strayed = 0, ran = 0;
  parallel_chunks(6, [&](int64_t) {
    const std::thread::id outer = std::this_thread::get_id();
    parallel_chunks(5, [&](int64_t) {
      ++ran;
      if (std::this_thread::get_id() != outer) ++strayed;
    });
  });
  EXPECT_EQ(ran, 30);
  EXPECT_EQ(strayed, 0);
}

// Out of an OpenMP region it would end the program.
TEST_F(ParallelTest, WhatAChunkThrowsIsThrownToTheCaller) {
  for (int count : {1, 2, 7}) {
    set_threads(count);
    std::atomic<int> ran = 0;
    const auto loop = [&](int64_t bad) {
      parallel_chunks(1000, [&](int64_t chunk) {
        ++ran;
        if (chunk == bad || bad < 0) fail("chunk {} failed", chunk);
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      });
    };
    for (const int64_t bad : {int64_t{0}, int64_t{500}, int64_t{-1}}) {  // -1: all of them
      ran = 0;
      EXPECT_THROW(loop(bad), Error) << bad;
      EXPECT_LT(ran, 1000) << bad;  // the others stop, too
    }
    ran = 0;
    loop(1000);  // and the next loop is a loop again
    EXPECT_EQ(ran, 1000);
  }
}

// What the kernels' loops can meet: memory for a thread that the machine does not have.
TEST_F(ParallelTest, ScratchBeyondMemoryIsAnErrorOfTheEnvironment) {
  set_threads(2);
  std::atomic<int> ran = 0;
  const auto loop = [&] {
    parallel_chunks(8, [&](int64_t) {
      thread_local Scratch scratch;
      scratch.get<double>(int64_t{1} << 56);
      ++ran;
    });
  };
  try {
    loop();
    ADD_FAILURE() << "no machine has 2^59 bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::environment) << error.what();
  }
  EXPECT_EQ(ran, 0);
}

#ifdef __SANITIZE_THREAD__
// That the tests are silent under ThreadSanitizer means something only if it is not deaf: chunks that share a number,
// each too short for threads to meet by chance; and the same without the fault.
class ParallelDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  static void add_up(bool race) {
    set_threads(4);
    std::vector<double> sums(100);
    for (int round = 0; round < 10; ++round) {
      parallel_chunks(100, [&](int64_t chunk) { sums[race ? 0 : static_cast<size_t>(chunk)] += 1; });
      for (double& sum : sums) sum *= 2;  // after the join, before the next fork
    }
    std::exit(0);
  }
};

TEST_F(ParallelDeathTest, ThreadSanitizerSeesARaceBetweenChunks) {
  EXPECT_EXIT(add_up(true), testing::ExitedWithCode(66), "data race");
  EXPECT_EXIT(add_up(false), testing::ExitedWithCode(0), "");
}
#endif

TEST_F(ParallelTest, RefusesImpossibleCounts) {
  const int now = threads();
  EXPECT_GE(now, 1);
  EXPECT_THROW(set_threads(0), Error);
  EXPECT_THROW(set_threads(-1), Error);
  EXPECT_THROW(set_threads(1025), Error);
  EXPECT_EQ(threads(), now);
}

}  // namespace
}  // namespace sextant
