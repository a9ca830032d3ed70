// What is measured of a model that reads a long text: how much attention its heads give to far sources, and how fast
// scores decohere along the routes. (arXiv 2606.24975; position-space.md section 7)
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "data/corpus.h"
#include "experiments/progress.h"
#include "nn/transformer.h"

namespace sextant::study {

// Has `observer` look on at the model's attention as long as this lives.
class Observation {
 public:
  Observation(Transformer& model, AttentionObserver observer) : model_(model) {
    model_.set_observer(std::move(observer));
  }
  ~Observation() { model_.set_observer({}); }
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;

 private:
  Transformer& model_;
};

// 0, 1, 2, ... and from 16 on eight a doubling, up to `last`.
std::vector<int64_t> route_lengths(int64_t last);

struct FarMassOptions {
  std::vector<int64_t> lengths;  // ascending multiples of the first, which is at least 4 * queries
  std::vector<int64_t> near;     // sources up to so many tokens away are near
  int64_t queries = 8;           // the last ones of each length, every fourth
  int64_t windows = 1;           // of the longest length
};

// For each length that the held-out split has a window for:
//   {"length",
//    "lambda": [layer][head]      largest |logit| of the queries looked at
//    "half_range": [layer][head]  half the range of the logits: since a softmax does not see constants, the bound holds
//                                 with it in the place of lambda
//    "near": [{"near", "mass": [layer][head], "bound": [..], "bound_half_range": [..]}],
//                                 means over queries of the mass on far sources, and of M / (M + K e^{2 lambda})
//    "margin"}                    the least mass minus bound of single queries, each with its own half range
// Throws Error when there is no window of the shortest length.
nlohmann::json measure_far_mass(Transformer& model, const Corpus& corpus, const FarMassOptions& options,
                                Progress& progress);

// Routes in the first `contexts.back()` tokens of the held-out split, averaged over the heads of each layer:
//   {"lengths": [route lengths],
//    "contexts": [{"context", "score": [..], "probe": [..], "probe_deviation": [..]}],  over all layers
//    "layers": [{"gaps": [head], "score": [..], "probe": [..], "predicted": [..], "bound": [..]}]}  longest context
// score: q~_i k~_j / (|q~_i| |k~_j|) of the model's own queries and keys; probe: the same of one vector that every
// position holds, so what the transport alone does (absent for tile transports other than PaTH's). With steps of mean
// z_p in pair p, `predicted` is mean_p Re z_p^n (rotations only), `bound` (1 - gap)^n, gap = 1 - ||mean step||.
nlohmann::json measure_decoherence(Transformer& model, const Corpus& corpus, const std::vector<int64_t>& contexts,
                                   Progress& progress);

}  // namespace sextant::study
