// manifest.json: what a run folder needs to say so that somebody else can make the same run, and know on what it was
// made.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "data/corpus.h"
#include "experiments/train_options.h"
#include "nn/transformer.h"

namespace sextant {

// Program, compiler, CPU, instruction set, BLAS and threads of this process. The first call tries BLAS kernels in child
// processes: call it before locking a run folder, since a child that outlives a killed parent would go on holding the
// lock for a moment.
nlohmann::json environment_json();
// Name, content hash, vocabulary and sizes of the splits.
nlohmann::json corpus_json(const Corpus& corpus);

void write_manifest(const std::string& folder, const TrainOptions& options, Transformer& model, const Corpus& corpus,
                    const std::string& command_line, const nlohmann::json& environment);
// Adds to the manifest that the run was taken up again at `step`, by this process.
void note_resumption(const std::string& folder, int64_t step, const std::string& command_line,
                     const nlohmann::json& environment);

// Sets in `options` what does not decide the result (accumulate, eval-every, save-every, keep) as the manifest has it;
// leaves alone what it has not.
void read_housekeeping(const std::string& folder, TrainOptions& options);

// A JSON file. Throws Error naming file and offset.
nlohmann::json read_json(const std::string& path);

}  // namespace sextant
