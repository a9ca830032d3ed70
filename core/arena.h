// Memory that is handed out in order and taken back all at once. Every tensor lives in an arena: a step's activations
// and gradients in the tape's, which is reset after each step, parameters in their model's, which lasts as long as it
// does. After the second step of equal shape a reset arena serves everything from one block, without asking the system.
#pragma once

#include <cstddef>
#include <vector>

namespace sextant {

class Arena {
 public:
  static constexpr size_t alignment = 64;  // a cache line, and the widest vector

  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // `bytes` of uninitialised memory, aligned; throws Error (environment) when the machine has no more.
  void* allocate(size_t bytes);

  // Takes everything back. Whatever was handed out is dead: under AddressSanitizer touching it is reported.
  void reset();

  // Scoped use: everything allocated after mark() is given back by rewind().
  struct Mark {
    size_t block = 0, used = 0;
  };
  Mark mark() const { return {current_, current_ < blocks_.size() ? blocks_[current_].used : 0}; }
  void rewind(Mark mark);

  size_t used() const;                   // bytes handed out now
  size_t peak() const { return peak_; }  // the most ever handed out
  size_t reserved() const;               // bytes held from the system
  size_t system_allocations() const { return system_allocations_; }

 private:
  struct Block {
    std::byte* data;
    size_t size, used;
  };
  void add_block(size_t size);
  void release(Block& block);

  std::vector<Block> blocks_;
  size_t current_ = 0;
  size_t peak_ = 0;
  size_t system_allocations_ = 0;
};

}  // namespace sextant
