// Lesson 1: a scalar on a tape.
//
// A tape is a list. Running an operation appends a line: its name, its value, and a function that knows its backward,
// which gets dLoss/doutput and adds what follows from it to dLoss/dinput. backward() walks the list from the end: that
// is the whole of reverse-mode differentiation. Here an operation of our own, the cube, stands among others.
#include <sextant/autograd/elementwise.h>
#include <sextant/autograd/tape.h>

#include <cmath>
#include <cstdio>

using namespace sextant;

// y = x^3;  dy/dx = 3 x^2, so dLoss/dx = dLoss/dy 3 x^2
Variable cube(Variable x) {
  Tape& tape = x.tape();
  const double value = x.value().item();
  const Tensor y = full(tape.arena(), {}, value * value * value, DType::f64);
  return tape.record("cube", {x}, y, [x, value](const Tensor& dy) {
    x.accumulate(full(x.tape().arena(), {}, dy.item() * 3 * value * value, DType::f64));
  });
}

int main() {
  Tape tape;
  const Variable x = tape.variable(full(tape.arena(), {}, 0.8, DType::f64), "x");
  const Variable y = tape.variable(full(tape.arena(), {}, 1.5, DType::f64), "y");
  const Variable loss = tanh(multiply(cube(x), y));  // tanh(x^3 y)
  tape.backward(loss);
  std::puts(tape.text().c_str());  // what was recorded, and the gradient that came back to each line

  // By the chain rule, from the loss back: d tanh(u) = 1 - tanh^2 u, du/dx = 3 x^2 y, du/dy = x^3.
  const double outer = 1 - loss.value().item() * loss.value().item();
  const double dx = outer * 3 * 0.8 * 0.8 * 1.5, dy = outer * 0.8 * 0.8 * 0.8;
  std::printf("dloss/dx  tape %.15f  by hand %.15f\n", x.gradient().item(), dx);
  std::printf("dloss/dy  tape %.15f  by hand %.15f\n", y.gradient().item(), dy);
  std::puts("Try: change 3 to 2 in the backward of cube. What does the tape say then, and who would notice?");
  return std::abs(x.gradient().item() - dx) < 1e-15 && std::abs(y.gradient().item() - dy) < 1e-15 ? 0 : 1;
}
