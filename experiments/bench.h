// Measuring training and sampling: what `sextant bench` runs of ours, and how contenders are timed against each other
// on a machine whose speed wanders.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "nn/optimizer.h"
#include "nn/transformer.h"

namespace sextant {

struct BenchShape {
  std::string name;
  int64_t vocab, layers, width, heads, context, batch;

  int64_t tokens_per_step() const { return batch * context; }
};

// The shapes with a name: base (the papers' small model), base-1024, medium, gpt2 (GPT-2's 124M).
const std::vector<BenchShape>& bench_shapes();
// Throws Error with the nearest right name.
const BenchShape& bench_shape(const std::string& name);

// A model in training on random tokens, the same batch each step: loss, backward, clipping, AdamW.
class TrainingBench {
 public:
  TrainingBench(const ModelConfig& config, int64_t batch);

  double seconds(int64_t steps);  // does them and says how long they took
  Transformer& model() { return model_; }

  struct Operation {
    std::string name;
    double calls = 0, forward_seconds = 0, backward_seconds = 0, flops = 0;  // a step; 0 FLOP: not counted
    double seconds() const { return forward_seconds + backward_seconds; }
  };
  struct Profile {
    double step_seconds = 0;            // of the profiled steps, on the clock around them
    std::vector<Operation> operations;  // the most expensive first; clipping and AdamW count as forward
  };
  // The mean over so many steps.
  Profile profile(int64_t steps);

 private:
  void forward_backward();
  double clip_scale() const;

  Transformer model_;
  std::vector<Parameter*> parameters_;
  AdamW optimizer_;
  Tape tape_;
  int64_t batch_;
  std::vector<int32_t> inputs_, targets_;
};

// Seconds to draw `tokens` tokens, one by one, from a model whose cache holds `position` already.
double sampling_seconds(Transformer& model, int64_t position, int64_t tokens, uint64_t seed);

// One of several that do the same work. run(steps) does so many steps and returns the seconds it took.
struct Contender {
  std::function<double(int64_t)> run;
  std::vector<double> seconds_per_step = {};  // one entry a round

  double median() const;
  double best() const;
};

// Has the contenders take turns in rounds of at least a tenth of a second, until all have done `steps` steps; with 0,
// until `seconds` seconds have passed and there were three rounds. `each_round` runs before each.
void take_turns(std::span<Contender> contenders, int64_t steps, double seconds,
                const std::function<void()>& each_round);

}  // namespace sextant
