// Lesson 2: why the gradient of a shared value adds up.
//
// loss(x) = x y + sin x reads x twice. Move x by h: the product moves by h y, the sine by h cos x, and the loss by
// both. So each reader owes x a contribution, and dLoss/dx is their sum. A tape that overwrites instead of adding keeps
// only the last one it visits: the most common mistake in a hand-written backward. We watch the contributions arrive,
// and then make that mistake on purpose.
#include <sextant/autograd/elementwise.h>
#include <sextant/autograd/fault.h>

#include <cmath>
#include <cstdio>

using namespace sextant;

constexpr double at_x = 0.7, at_y = 2.0;

struct Watch : Tape::Witness {
  void contributed(const char* operation, int input, const Tensor& before, const Tensor& gradient) override {
    std::printf("  %-8s contributes to its input %d: %+.6f -> %+.6f\n", operation, input,
                before.defined() ? before.item() : 0.0, gradient.item());
  }
};

double gradient_of_x(Tape::Witness* witness) {
  Tape tape;
  tape.set_witness(witness);
  const Variable x = tape.variable(full(tape.arena(), {}, at_x, DType::f64), "x");
  const Variable y = tape.constant(full(tape.arena(), {}, at_y, DType::f64), "y");
  const Variable product = multiply(x, y), sine = sin(x);  // in this order: C++ evaluates arguments in any
  tape.backward(add(product, sine));
  return x.gradient().item();
}

int main() {
  const auto loss = [](double x) { return x * at_y + std::sin(x); };
  const double numeric = (loss(at_x + 1e-5) - loss(at_x - 1e-5)) / 2e-5;
  std::puts("The backward, last operation first:");
  Watch watch;
  const double analytic = gradient_of_x(&watch);
  std::printf("dloss/dx: tape %.9f, y + cos x %.9f, difference quotient %.9f\n", analytic, at_y + std::cos(at_x),
              numeric);

  // The backward visits sin first and multiply last: if multiply overwrites, the sine's share is gone.
  Fault forgets("multiply", 0, FaultKind::forgotten_accumulation);
  const double wrong = gradient_of_x(&forgets);
  std::printf("with %s: %.9f, which is y alone\n", forgets.text().c_str(), wrong);
  std::puts("Try: x x instead of x y. Which contributions are there now?");
  return std::abs(analytic - numeric) < 1e-9 && std::abs(wrong - at_y) < 1e-12 ? 0 : 1;
}
