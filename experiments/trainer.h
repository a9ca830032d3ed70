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

#include "core/communicator.h"
#include "core/file.h"
#include "core/safetensors.h"
#include "data/batch.h"
#include "experiments/evaluate.h"
#include "experiments/memory_need.h"
#include "experiments/progress.h"
#include "experiments/train_options.h"
#include "nn/checkpoint.h"
#include "nn/gradient_sum.h"
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
  size_t peak_bytes = 0;                 // of resident memory since this process started, before the evaluation
  bool finished = false;                 // false: stopped by a signal, after saving
  int signal = 0;                        // which
  std::optional<Evaluation> evaluation;  // of the finished model
};

class Trainer {
 public:
  // A new run. Throws Error when the folder already holds a checkpoint or another process has it, and on any bad
  // option. Several ranks share each batch, and all of them do everything else alike; rank 0 writes. All methods are
  // collective then.
  static std::unique_ptr<Trainer> start(const TrainOptions& options, const std::string& command_line,
                                        Communicator& ranks = alone());
  // Goes on from the checkpoint of options.out, with the options it was started with (stored_options, of which only
  // those that do not decide the result may have been changed). Throws Error when the data has changed.
  static std::unique_ptr<Trainer> resume(const TrainOptions& options, const std::string& command_line,
                                         Communicator& ranks = alone());
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
  const MemoryNeed& memory_need() const { return memory_need_; }

 private:
  Trainer(const TrainOptions& options, const std::string& command_line, bool resuming, Communicator& ranks);
  void open(bool resuming, const Sharing& sharing);
  void start_files(bool resuming, const std::string& command_line, const nlohmann::json& environment);
  void take(std::unique_ptr<Transformer> model, const Sharing& sharing);
  void load(const Sharing& sharing);
  void check_ranks();
  double forward_backward();
  int64_t counted_targets() const;
  Variable part_loss(const TreePiece& sequences, BatchPart& share);
  double part_backward(const GradientSum::Part& part, int64_t counted);
  int stop_signal();
  void require_finite(double loss, double norm);
  void require_good_weights();
  void log(const StepResult& result, double seconds);
  void validate(Progress& progress);
  void write_checkpoint();
  void keep_older_checkpoint();
  bool due(int64_t every) const { return every > 0 && steps_done_ % every == 0; }

  TrainOptions options_;
  Communicator& ranks_;
  std::optional<RunLock> lock_;
  std::shared_ptr<Corpus> corpus_;
  std::unique_ptr<Transformer> model_;
  std::vector<Parameter*> parameters_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<Batches> batches_;
  Tape tape_;
  Batch batch_;
  std::optional<GradientSum> sum_;  // where the batch is worked off in parts, or by several ranks
  int signal_ = 0;                  // that any rank got, known to all of them after a step
  std::optional<CsvAppender> metrics_, validation_;
  MemoryNeed memory_need_;
  int64_t steps_done_ = 0;
  double seconds_ = 0;
  size_t peak_bytes_ = 0;  // of resident memory before the last validation
};

}  // namespace sextant
