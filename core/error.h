// The one exception type of the project. A message is one line that says what is wrong, where (file, offset, key, both
// shapes) and what would be right. Checked at the boundary: files, arguments, shapes; inside, `assert`.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace sextant {

// The exit statuses of the program.
enum class Status : int { done = 0, check_failed = 1, bad_input = 2, environment = 3 };

class Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  Status status() const { return status_; }

 private:
  Status status_;
};

// Bad arguments or bad input: the caller can mend it.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(Status::bad_input, fmt::format(format, std::forward<Args>(args)...));
}

// The machine cannot do it: out of memory, disk full, a missing program.
template <class... Args>
[[noreturn]] void fail_environment(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(Status::environment, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) fail(format, std::forward<Args>(args)...);
}

}  // namespace sextant
