// Everything that decides a training run, in one struct; and the same as JSON, for the manifest and the checkpoint. The
// JSON keys are the names of the command line's options.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nn/config.h"
#include "nn/optimizer.h"

namespace sextant {

struct TrainOptions {
  // What decides the result. The defaults are the base model of the papers and what trains it well.
  std::string data = "canon";
  std::string position = "rope";
  int64_t layers = 3, width = 64, heads = 4;
  int64_t context = 256;  // tokens
  int64_t batch = 16;     // sequences a step
  int64_t steps = 1000;
  double lr = 3e-3;     // the peak, reached after the warm-up; a cosine brings it down to a tenth
  int64_t warmup = 50;  // steps
  double weight_decay = 0.1;
  double clip = 1.0;  // largest gradient norm; 0: none
  uint64_t seed = 1;
  DType dtype = DType::f32;
  bool untied = false;    // a head of its own instead of the embedding's weight
  bool composed = false;  // the composed twins of all fused operations

  // What does not.
  std::string out;            // the run folder
  int64_t eval_every = 0;     // steps between measurements on the validation split; 0: none
  int64_t save_every = 500;   // steps between checkpoints; 0: only at the end
  int64_t accumulate = 1;     // in how many parts a rank works off its share of the batch
  int64_t keep = 0;           // how many checkpoints to keep as checkpoint-STEP.safetensors, the newest among them
  int64_t mpi_timeout = 600;  // seconds that a rank may wait for another before the job ends; 0: for ever

  // What a size (layers, width, heads, context, batch) and a number of steps can be at most, so that products of them
  // are numbers still. The model's own limits are narrower.
  static constexpr int64_t most_size = int64_t{1} << 24, most_steps = int64_t{1} << 40;

  int64_t tokens_per_step() const { return batch * context; }
  ModelConfig model(int64_t vocabulary) const;
  Schedule schedule() const { return {.peak = lr, .floor = lr / 10, .warmup = warmup, .steps = steps}; }
  void check() const;  // throws Error naming the option; the model's sizes and the SPEC are checked by the model
};

// The options that decide the result.
nlohmann::json to_json(const TrainOptions& options);
// Throws Error naming `where` and the key.
TrainOptions train_options_from_json(const nlohmann::json& object, const std::string& where);

// A file is named by its absolute path, so that `eval` and `--resume` find it from any folder; a corpus by its name.
std::string data_name(const std::string& given);
// "runs/DATA-POSITION-seedS", made of what may stand in a file's name.
std::string default_run_folder(const TrainOptions& options);

}  // namespace sextant
