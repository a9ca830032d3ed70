#include "nn/optimizer.h"

#include <cmath>
#include <numbers>

#include "core/error.h"

namespace sextant {

AdamW::AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options) : options_(options) {
  for (Parameter* parameter : parameters) {
    const Shape& shape = parameter->value.shape();
    moments_.push_back(
        {parameter, zeros(arena_, shape, parameter->value.dtype()), zeros(arena_, shape, parameter->value.dtype())});
  }
}

// m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,  w -= lr (m^ / (sqrt(v^) + eps) + decay w),  m^ = m / (1 - b1^t), v^
// = v / (1 - b2^t)
void AdamW::step(double learning_rate, double gradient_scale) {
  ++steps_;
  kernels::AdamStep step{};
  step.lr = learning_rate;
  step.beta1 = options_.beta1;
  step.beta2 = options_.beta2;
  step.epsilon = options_.epsilon;
  step.gradient_scale = gradient_scale;
  step.correction1 = 1 - std::pow(options_.beta1, static_cast<double>(steps_));
  step.correction2 = 1 - std::pow(options_.beta2, static_cast<double>(steps_));
  for (const Moments& moments : moments_) {
    Parameter& parameter = *moments.parameter;
    if (!parameter.has_gradient) parameter.gradient.zero();
    step.decay = parameter.decay ? options_.weight_decay : 0.0;
    kernels::adam(parameter.value, parameter.gradient, moments.m, moments.v, step);
    parameter.has_gradient = false;
  }
}

double gradient_norm(std::span<Parameter* const> parameters) {
  double sum = 0;
  for (const Parameter* parameter : parameters)
    if (parameter->has_gradient) sum += kernels::squared_norm(parameter->gradient);
  return std::sqrt(sum);
}

double Schedule::at(int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (step >= steps || steps <= warmup) return step >= steps ? floor : peak;
  const double progress = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  return floor + 0.5 * (peak - floor) * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace sextant
