// The arena: alignment, reuse without asking the system again, scoped use.
#include "core/arena.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "core/error.h"

namespace sextant {
namespace {

void step(Arena& arena, size_t scale) {
  for (size_t i = 0; i < 200; ++i) {
    void* memory = arena.allocate(i * scale);
    std::memset(memory, 0x5A, i * scale);
  }
}

TEST(ArenaTest, AlignedAndApart) {
  Arena arena;
  std::vector<std::pair<unsigned char*, size_t>> pieces;
  for (size_t bytes : {0, 1, 63, 64, 65, 100000, 0, 3 << 20, 7}) {
    auto* piece = static_cast<unsigned char*>(arena.allocate(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece) % Arena::alignment, 0u) << bytes;
    std::memset(piece, static_cast<int>(pieces.size()), bytes);
    for (const auto& [other, size] : pieces) EXPECT_NE(other, piece) << "an empty piece has an address of its own";
    pieces.emplace_back(piece, bytes);
  }
  for (size_t i = 0; i < pieces.size(); ++i)
    for (size_t byte = 0; byte < pieces[i].second; ++byte) ASSERT_EQ(pieces[i].first[byte], i);
}

TEST(ArenaTest, AfterTheSecondStepTheSystemIsNotAsked) {
  Arena arena;
  EXPECT_EQ(arena.system_allocations(), 0u);
  step(arena, 1000);  // about 20 MB: several blocks
  EXPECT_GT(arena.system_allocations(), 1u);
  const size_t used = arena.used();
  EXPECT_GE(used, 1000u * 199 * 200 / 2);
  arena.reset();
  EXPECT_EQ(arena.used(), 0u);
  step(arena, 1000);
  arena.reset();
  const size_t asked = arena.system_allocations(), reserved = arena.reserved();
  for (int i = 0; i < 5; ++i) {
    step(arena, 1000);
    EXPECT_EQ(arena.used(), used);
    arena.reset();
  }
  step(arena, 100);  // a smaller one neither
  EXPECT_EQ(arena.system_allocations(), asked);
  EXPECT_EQ(arena.reserved(), reserved);
  EXPECT_GE(reserved, arena.peak());
  EXPECT_EQ(arena.peak(), used);
}

TEST(ArenaTest, TheSameStepGetsTheSameAddresses) {
  Arena arena;
  step(arena, 1000);
  arena.reset();
  std::vector<void*> first, second;
  for (size_t i = 0; i < 200; ++i) first.push_back(arena.allocate(1000 * i));
  arena.reset();
  for (size_t i = 0; i < 200; ++i) second.push_back(arena.allocate(1000 * i));
  EXPECT_EQ(first, second);
}

TEST(ArenaTest, RewindGivesBackWhatCameAfterTheMark) {
  Arena arena;
  auto* kept = static_cast<unsigned char*>(arena.allocate(1000));
  std::memset(kept, 0x11, 1000);
  const size_t used = arena.used();
  const Arena::Mark mark = arena.mark();
  void* first = arena.allocate(500);
  step(arena, 1000);  // into further blocks
  const size_t asked = arena.system_allocations();
  arena.rewind(mark);
  EXPECT_EQ(arena.used(), used);
  EXPECT_EQ(arena.allocate(500), first);
  arena.rewind(mark);
  step(arena, 1000);
  EXPECT_EQ(arena.system_allocations(), asked) << "what was given back is used again";
  arena.rewind(mark);
  for (size_t byte = 0; byte < 1000; ++byte) ASSERT_EQ(kept[byte], 0x11);
}

TEST(ArenaTest, MarkOfAnUntouchedArena) {
  Arena arena;
  const Arena::Mark mark = arena.mark();
  arena.allocate(10);
  arena.rewind(mark);
  EXPECT_EQ(arena.used(), 0u);
  arena.reset();
  EXPECT_EQ(arena.used(), 0u);
}

TEST(ArenaTest, NestedMarks) {
  Arena arena;
  arena.allocate(100);
  const Arena::Mark outer = arena.mark();
  const size_t at_outer = arena.used();
  arena.allocate(5 << 20);
  const Arena::Mark inner = arena.mark();
  const size_t at_inner = arena.used();
  arena.allocate(9 << 20);
  arena.rewind(inner);
  EXPECT_EQ(arena.used(), at_inner);
  arena.rewind(outer);
  EXPECT_EQ(arena.used(), at_outer);
}

TEST(ArenaTest, OutOfMemoryIsAnEnvironmentError) {
  Arena arena;
  arena.allocate(100);
  try {
    arena.allocate(size_t{1} << 60);
    FAIL() << "an exbibyte was granted";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::environment);
    EXPECT_NE(std::string(error.what()).find("out of memory"), std::string::npos) << error.what();
  }
  EXPECT_NE(arena.allocate(100), nullptr) << "the arena goes on";
}

}  // namespace
}  // namespace sextant
