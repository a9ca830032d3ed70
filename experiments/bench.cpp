#include "experiments/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/error.h"
#include "experiments/random_tokens.h"
#include "nn/generation.h"
#include "positional/spec.h"

namespace sextant {

namespace {

constexpr double clip_norm = 1.0, learning_rate = 3e-4;

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

const std::vector<BenchShape>& bench_shapes() {
  static const std::vector<BenchShape> shapes = {
      {"base", 256, 3, 64, 4, 256, 16},
      {"base-1024", 256, 3, 64, 4, 1024, 4},
      {"medium", 256, 6, 256, 8, 512, 8},
      {"gpt2", 50257, 12, 768, 12, 256, 4},
  };
  return shapes;
}

const BenchShape& bench_shape(const std::string& name) {
  std::vector<std::string> names;
  for (const BenchShape& shape : bench_shapes()) {
    if (shape.name == name) return shape;
    names.push_back(shape.name);
  }
  fail("--shape: there is no shape '{}'; the nearest is '{}'", name, nearest(name, names));
}

TrainingBench::TrainingBench(const ModelConfig& config, int64_t batch)
    : model_(config),
      parameters_(model_.parameters()),
      optimizer_(parameters_, AdamWOptions{}),
      batch_(batch),
      inputs_(random_tokens(config.seed, "bench/inputs", batch * config.context, config.vocab)),
      targets_(random_tokens(config.seed, "bench/targets", batch * config.context, config.vocab)) {}

void TrainingBench::forward_backward() {
  const Variable loss = model_.loss(tape_, inputs_, targets_, batch_, model_.config().context);
  tape_.backward(loss);
}

double TrainingBench::clip_scale() const {
  const double norm = gradient_norm(parameters_);
  return norm > clip_norm ? clip_norm / norm : 1.0;
}

double TrainingBench::seconds(int64_t steps) {
  const Clock::time_point start = Clock::now();
  for (int64_t i = 0; i < steps; ++i) {
    forward_backward();
    optimizer_.step(learning_rate, clip_scale());
    tape_.reset();
  }
  return seconds_since(start);
}

TrainingBench::Profile TrainingBench::profile(int64_t steps) {
  Profile profile;
  Operation clipping{.name = "clipping", .calls = 1}, adamw{.name = "adamw", .calls = 1};
  const double count = static_cast<double>(steps);
  tape_.clear_profile();
  tape_.set_profiling(true);
  const Clock::time_point start = Clock::now();
  for (int64_t i = 0; i < steps; ++i) {
    forward_backward();
    const Clock::time_point before_clipping = Clock::now();
    const double scale = clip_scale();
    clipping.forward_seconds += seconds_since(before_clipping) / count;
    const Clock::time_point before_adamw = Clock::now();
    optimizer_.step(learning_rate, scale);
    adamw.forward_seconds += seconds_since(before_adamw) / count;
    tape_.reset();
  }
  profile.step_seconds = seconds_since(start) / count;
  tape_.set_profiling(false);
  profile.operations = {clipping, adamw};
  for (const auto& [name, timing] : tape_.profile())
    profile.operations.push_back({name, static_cast<double>(timing.calls) / count, timing.forward_seconds / count,
                                  timing.backward_seconds / count,
                                  (timing.forward_flops + timing.backward_flops) / count});
  std::ranges::sort(profile.operations, std::ranges::greater{}, &Operation::seconds);
  return profile;
}

double sampling_seconds(Transformer& model, int64_t position, int64_t tokens, uint64_t seed) {
  const std::vector<int32_t> prompt = random_tokens(seed, "bench/prompt", position, model.config().vocab);
  Clock::time_point start;
  double seconds = 0;
  int64_t drawn = 0;
  // The first token's time is that of reading the prompt.
  generate(model, prompt, tokens + 1, {.seed = seed}, [&](int32_t) {
    if (drawn++ == 0) start = Clock::now();
    seconds = seconds_since(start);
    return true;
  });
  return seconds;
}

double Contender::median() const {
  std::vector<double> sorted = seconds_per_step;
  std::ranges::sort(sorted);
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double Contender::best() const {
  return *std::ranges::min_element(seconds_per_step);
}

void take_turns(std::span<Contender> contenders, int64_t steps, double seconds,
                const std::function<void()>& each_round) {
  constexpr double shortest_round = 0.1;  // seconds: what the last contender left in the caches is gone by then
  constexpr int64_t fewest_rounds = 3;
  double longest = 0;
  for (Contender& contender : contenders) longest = std::max(longest, contender.run(1));
  const int64_t most = static_cast<int64_t>(std::ceil(shortest_round / std::max(longest, 1e-6)));
  const Clock::time_point start = Clock::now();
  for (int64_t done = 0, round = 0;; ++round) {
    const bool enough = steps > 0 ? done >= steps : round >= fewest_rounds && seconds_since(start) >= seconds;
    if (enough) return;
    const int64_t burst = steps > 0 ? std::min(most, steps - done) : most;
    each_round();
    for (Contender& contender : contenders)
      contender.seconds_per_step.push_back(contender.run(burst) / static_cast<double>(burst));
    done += burst;
  }
}

}  // namespace sextant
