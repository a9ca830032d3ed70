// Memory for intermediate results that a thread keeps between calls: it grows to the largest need and is then reused,
// so that steps after the first ask the system for nothing. Meant for thread_local variables.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "core/error.h"

namespace sextant {

class Scratch {
 public:
  // `count` uninitialised numbers, aligned to a page; what was there before is lost. Throws Error (environment) when
  // the machine has no more.
  template <class T>
  T* get(int64_t count) {
    const size_t need = static_cast<size_t>(count) * sizeof(T), unit = need < huge_page / 8 ? page : huge_page;
    const size_t bytes = (need + unit - 1) / unit * unit;
    if (bytes > bytes_ || data_ == nullptr) {
      bytes_ = 0;
      data_.reset();  // before the new is there, so that both are never held
      data_.reset(std::aligned_alloc(unit, bytes < page ? page : bytes));
      if (data_ == nullptr) fail_environment("out of memory: {} bytes of scratch", bytes);
      if (unit == huge_page) madvise(data_.get(), bytes, MADV_HUGEPAGE);  // a hint: fewer TLB misses
      bytes_ = bytes;
    }
    return static_cast<T*>(data_.get());
  }

 private:
  static constexpr size_t page = 4096, huge_page = size_t{2} << 20;
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
  size_t bytes_ = 0;
};

}  // namespace sextant
