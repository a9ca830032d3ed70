// AdamW (Loshchilov & Hutter, "Decoupled Weight Decay Regularization", 2019), gradient clipping by global norm, and the
// learning-rate schedule.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/tape.h"

namespace sextant {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.1;  // on parameters with `decay` (matrices)
};

class AdamW {
 public:
  AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options);

  // One step at the given learning rate, gradients multiplied by `gradient_scale` (from clipping) first. Parameters
  // that got no gradient count as having a zero one. Afterwards no parameter has a gradient.
  void step(double learning_rate, double gradient_scale = 1.0);

  struct Moments {
    Parameter* parameter;
    Tensor m, v;
  };
  std::span<Moments> moments() { return moments_; }
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  Arena arena_;
  AdamWOptions options_;
  std::vector<Moments> moments_;
  int64_t steps_ = 0;
};

// sqrt(sum over all parameters of |gradient|^2), in double, in the parameters' order.
double gradient_norm(std::span<Parameter* const> parameters);

// Linear warm-up over `warmup` steps, then a cosine from `peak` down to `floor` at `steps`.
struct Schedule {
  double peak = 1e-3, floor = 1e-4;
  int64_t warmup = 100, steps = 1000;
  double at(int64_t step) const;  // step counts from 0
};

}  // namespace sextant
