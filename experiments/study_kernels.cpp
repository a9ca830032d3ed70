#include "experiments/study_kernels.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "autograd/elementwise.h"
#include "autograd/reductions.h"
#include "autograd/shaping.h"
#include "core/error.h"
#include "nn/optimizer.h"
#include "positional/functions.h"

namespace sextant::study {

namespace {

constexpr double L = static_cast<double>(kernel_window);

double variance_of(std::span<const double> values) {
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return sum / static_cast<double>(values.size());
}

PositionSettings settings_of(uint64_t seed) {
  PositionSettings settings;
  settings.context = kernel_window;
  settings.seed = seed;
  return settings;
}

PositionCall call_of(Tape& tape, int64_t lags) {
  return {&tape, {}, {}, 1, lags, 0, lags, false, nullptr};
}

Parameter& parameter_of(Position& layer, const char* name) {
  for (Parameter* parameter : layer.parameters())
    if (parameter->name.ends_with(fmt::format(".{}", name))) return *parameter;
  fail("the position layer has no parameter {}", name);
}

}  // namespace

// mean over heads of the sum over components of gate |amplitude|; a wave's amplitude is its cosine's and sine's
// together
Variable effective_mass(Tape& tape, Position& layer) {
  const auto raw = [&](const char* name) { return tape.parameter(parameter_of(layer, name)); };
  const auto lengths = [](Variable squares) { return sum(sqrt(shift(squares, 1e-12))); };  // smooth at zero
  const auto waves = [&](const char* cosines, const char* sines) {
    return lengths(add(square(raw(cosines)), square(raw(sines))));
  };
  const Variable gate = sigmoid(raw("gate")), constant = raw("affine_const"),
                 affine = add(lengths(square(constant)), sum(softplus(raw("affine_slope"))));
  const auto gated = [&](int64_t sector, Variable amplitude) {
    return multiply(sum(slice(gate, 0, sector, 1)), amplitude);
  };
  const Variable heads =
      add(add(gated(0, waves("fj_cos", "fj_sin")), gated(1, affine)), gated(2, waves("lc_cos", "lc_sin")));
  return scale(heads, 1.0 / static_cast<double>(constant.value().size(0)));
}

std::vector<KernelTarget> kernel_targets(double angle) {
  const auto jet = [angle](int order) {
    return [=](int64_t d) {
      const double lag = static_cast<double>(d);
      return std::pow(lag / L, order) * std::cos(angle * lag);
    };
  };
  const auto light_cone = [angle](int order) {
    return [=](int64_t d) {
      const double lag = static_cast<double>(d);
      return std::pow(lag / std::hypot(lag, L), order) * std::cos(angle * L * std::asinh(lag / L));
    };
  };
  const auto affine = [](int64_t d) { return 0.5 - 2.0 * static_cast<double>(d) / L; };
  const auto sum = [](auto f, auto g) { return [=](int64_t d) { return f(d) + g(d); }; };
  return {{"phase", "FJ", 0, jet(0)},
          {"jet-1", "FJ", 1, jet(1)},
          {"jet-2", "FJ", 2, jet(2)},
          {"affine", "affine", 1, affine},
          {"light-cone-0", "LC", 0, light_cone(0)},
          {"light-cone-1", "LC", 1, light_cone(1)},
          {"affine+phase", "mixture", 0, sum(affine, jet(0))},
          {"affine+jet-1", "mixture", 0, sum(affine, jet(1))},
          {"affine+light-cone-1", "mixture", 0, sum(affine, light_cone(1))}};
}

std::vector<double> values_of(const KernelTarget& target, int64_t first, int64_t last) {
  std::vector<double> values;
  for (int64_t d = first; d < last; ++d) values.push_back(target.value(d));
  return values;
}

double normalised_error(std::span<const double> fitted, std::span<const double> target) {
  double error = 0;
  for (size_t i = 0; i < target.size(); ++i) error += (fitted[i] - target[i]) * (fitted[i] - target[i]);
  return error / static_cast<double>(target.size()) / variance_of(target);
}

const char* KernelModel::spec() {
  return "pj-bias(jets=3,lc-jets=2,affine=1,frequencies=8)";
}

KernelModel::KernelModel(uint64_t seed) : stand_(spec(), settings_of(seed)) {}

void KernelModel::train(std::span<const double> target, int64_t steps, double price) {
  const int64_t lags = static_cast<int64_t>(target.size());
  Arena arena;
  const Tensor wanted = empty(arena, {1, lags}, DType::f64);
  for (int64_t d = 0; d < lags; ++d) wanted.set_flat(d, target[static_cast<size_t>(d)]);
  AdamW optimizer(position().parameters(), {.beta2 = 0.99, .weight_decay = 0.0});
  const Schedule schedule{.peak = 0.03, .floor = 0.0003, .warmup = steps / 20, .steps = steps};
  Tape tape;
  for (int64_t step = 0; step < steps; ++step) {
    tape.reset();
    const Variable kernel = position().lag_bias(call_of(tape, lags), lags, nullptr);
    const Variable error = scale(mean(square(subtract(kernel, tape.constant(wanted)))), 1.0 / variance_of(target));
    tape.backward(price > 0 ? add(error, scale(effective_mass(tape, position()), price)) : error);
    optimizer.step(schedule.at(step));
  }
}

std::vector<double> KernelModel::kernel(int64_t lags) {
  Tape tape;
  const NoGrad none(tape);
  const Tensor values = position().lag_bias(call_of(tape, lags), lags, nullptr).value();
  std::vector<double> result;
  for (int64_t d = 0; d < lags; ++d) result.push_back(values.flat(d));
  return result;
}

std::vector<double> KernelModel::gates() {
  const Tensor& raw = parameter_of(position(), "gate").value;
  return {sigmoid_of(raw.flat(0)), sigmoid_of(raw.flat(1)), sigmoid_of(raw.flat(2))};
}

}  // namespace sextant::study
