// The training loop. One step, in order:
//
//   batch -> loss -> tape.backward -> clip -> AdamW -> metrics
//
// A run owns its folder: manifest.json, metrics.csv, validation.csv, checkpoint.safetensors, eval.json. It can be
// killed at any moment and resumed from the last checkpoint, bit for bit as if it had never stopped.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/file.h"
#include "core/safetensors.h"
#include "data/batch.h"
#include "experiments/evaluate.h"
#include "experiments/progress.h"
#include "experiments/train_options.h"
#include "nn/checkpoint.h"
#include "nn/optimizer.h"
#include "nn/transformer.h"

namespace sextant {

struct StepResult {
  double loss = 0;           // mean cross-entropy of the batch before the update, nats a token
  double gradient_norm = 0;  // before clipping
  double lr = 0;
};

struct TrainResult {
  int64_t step = 0, tokens = 0;
  double loss = 0;                       // of the last step
  double seconds = 0;                    // spent in steps, over all resumptions
  bool finished = false;                 // false: stopped by a signal, after saving
  int signal = 0;                        // which
  std::optional<Evaluation> evaluation;  // of the finished model
};

class Trainer {
 public:
  // A new run. Throws Error when the folder already holds a checkpoint or another process has it, and on any bad
  // option.
  static std::unique_ptr<Trainer> start(const TrainOptions& options, const std::string& command_line);
  // Goes on from the checkpoint of options.out, with the options it was started with (stored_options, of which only
  // those that do not decide the result may have been changed). Throws Error when the data has changed.
  static std::unique_ptr<Trainer> resume(const TrainOptions& options, const std::string& command_line);
  // The options a run was started with, from its checkpoint and manifest. Throws Error when there is none.
  static TrainOptions stored_options(const std::string& folder);
  ~Trainer();

  // One step. Throws Error (check failed), naming step and operation, when loss or gradient are not finite; the weights
  // then stay as they were.
  StepResult step();

  // Steps until the end or a signal (SIGINT, SIGTERM), with metrics and checkpoints.
  TrainResult train(Progress& progress);
  // The same, and evaluates the finished model (eval.json).
  TrainResult run(Progress& progress);

  // checkpoint.safetensors, after the metrics up to it. Throws Error (check failed) when the weights are not finite or
  // give the next batch a loss that is not; the checkpoint then stays as it was.
  void save();
  const TrainOptions& options() const { return options_; }
  Transformer& model() { return *model_; }
  const Corpus& corpus() const { return *corpus_; }
  int64_t steps_done() const { return steps_done_; }

 private:
  Trainer(const TrainOptions& options, const std::string& command_line, bool resuming);
  void load();
  Variable part_loss(int64_t part);
  double forward_backward();
  void merge_gradients(int64_t part);
  void require_finite(double loss, double norm);
  void require_good_weights();
  void log(const StepResult& result, double seconds);
  void validate(Progress& progress);
  void keep_older_checkpoint();
  bool due(int64_t every) const { return every > 0 && steps_done_ % every == 0; }

  TrainOptions options_;
  std::optional<RunLock> lock_;
  std::shared_ptr<Corpus> corpus_;
  std::unique_ptr<Transformer> model_;
  std::vector<Parameter*> parameters_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<Batches> batches_;
  Tape tape_;
  Batch batch_;
  Arena partial_sums_;  // gradients of micro-batches that wait for their partner, [level][parameter]
  std::vector<std::vector<Tensor>> waiting_;
  std::optional<CsvAppender> metrics_, validation_;
  int64_t steps_done_ = 0;
  double seconds_ = 0;
};

}  // namespace sextant
