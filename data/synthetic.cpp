#include "data/synthetic.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/random.h"

namespace sextant {

double TeacherKernel::operator()(int64_t lag) const {
  const double d = static_cast<double>(lag), x = d / scale;
  switch (sector) {
    case Sector::affine:
      return -slope * x;
    case Sector::phase:
      return amplitude * std::cos(angle_per_token * d);
    case Sector::jet: {
      // x^r e^{-c x} has its maximum (r / (c e))^r at x = r / c.
      const double envelope = std::pow(x * damping * std::numbers::e / order, order) * std::exp(-damping * x);
      return amplitude * envelope * std::cos(angle_per_token * d);
    }
    case Sector::light_cone:
      return amplitude * std::pow(d / std::hypot(d, scale), order) * std::cos(angle_per_token * scale * std::asinh(x));
  }
  return 0;
}

SyntheticTask::SyntheticTask(std::string name, const TeacherKernel& kernel, int64_t vocabulary, double sharpness)
    : name_(std::move(name)), kernel_(kernel), vocabulary_(vocabulary), sharpness_(sharpness) {
  require(vocabulary >= 2, "task {}: a vocabulary of {} tokens leaves nothing to predict, it must have at least 2",
          name_, vocabulary);
  require(
      kernel.scale > 0 && (kernel.sector != TeacherKernel::Sector::jet || (kernel.order >= 1 && kernel.damping > 0)),
      "task {}: the scale must be positive, a jet's order at least 1 and its damping positive", name_);
}

std::vector<double> SyntheticTask::weights(int64_t length) const {
  std::vector<double> w(static_cast<size_t>(length));
  for (size_t d = 0; d < w.size(); ++d) w[d] = kernel_(static_cast<int64_t>(d));
  // Only differences matter to a softmax, so one factor for all lags is free; this one keeps the largest weight at 1.
  const double largest = w.empty() ? 0 : *std::max_element(w.begin(), w.end());
  for (double& value : w) value = std::exp(value - largest);
  return w;
}

void SyntheticTask::distribution(std::span<const int32_t> tokens, std::span<const double> w,
                                 std::vector<double>& out) const {
  const size_t V = static_cast<size_t>(vocabulary_);
  out.assign(tokens.size() * V, 0.0);
  double total = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    double* p = out.data() + i * V;
    for (size_t j = 0; j <= i; ++j) p[tokens[j]] += w[i - j];
    total += w[i];
    double normalizer = 0;
    // At very small lags all weights may have underflowed against a far larger one: the mean is then over all of them
    // alike.
    for (size_t v = 0; v < V; ++v) normalizer += p[v] = std::exp(sharpness_ * (total > 0 ? p[v] / total : 0.0));
    for (size_t v = 0; v < V; ++v) p[v] /= normalizer;
  }
}

std::vector<double> SyntheticTask::distribution(std::span<const int32_t> tokens) const {
  for (const int32_t token : tokens)
    require(token >= 0 && token < vocabulary_, "task {}: token {} is outside the vocabulary of {}", name_, token,
            vocabulary_);
  std::vector<double> out;
  distribution(tokens, weights(static_cast<int64_t>(tokens.size())), out);
  return out;
}

namespace {

double entropy(std::span<const double> p) {
  double h = 0;
  for (const double value : p)
    if (value > 0) h -= value * std::log(value);
  return h;
}

int32_t draw(std::span<const double> p, double uniform) {
  for (size_t v = 0; v + 1 < p.size(); ++v) {
    if (uniform < p[v]) return static_cast<int32_t>(v);
    uniform -= p[v];
  }
  return static_cast<int32_t>(p.size() - 1);
}

}  // namespace

double SyntheticTask::fill(uint64_t seed, int64_t step, int64_t batch, int64_t length, Batch& out) const {
  require(step >= 0 && batch >= 1 && length >= 1,
          "task {}: step {}, batch {}, length {}: the step must not be negative, the others positive", name_, step,
          batch, length);
  out.sequences = batch;
  out.length = length;
  const size_t T = static_cast<size_t>(length), V = static_cast<size_t>(vocabulary_),
               count = static_cast<size_t>(batch) * T;
  out.inputs.resize(count);
  out.targets.resize(count);
  const Random tokens(seed, "synthetic/tokens"), labels(seed, "synthetic/labels");
  const uint64_t first = static_cast<uint64_t>(step) * count;
  const std::vector<double> w = weights(length);
  std::vector<double> p;
  double loss = 0;
  for (size_t begin = 0; begin < count; begin += T) {
    for (size_t n = begin; n < begin + T; ++n)
      out.inputs[n] = static_cast<int32_t>(tokens.below(first + n, static_cast<uint64_t>(vocabulary_)));
    distribution(std::span(out.inputs).subspan(begin, T), w, p);
    for (size_t i = 0; i < T; ++i) {
      const auto row = std::span<const double>(p).subspan(i * V, V);
      out.targets[begin + i] = draw(row, labels.uniform(first + begin + i));
      loss += entropy(row);
    }
  }
  return loss / static_cast<double>(count);
}

double SyntheticTask::bayes_loss(const Batch& batch) const {
  const size_t T = static_cast<size_t>(batch.length), V = static_cast<size_t>(vocabulary_);
  double loss = 0;
  for (size_t begin = 0; begin < batch.inputs.size(); begin += T) {
    const auto p = distribution(std::span(batch.inputs).subspan(begin, T));
    for (size_t i = 0; i < T; ++i) loss += entropy(std::span(p).subspan(i * V, V));
  }
  return loss / static_cast<double>(batch.inputs.size());
}

namespace {

using Sector = TeacherKernel::Sector;
constexpr double two_pi = 2 * std::numbers::pi;

// Sharpness is chosen so that at length 64 knowing the kernel takes about half off the loss log V of knowing nothing;
// the test prints both.
const std::vector<SyntheticTask>& tasks() {
  static const std::vector<SyntheticTask> all = {
      {"affine", {.sector = Sector::affine, .scale = 64, .slope = 16}, 8, 12},
      {"phase", {.sector = Sector::phase, .scale = 64, .amplitude = 4, .angle_per_token = two_pi / 16}, 8, 14},
      {"jet-1",
       {.sector = Sector::jet, .order = 1, .scale = 64, .amplitude = 6, .angle_per_token = two_pi / 12, .damping = 4},
       8,
       10},
      {"jet-2",
       {.sector = Sector::jet, .order = 2, .scale = 64, .amplitude = 6, .angle_per_token = two_pi / 12, .damping = 6},
       8,
       10},
      {"light-cone",
       {.sector = Sector::light_cone, .order = 1, .scale = 16, .amplitude = 5, .angle_per_token = two_pi / 16},
       8,
       14}};
  return all;
}

}  // namespace

std::vector<std::string> synthetic_task_names() {
  std::vector<std::string> names;
  for (const SyntheticTask& task : tasks()) names.push_back(task.name());
  return names;
}

SyntheticTask synthetic_task(const std::string& name) {
  std::string names;
  for (const SyntheticTask& task : tasks()) {
    if (task.name() == name) return task;
    names += (names.empty() ? "" : ", ") + task.name();
  }
  fail("no synthetic task is called '{}'; there are {}", name, names);
}

}  // namespace sextant
