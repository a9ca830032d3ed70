// SIGINT and SIGTERM as a flag to be looked at between steps, so that work can be finished and saved. A second signal
// kills as usual.
#pragma once

#include <csignal>

namespace sextant {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  static int signal() { return received_; }  // 0: none came

 private:
  static void handle(int number) { received_ = number; }
  static inline volatile std::sig_atomic_t received_ = 0;
  struct sigaction before_int_ {
  }, before_term_{};
};

}  // namespace sextant
