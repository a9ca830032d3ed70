// Batches and evaluation windows, on corpora small enough to see every token.
#include "data/batch.h"

#include <numeric>
#include <set>

#include "tests/data/temporary.h"

namespace sextant {
namespace {

// Train: runs of 5, 0 and 7 tokens that count from 0; validation: 3 tokens 100, 101, 102, 16 bits each.
Corpus counting() {
  auto bytes = std::make_shared<std::vector<uint8_t>>(12);
  std::iota(bytes->begin(), bytes->end(), uint8_t{0});
  auto words = std::make_shared<std::vector<uint16_t>>(std::vector<uint16_t>{300, 301, 302});
  return Corpus("counting", TokenKind::bytes, 512, "", "by hand",
                {{"a", Split::train, bytes->data(), 5, 1, bytes},
                 {"b", Split::train, bytes->data(), 0, 1, bytes},
                 {"v", Split::validation, words->data(), 3, 2, words},
                 {"c", Split::train, bytes->data() + 5, 7, 1, bytes}});
}

TEST(Corpus, ReadsAcrossRunsAndNeverBeyondASplit) {
  const Corpus corpus = counting();
  EXPECT_EQ(corpus.size(Split::train), 12);
  EXPECT_EQ(corpus.size(Split::validation), 3);
  EXPECT_EQ(corpus.size(Split::test), 0);
  for (int64_t offset = 0; offset <= 12; ++offset) {
    for (int64_t count = 0; offset + count <= 12; ++count) {
      std::vector<int32_t> out(static_cast<size_t>(count)), expected(out.size());
      corpus.read(Split::train, offset, out);
      std::iota(expected.begin(), expected.end(), static_cast<int32_t>(offset));
      ASSERT_EQ(out, expected) << offset << " " << count;
    }
  }
  std::vector<int32_t> three(3), four(4);
  corpus.read(Split::validation, 0, three);
  EXPECT_EQ(three, (std::vector<int32_t>{300, 301, 302}));
  EXPECT_ERROR(corpus.read(Split::validation, 0, four), "counting", "[0, 4)", "validation", "3 tokens");
  EXPECT_ERROR(corpus.read(Split::validation, 1, three), "[1, 4)");
  EXPECT_ERROR(corpus.read(Split::validation, -1, three), "[-1, 2)");
  EXPECT_EQ(corpus.files()[3].offset, 5);
}

TEST(Batches, TargetsFollowInputs) {
  const Corpus corpus = counting();
  const Batches batches(corpus, Split::train, 3, 4, 7);
  Batch batch;
  batches.fill(0, batch);
  EXPECT_EQ(batch.sequences, 3);
  EXPECT_EQ(batch.length, 4);
  ASSERT_EQ(batch.inputs.size(), 12u);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(batch.targets[i], batch.inputs[i] + 1);
    if (i % 4 > 0) {
      EXPECT_EQ(batch.inputs[i], batch.inputs[i - 1] + 1);
    }
  }
}

TEST(Batches, AFunctionOfSeedAndStep) {
  const Corpus corpus = counting();
  Batch a, b;
  const auto inputs = [&](uint64_t seed, int64_t step, Batch& out) {
    Batches(corpus, Split::train, 4, 3, seed).fill(step, out);
    return out.inputs;
  };
  EXPECT_EQ(inputs(1, 5, a), inputs(1, 5, b));
  EXPECT_NE(inputs(1, 5, a), inputs(1, 6, b));
  EXPECT_NE(inputs(1, 5, a), inputs(2, 5, b));
  const int32_t* place = a.inputs.data();
  inputs(1, 9, a);
  EXPECT_EQ(a.inputs.data(), place);  // no allocation the second time
}

TEST(Batches, EveryPlaceIsAsLikelyAsAnyOther) {
  const Corpus corpus = counting();
  const Batches batches(corpus, Split::train, 1, 4, 3);
  std::vector<int> seen(12);
  Batch batch;
  const int draws = 8000;
  for (int step = 0; step < draws; ++step) {
    batches.fill(step, batch);
    ++seen[static_cast<size_t>(batch.inputs[0])];
  }
  for (size_t place = 0; place < 12; ++place) {
    if (place < 8) {  // 5 standard deviations
      EXPECT_NEAR(seen[place], draws / 8, 150) << place;
    }
    if (place >= 8) {
      EXPECT_EQ(seen[place], 0) << place;
    }
  }
}

TEST(Batches, TheLongestContextAndOneMore) {
  const Corpus corpus = counting();
  Batch batch;
  Batches(corpus, Split::train, 1, 11, 1).fill(0, batch);
  EXPECT_EQ(batch.inputs.front(), 0);
  EXPECT_EQ(batch.targets.back(), 11);
  EXPECT_ERROR(Batches(corpus, Split::train, 1, 12, 1), "train", "12 tokens", "13");
  EXPECT_ERROR(Batches(corpus, Split::test, 1, 1, 1), "test", "0 tokens");
  EXPECT_ERROR(Batches(corpus, Split::train, 0, 1, 1), "0");
  EXPECT_ERROR(Batches(corpus, Split::train, 1, 0, 1), "0");
}

TEST(EvaluationOffsets, EvenlySpacedFromFirstToLast) {
  const Corpus corpus = counting();
  EXPECT_EQ(evaluation_offsets(corpus, Split::train, 3, 1), (std::vector<int64_t>{0}));
  EXPECT_EQ(evaluation_offsets(corpus, Split::train, 3, 3), (std::vector<int64_t>{0, 4, 8}));
  EXPECT_EQ(evaluation_offsets(corpus, Split::train, 11, 2), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(evaluation_offsets(corpus, Split::train, 1, 4), (std::vector<int64_t>{0, 3, 6, 10}));
  EXPECT_ERROR(evaluation_offsets(corpus, Split::train, 12, 1), "12 tokens", "13");
  Batch window;
  read_window(corpus, Split::train, 8, 3, window);
  EXPECT_EQ(window.inputs, (std::vector<int32_t>{8, 9, 10}));
  EXPECT_EQ(window.targets, (std::vector<int32_t>{9, 10, 11}));
}

}  // namespace
}  // namespace sextant
