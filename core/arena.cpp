#include "core/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "core/error.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace sextant {

namespace {
constexpr size_t first_block = size_t{1} << 20;
constexpr size_t huge_page = size_t{2} << 20;
size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}
}  // namespace

Arena::~Arena() {
  for (Block& block : blocks_) release(block);
}

void Arena::release(Block& block) {
  ASAN_UNPOISON_MEMORY_REGION(block.data, block.size);
  std::free(block.data);
}

void Arena::add_block(size_t size) {
  const size_t unit = size >= huge_page ? huge_page : 4096;
  size = round_up(size, unit);
  auto* data = static_cast<std::byte*>(std::aligned_alloc(unit, size));
  if (data == nullptr)
    fail_environment(
        "out of memory: {} MiB more could not be had, {} MiB are in use; lower the batch, the context or the width",
        size >> 20, reserved() >> 20);
  ++system_allocations_;
  // Fewer page faults and TLB misses on the large blocks; only a hint, so a refusal changes nothing.
  if (unit == huge_page) madvise(data, size, MADV_HUGEPAGE);
  ASAN_POISON_MEMORY_REGION(data, size);
  blocks_.push_back({data, size, 0});
}

void* Arena::allocate(size_t bytes) {
  // One more line than asked for keeps an empty tensor's pointer its own, and lets AddressSanitizer see an overrun.
  const size_t need = round_up(bytes, alignment) + alignment;
  while (current_ < blocks_.size() && blocks_[current_].size - blocks_[current_].used < need) ++current_;
  if (current_ == blocks_.size()) add_block(std::max({need, first_block, reserved()}));
  Block& block = blocks_[current_];
  std::byte* result = block.data + block.used;
  block.used += need;
  ASAN_UNPOISON_MEMORY_REGION(result, bytes);
  peak_ = std::max(peak_, used());
  return result;
}

void Arena::reset() {
  // Several blocks mean that the step outgrew the arena: one block of the sum serves the next step whole.
  if (blocks_.size() > 1) {
    const size_t total = reserved();
    for (Block& block : blocks_) release(block);
    blocks_.clear();
    current_ = 0;
    add_block(total);
  }
  rewind({0, 0});
}

void Arena::rewind(Mark mark) {
  for (size_t index = mark.block; index < blocks_.size(); ++index) {
    Block& block = blocks_[index];
    const size_t keep = index == mark.block ? mark.used : 0;
    if (block.used > keep) ASAN_POISON_MEMORY_REGION(block.data + keep, block.used - keep);
    block.used = keep;
  }
  current_ = mark.block;
}

size_t Arena::used() const {
  size_t bytes = 0;
  for (const Block& block : blocks_) bytes += block.used;
  return bytes;
}

size_t Arena::reserved() const {
  size_t bytes = 0;
  for (const Block& block : blocks_) bytes += block.size;
  return bytes;
}

}  // namespace sextant
