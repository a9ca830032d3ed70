// Jordan chains acting on queries and keys: the operation that the jordan and pj-rotary strategies share, its composed
// twin, and the tile transport that evaluates it anchored. [position-space.md section 3]
//
//   G(n) = e^{(-i w - g) n} sum_{r < m} p_r(n) N^r
//   q~_i = G(i)^T q_i,   k~_j = G(-j) k_j   =>   <q~_i, k~_j> = q_i^T G(i - j) k_j
//
// for p_r(n) = (c n)^r / r!; other p_r (stabilized, light-cone) make a chart that is no representation.
#pragma once

#include <functional>
#include <string>

#include "core/rotation.h"
#include "positional/phase.h"
#include "positional/strategy.h"

namespace sextant {

// The names of a family's tables among the model's: made once, not in every step.
struct ChainTableNames {
  ChainTableNames() = default;
  explicit ChainTableNames(const std::string& family)
      : phasors(family + " phasors"),
        plus(family + " weights +"),
        minus(family + " weights -"),
        anchored_phasors(family + " anchored phasors"),
        anchored_weights(family + " anchored weights"),
        key_phasors(family + " key phasors"),
        key_weights(family + " key weights") {}
  std::string phasors, plus, minus, anchored_phasors, anchored_weights, key_phasors, key_weights;
};

// One family of matrices G(n), as tables.
struct ChainFamily {
  ChainLayout layout;
  std::vector<DoubleDouble>
      frequencies;  // by pair of coordinates: D/2, equal within a chain, 0 for the unipotent block
  // The light-cone chart rotates by w P(n) instead of w n; empty for w n.
  std::function<DoubleDouble(double n)> phase;
  // w_s(n) = e^{-g n} p_s(n) for s = 0 .. order-1, and u(n) in the last column of a unipotent layout; `row` has
  // layout.columns() places.
  std::function<void(double n, double* row)> weights;
  ChainTableNames names;

  std::vector<PhaseChart> phase_charts(double length_scale) const;  // one, of the chains' frequencies

  // The first n < positions whose weights the dtype cannot hold, of n or (with `back`) -n; -1 when it holds them all.
  int64_t first_overflow(int64_t positions, bool back, DType dtype) const;

  // Row t belongs to n = sign (first + t): phasors of |n| [count, D], weights of n [count, columns].
  Tensor phasors(PositionTables& tables, int64_t first, int64_t count, DType dtype) const;
  Tensor weights_of(PositionTables& tables, int64_t first, int64_t count, int sign, DType dtype) const;
};

// q~ = G(i)^T q, k~ = G(-j) k, q and k [B, T, H, D] at positions first .. first + T - 1.
void transform_by_chains(Tape& tape, Features& features, const ChainFamily& family, PositionTables& tables,
                         int64_t first);
void transform_by_chains_composed(Tape& tape, Features& features, const ChainFamily& family, PositionTables& tables,
                                  int64_t first);

// The same scores by the group law from a near anchor: each key is seen from the middle a of its tile, and the queries
// are carried there,
//   q_i^T G(i - j) k_j = (G(i - a)^T q_i)^T (G(a - j) k_j),   a = 64 J + 32
// so that neither factor grows with the position: only the lag is left. Keys are anchored by anchor_keys, queries by
// the transport. That takes a group: where p_r is taken at absolute positions (stabilized, light-cone), a score is a
// function of i and j and not of i - j, and there is nothing to be carried to an anchor but e^{-g n}.
Variable anchor_keys(Tape& tape, Variable k, const ChainFamily& family, PositionTables& tables, int64_t first);
TileTransport* anchored_transport(Tape& tape, const ChainFamily& family, PositionTables& tables, int64_t positions,
                                  DType dtype);

// Chains of `order` over `dim` coordinates, the last one shorter where they do not fit, with w_k = base^(-k/K) for the
// K chains; and a unipotent block after them when asked for.
ChainFamily geometric_chains(int64_t dim, int64_t order, bool unipotent);

}  // namespace sextant
