#include "experiments/interrupt.h"

namespace sextant {

Interrupt::Interrupt() {
  received_ = 0;
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  ::sigaction(SIGINT, &action, &before_int_);
  ::sigaction(SIGTERM, &action, &before_term_);
}

Interrupt::~Interrupt() {
  received_ = 0;
  ::sigaction(SIGINT, &before_int_, nullptr);
  ::sigaction(SIGTERM, &before_term_, nullptr);
}

}  // namespace sextant
