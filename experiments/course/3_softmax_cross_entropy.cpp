// Lesson 3: softmax cross-entropy by hand.
//
//   p_v = e^{x_v} / sum_u e^{x_u},   loss = -log p_target = log sum_u e^{x_u} - x_target
//   dloss/dx_v = p_v - [v = target]
//
// The exponentials and logarithms are gone from the gradient: what is predicted minus what is true. It sums to zero,
// since adding a constant to all x changes no probability; that constant is also what saves e^x from overflow.
#include <sextant/autograd/softmax.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

using namespace sextant;

int main() {
  constexpr int rows = 2, words = 4;
  // The second row would overflow e^x in float64: e^1000 is infinite.
  const std::vector<double> x{1.0, -0.5, 2.0, 0.0, 1000.0, 999.0, 998.0, 1.0};
  const std::vector<int32_t> targets{0, 1};

  double loss = 0;
  std::vector<double> dx(x.size());
  for (int row = 0; row < rows; ++row) {
    const double* in = &x[static_cast<size_t>(row * words)];
    const double most = *std::max_element(in, in + words);
    double total = 0;
    for (int v = 0; v < words; ++v) total += std::exp(in[v] - most);
    const int target = targets[static_cast<size_t>(row)];
    loss += (std::log(total) + most - in[target]) / rows;  // the mean over the rows,
    for (int v = 0; v < words; ++v)                        // hence / rows in each gradient, too
      dx[static_cast<size_t>(row * words + v)] = (std::exp(in[v] - most) / total - (v == target)) / rows;
  }

  Tape tape;
  const Variable logits = tape.variable(from_values(tape.arena(), {rows, words}, x, DType::f64), "logits");
  const Variable on_tape = cross_entropy(logits, targets);
  tape.backward(on_tape);
  std::printf("loss: by hand %.12f, tape %.12f nats\n", loss, on_tape.value().item());
  double worst = std::abs(loss - on_tape.value().item());
  for (int i = 0; i < rows * words; ++i) {
    const double theirs = logits.gradient().flat(i), mine = dx[static_cast<size_t>(i)];
    std::printf("row %d, word %d: by hand %+.12f, tape %+.12f\n", i / words, i % words, mine, theirs);
    worst = std::max(worst, std::abs(mine - theirs));
  }
  std::printf("worst difference %.1e\n", worst);
  std::puts("Try: leave out `most`. Which row suffers, and why not the other?");
  return worst < 1e-12 ? 0 : 1;
}
