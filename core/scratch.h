// Memory for intermediate results that a thread keeps between calls: it grows to the largest need and is then reused,
// so that steps after the first ask the system for nothing. Meant for thread_local variables.
#pragma once

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
    const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + page - 1) / page * page;
    if (bytes > bytes_ || data_ == nullptr) {
      bytes_ = 0;
      data_.reset();  // before the new is there, so that both are never held
      data_.reset(std::aligned_alloc(page, bytes < page ? page : bytes));
      if (data_ == nullptr) fail_environment("out of memory: {} bytes of scratch", bytes);
      bytes_ = bytes;
    }
    return static_cast<T*>(data_.get());
  }

 private:
  static constexpr size_t page = 4096;
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
  size_t bytes_ = 0;
};

}  // namespace sextant
