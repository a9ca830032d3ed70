// One line of `sextant bench`: a shape with a strategy, ours and PyTorch by turns, as the JSON object that --json
// prints.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/bench.h"
#include "experiments/bench_peer.h"

namespace sextant {

struct BenchOptions {
  std::vector<BenchShape> shapes;
  std::vector<std::string> positions;  // SPECs
  DType dtype = DType::f32;
  int64_t steps = 0;                    // timed ones of each contender; 0: as many as `seconds` allows
  double seconds = 0;                   // for all contenders together
  std::vector<std::string> peer_modes;  // eager, compile
  std::vector<int64_t> sample_at;       // empty: no sampling
  int64_t sample_tokens = 0;
  bool profile = false;
  uint64_t seed = 1;
};

// `peer` may be null. Throws what the model's construction and the peer throw.
nlohmann::json bench_row(const BenchOptions& options, const BenchShape& shape, const std::string& spec,
                         TorchPeer* peer);

}  // namespace sextant
