// SIGINT and SIGTERM as a flag to be looked at between steps, so that work can be finished and saved. A second signal
// kills as usual. Who has one passes on what came before it is gone.
#pragma once

#include <csignal>
#include <stdexcept>

namespace sextant {

// A signal came in the middle of something that can be taken up again.
struct Interrupted : std::runtime_error {
  explicit Interrupted(int number) : std::runtime_error("interrupted"), signal(number) {}
  int signal;
};

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  static int signal() { return received_; }  // 0: none came
  static void check() {                      // throws Interrupted when one did
    if (received_ != 0) throw Interrupted(received_);
  }

 private:
  static void handle(int number) { received_ = number; }
  static inline volatile std::sig_atomic_t received_ = 0;
  struct sigaction before_int_ {
  }, before_term_{};
};

}  // namespace sextant
