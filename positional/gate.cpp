// Cumulative gates: recency that depends on the content (Forgetting Transformer, Lin et al., arXiv 2503.02130).
//
//   f_t = sigmoid(w_h x_t + c_h),   F_i = sum_{t <= i} log f_t,   logit(i, j) += F_i - F_j
//
// With w = 0 the bias is log sigmoid(c_h) (i - j): ALiBi with slope m_h = -log sigmoid(c_h). The prefix sums are made
// by the model (autograd/reductions.h), in double, so that F_i - F_j keeps its digits however long the sequence.
//
// Start: w small (0.02), c_h such that log f_h = -1/tau_h with decay lengths tau_h spread geometrically over the heads,
// from 8 tokens to the training context: every head remembers at first, some for a sentence and some for all of it.
#include "positional/gate.h"

#include <algorithm>
#include <cmath>

#include "autograd/elementwise.h"
#include "positional/projection.h"

namespace sextant {

std::vector<double> initial_decay_lengths(int64_t heads, int64_t context) {
  const double longest = static_cast<double>(context), shortest = std::min(8.0, longest);
  std::vector<double> lengths;
  for (int64_t h = 0; h < heads; ++h) {
    const double share = heads == 1 ? 1.0 : static_cast<double>(h) / static_cast<double>(heads - 1);
    lengths.push_back(shortest * std::pow(longest / shortest, share));
  }
  return lengths;
}

namespace {

class Gate : public Term {
 public:
  explicit Gate(const PositionSettings& settings) : logit_(settings, "gate", "weight", "bias", settings.heads, 0.02) {
    const std::vector<double> lengths = initial_decay_lengths(settings.heads, settings.context);
    // sigmoid(c) = e^{-1/tau}  <=>  c = -log(e^{1/tau} - 1)
    for (size_t h = 0; h < lengths.size(); ++h)
      logit_.bias.value.set_flat(static_cast<int64_t>(h), -std::log(std::expm1(1.0 / lengths[h])));
  }

  std::vector<Parameter*> parameters() override { return {&logit_.weight, &logit_.bias}; }

  Variable log_gate(const PositionCall& call) override { return log_sigmoid(logit_(call)); }

 private:
  Projection logit_;
};

const RegisterStrategy register_gate({
    .name = "gate",
    .summary = "recency by content: prefix sums of log forget gates (arXiv 2503.02130)",
    .keys = {},
    .examples = {"gate"},
    .make = [](const TermSpec&, const PositionSettings& settings) { return make_gate(settings); },
});

}  // namespace

std::unique_ptr<Term> make_gate(const PositionSettings& settings) {
  return std::make_unique<Gate>(settings);
}

}  // namespace sextant
