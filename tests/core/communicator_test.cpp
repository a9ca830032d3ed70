// What several ranks do together, with ranks that are threads: sums along the tree to the last bit, errors that all of
// them learn of, values that must agree.
#include "core/communicator.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/random.h"
#include "tests/core/thread_ranks.h"

namespace sextant {
namespace {

using test::ThreadRanks;

// The definition, by recursion.
template <class T>
T tree(const std::vector<std::vector<T>>& values, size_t begin, size_t end, size_t i) {
  if (end - begin == 1) return values[begin][i];
  const size_t middle = (begin + end) / 2;
  return tree(values, begin, middle, i) + tree(values, middle, end, i);
}

template <class T>
void expect_tree_sums(int ranks, size_t count) {
  std::vector<std::vector<T>> values(static_cast<size_t>(ranks), std::vector<T>(count));
  for (size_t rank = 0; rank < values.size(); ++rank) {
    const Random random(rank, "values");
    for (size_t i = 0; i < count; ++i) {
      const double x = random.uniform(i) - 0.5;
      values[rank][i] = static_cast<T>(x * std::exp(20 * x));  // so that the order of a sum shows
    }
  }
  std::vector<std::vector<T>> sums = values;
  ThreadRanks::run(
      ranks, [&](Communicator& own) { sum_over_ranks<T>(own, std::span(sums[static_cast<size_t>(own.rank())])); });
  for (const std::vector<T>& sum : sums)
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(sum[i], tree(values, 0, values.size(), i)) << ranks << " ranks, " << i;
}

TEST(Communicator, SumsAlongTheTree) {
  for (int ranks : {1, 2, 4, 8})
    for (size_t count : {0, 1, 2, 3, 7, 1000}) {
      expect_tree_sums<float>(ranks, count);
      expect_tree_sums<double>(ranks, count);
    }
  expect_tree_sums<float>(4, 600'001);  // in more than one piece
}

TEST(Communicator, AnErrorOfOneRankIsThrownByAll) {
  std::vector<std::string> messages(4);
  std::vector<Status> statuses(4);
  ThreadRanks::run(4, [&](Communicator& ranks) {
    try {
      together(ranks, [&] {
        if (ranks.rank() >= 2) fail_environment("no room for {}", ranks.rank());
      });
    } catch (const AgreedError& error) {
      messages[static_cast<size_t>(ranks.rank())] = error.what();
      statuses[static_cast<size_t>(ranks.rank())] = error.status();
    }
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "rank 2: no room for 2");
  for (const Status status : statuses) EXPECT_EQ(status, Status::environment);
}

TEST(Communicator, AnErrorOfAllRanksNamesNone) {
  ThreadRanks::run(2, [&](Communicator& ranks) {
    try {
      together(ranks, [] { fail("bad"); });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const AgreedError& error) {
      EXPECT_STREQ(error.what(), "bad");
    }
  });
}

TEST(Communicator, OnFirstRunsOnRankZeroAlone) {
  std::vector<int> ran(4, 0);
  ThreadRanks::run(4, [&](Communicator& ranks) { on_first(ranks, [&] { ++ran[static_cast<size_t>(ranks.rank())]; }); });
  EXPECT_EQ(ran, (std::vector<int>{1, 0, 0, 0}));
}

TEST(Communicator, DisagreementNamesTheValueAndTheRank) {
  ThreadRanks::run(4, [&](Communicator& ranks) {
    EXPECT_NO_THROW(require_agreement(ranks, {{"a", "same"}}));
    try {
      require_agreement(ranks, {{"a", "same"}, {"weights", ranks.rank() == 3 ? "other" : "these"}});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const AgreedError& error) {
      const std::string message = error.what();
      for (const char* part : {"weights", "rank 3", "other", "these"})
        EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  });
}

TEST(Communicator, AProcessAloneIsItsOwnWorld) {
  EXPECT_EQ(alone().size(), 1);
  EXPECT_EQ(alone().gather("x"), std::vector<std::string>{"x"});
  std::vector<float> x{1, 2};
  sum_over_ranks<float>(alone(), x);
  EXPECT_EQ(x, (std::vector<float>{1, 2}));
  EXPECT_THROW(together(alone(), [] { fail("bad"); }), Error);
}

}  // namespace
}  // namespace sextant
