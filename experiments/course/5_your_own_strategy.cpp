// Lesson 5: write your own position strategy, and audit it.
//
// Attention weights shall fall as a power of the lag, (1 + d)^{-e^{a_h}}, the exponent learned by head. Registering the
// strategy is all that a program needs to know it: SPECs like "power+rope" then train, and the audit has its cases.
#include <sextant/autograd/fault.h>
#include <sextant/autograd/formula.h>
#include <sextant/nn/optimizer.h>
#include <sextant/nn/transformer.h>
#include <sextant/positional/strategy_audit.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

using namespace sextant;

FORMULA("power bias", "b_h(d) = -e^{a_h} log(1 + d)", "da_h = sum_d db_h(d) b_h(d)");
Variable power_bias(Variable a, int64_t lags) {
  const Tensor b = a.tape().empty({a.size(0), lags}, a.dtype());
  for (int64_t i = 0; i < b.elements(); ++i)
    b.set_flat(i, -std::exp(a.value().flat(i / lags)) * std::log1p(static_cast<double>(i % lags)));
  return a.tape().record("power bias", {a}, b, [a, b, lags](const Tensor& db) {
    const Tensor da = a.tape().zeros(a.shape(), a.dtype());
    for (int64_t i = 0; i < b.elements(); ++i) da.set_flat(i / lags, da.flat(i / lags) + db.flat(i) * b.flat(i));
    a.accumulate(da);
  });
}

struct Power : Term {
  explicit Power(const PositionSettings& settings)
      : a(make_parameter(settings, "power", "exponent", {settings.heads})) {}
  std::vector<Parameter*> parameters() override { return {&a}; }
  Variable lag_bias(const PositionCall& call, int64_t lags) override {
    return power_bias(call.tape->parameter(a), lags);
  }
  Parameter a;  // zero at first: weights fall as 1 / (1 + d)
};
const StrategyInfo info{
    .name = "power",
    .summary = "power-law recency",
    .keys = {},
    .examples = {"power", "power+rope"},
    .make = [](const TermSpec&, const PositionSettings& settings) { return std::make_unique<Power>(settings); }};
const RegisterStrategy registered(info);

double worst_error(Fault* fault) {  // in the audit's cases: entry by entry, the large ones along random directions
  Arena arena;
  double worst = 0;
  for (const AuditCase& one : strategy_audit_cases(info, arena)) {
    const TapeFunction f = fault == nullptr ? one.function : fault->in(one.function);
    const GradientCheck check = one.large ? check_directional(f, one.inputs, 2) : check_gradients(f, one.inputs);
    worst = std::max(worst, check.worst_error);
  }
  return worst;
}

int main() {
  Fault fault("power bias", 0, FaultKind::missing_factor);
  const double right = worst_error(nullptr), wrong = worst_error(&fault);
  std::printf("worst relative error %.1e; with a %s %.1e\n", right, fault.text().c_str(), wrong);

  Transformer model(
      {.vocab = 16, .layers = 1, .width = 16, .heads = 2, .context = 8, .position = "power+rope", .data = ""});
  AdamW optimizer(model.parameters(), {});
  Tape tape;
  const std::vector<int32_t> tokens{1, 2, 3, 4, 1, 2, 3, 4}, targets{2, 3, 4, 1, 2, 3, 4, 1};
  double loss = 0;
  for (int step = 0; step < 30; ++step, tape.reset()) {
    const Variable now = model.loss(tape, tokens, targets, 1, 8);
    tape.backward(now);
    optimizer.step(1e-2);
    loss = now.value().item();
  }
  std::printf("30 steps with power+rope: %.3f nats a token, from about log 16 = 2.773\n", loss);
  std::puts("Try: forget the minus in the formula of b. Does the audit notice? What would?");
  return right < 1e-7 && wrong > 1e-3 && loss < 1.0 ? 0 : 1;
}
