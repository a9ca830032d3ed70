// How a position layer answers by lag: the responses of unit vectors through its transforms, its lag bias by component,
// and its gate. What `sextant kernel` shows, and what the diagnostics are computed from.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "positional/strategy.h"

namespace sextant {

// A position layer together with what it stands on, in f64.
class PositionStand {
 public:
  // `settings` give heads, head_dim, width, vocabulary, context, layer and seed; the rest is filled in here. Throws
  // Error on a bad SPEC.
  PositionStand(const std::string& spec, PositionSettings settings);

  Position& position() { return *position_; }
  const PositionSettings& settings() const { return settings_; }

 private:
  Arena weights_;
  PositionTables tables_;
  PositionSettings settings_;
  std::unique_ptr<Position> position_;
};

// One curve over the lags.
struct Response {
  std::string kind;  // "transform", "bias" or "gate"
  int head = 0;
  std::string component;  // bias: "sum", "FJ 1", "affine 0", of several terms "alibi affine 1"; transform: "q2 k4"
                          // (coordinates); gate: "F"
  std::string sector;     // of a bias component; empty otherwise
  std::vector<double> values;
};

// <q~_i, k~_j> for q = e_a at position i and k = e_b at the positions i - lag, for each coordinate pair (a, b) of
// `coordinates` x `coordinates` whose response is not zero throughout. i is `query_position`, at least the largest lag.
// Where a strategy depends on content, tokens and inputs are drawn from `seed`.
std::vector<Response> transform_responses(PositionStand& stand, std::span<const int64_t> lags, int64_t query_position,
                                          std::span<const int> heads, std::span<const int64_t> coordinates,
                                          uint64_t seed = 1);

// b_h by lag: the sum (as the layer computes it), and each component where the strategy tells them apart.
std::vector<Response> bias_responses(PositionStand& stand, std::span<const int64_t> lags, int head);

// F_i - F_j of the cumulative gates, on inputs drawn from `seed`; empty when there are none.
std::vector<Response> gate_responses(PositionStand& stand, std::span<const int64_t> lags, int64_t query_position,
                                     int head, uint64_t seed = 1);

}  // namespace sextant
