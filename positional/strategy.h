// What a position strategy is. A SPEC such as "rope(scaling=yarn,factor=4)+affine" is a sum of terms; each term is one
// strategy, in one file, and supplies any of
//
//   a feature transform   q~ = A_i q_i, k~ = B_j k_j, v~ = C_j v_j, and what undoes C on the output (restore)
//   a lag bias            b_h(i - j), added to the logits
//   a cumulative gate     log f_t per token and head; logits gain F_i - F_j, F_i = sum_{t <= i} log f_t
//   a tile transport      for the two that are not separable in i and j (core/tile_transport.h)
//
//   logit(i, j) = <q~_i, k~_j> / sqrt(D) + b_h(i - j) + F_i - F_j
//   out_i = restore_i(sum_j softmax_j(logit(i, .)) v~_j)
//
// Terms compose: transforms chain in the order of the SPEC, biases and gates add. [position-space.md section 0]
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "core/random.h"
#include "core/tensor.h"
#include "core/tile_transport.h"
#include "positional/spec.h"

namespace sextant {

// Tables that are the same for every layer and head (cosines by position, say) are kept once for the whole model and
// grown when a longer sequence comes. Not per step: they live in an arena of their own.
class PositionTables {
 public:
  // The tensor known under `key`, made for at least `positions` positions: `make(arena, positions)` builds it when it
  // is absent or too short. Growing is at least by doubling, so a generated token does not rebuild it, and outgrown
  // tables stay alive: a tape may still hold them.
  Tensor get(const std::string& key, int64_t positions, const std::function<Tensor(Arena&, int64_t positions)>& make);
  size_t bytes() const;  // of all tables

 private:
  struct Entry {
    std::vector<std::unique_ptr<Arena>> arenas;
    Tensor table;
    int64_t positions = 0;
  };
  std::map<std::string, Entry> tables_;
};

// What a term knows when it is built.
struct PositionSettings {
  int64_t heads = 1, head_dim = 2, width = 2, vocabulary = 256;
  int64_t context = 256;  // training length; the default length scale L
  int layer = 0;
  DType dtype = DType::f32;
  uint64_t seed = 0;
  Arena* weights = nullptr;          // where parameters and constants live
  PositionTables* tables = nullptr;  // shared by all layers
  std::string prefix;                // "blocks.0.position.": parameters are named prefix + TERM + "." + NAME
};

// A parameter of the term, zero at first, in the model's arena.
Parameter make_parameter(const PositionSettings& settings, const std::string& term, const std::string& name,
                         const Shape& shape);

// What a term carries from one call to the next in generation and streamed evaluation (the sum of angles so far, the
// last product).
struct TermState {
  virtual ~TermState() = default;
};

// One call: T tokens of each of B sequences, at positions first .. first + T - 1.
struct PositionCall {
  Tape* tape = nullptr;
  Variable input;                   // [B, T, C], the normalised input that qkv reads
  std::span<const int32_t> tokens;  // [B * T] token ids
  int64_t batch = 1, length = 1;    // B, T
  int64_t first = 0;                // position of the first token
  int64_t total = 1;                // length of the whole sequence as far as it is known: >= first + length
  bool composed = false;            // use the composed twin instead of the hand-written operation
  TermState* state = nullptr;       // this term's, from new_state(); null when the call stands alone (first == 0)
};

struct Features {
  Variable q, k, v;  // [B, T, H, D]
};

// A learned or constant tensor that belongs into the checkpoint.
struct PositionConstant {
  std::string name;
  Tensor value;
};

// One component of a lag bias, for the diagnostics: sector "FJ", "affine" or "LC", jet order, and what it contributes.
struct SectorComponent {
  std::string sector;
  int order = 0;
  double mass = 0;                                     // effective mass, section 6
  std::function<double(int head, int64_t lag)> value;  // its part of b_h(lag), gates included
  // Leave-one-order-out: sets the component to zero and returns what puts it back.
  std::function<std::function<void()>()> remove;
};

// The waves by which a term tells lags apart, for the diagnostics: cos and sin of w_k d, or with `light_cone` of w_k
// P(d), P(d) = L asinh(d / L).
struct PhaseChart {
  std::string sector = {};               // of the lag bias, "FJ" or "LC"; empty for a feature transform
  std::vector<double> frequencies = {};  // w_k in radians a token
  double length_scale = 1;               // L in tokens
  bool light_cone = false;
};

// Overwrites x and returns what restores it: for SectorComponent::remove. x must outlive the restorer.
std::function<void()> fill_with(const Tensor& x, double value);

class Term {
 public:
  virtual ~Term() = default;

  virtual std::vector<Parameter*> parameters() { return {}; }
  virtual std::vector<PositionConstant> constants() { return {}; }

  // Replaces the features by the transformed ones.
  virtual void transform(const PositionCall&, Features&) {}
  // Undoes the transform of the values on the attention's output [B, T, H, D].
  virtual Variable restore(const PositionCall&, Variable output) { return output; }
  // b_h(d) for d = 0 .. lags-1 as [H, lags]; undefined when the term has none.
  virtual Variable lag_bias(const PositionCall&, int64_t lags) {
    (void)lags;
    return {};
  }
  // log f_t as [B, T, H]; undefined when the term has none.
  virtual Variable log_gate(const PositionCall&) { return {}; }
  // Placed in the tape's arena by the term (never destroyed) and alive until the tape's reset; null when the term has
  // none. Called once, after transform() of all terms, with the features as attention will read them: with a cache, k
  // and v are all S cached rows, which a term whose keys change as tokens come may bring up to date in place.
  virtual TileTransport* tile_transport(const PositionCall&, const Features&) { return nullptr; }

  // Whether keys that were cached while the sequence was shorter still hold at `total` positions. False for dynamic
  // scaling beyond the training length: generation then recomputes the whole sequence.
  virtual bool keys_hold(int64_t total) const {
    (void)total;
    return true;
  }
  virtual std::unique_ptr<TermState> new_state(int64_t batch) const {
    (void)batch;
    return nullptr;
  }

  // A factor on 1/sqrt(D) (YaRN's temperature); 1 for all others.
  virtual double logit_scale(int64_t total) const {
    (void)total;
    return 1.0;
  }

  // Where the features leave the range of the dtype within `positions`, and what SPEC would keep them in it, as part of
  // a sentence; empty when they do not. What is said beside a loss that is not finite.
  virtual std::string overflow(int64_t positions) const {
    (void)positions;
    return {};
  }

  // The parts of the lag bias by sector and order, for the diagnostics; empty when it has none.
  virtual std::vector<SectorComponent> components() { return {}; }

  // Its waves as they are now, learned frequencies and scales included; empty when it has none that are functions of
  // the position alone.
  virtual std::vector<PhaseChart> phase_charts() const { return {}; }
};

// How a strategy is known to the program. Registering it, in its own file, is all that `train`, `kernel`, `audit`,
// `bench` and the experiments need.
struct StrategyInfo {
  std::string name;
  std::string summary;                // one line, with the source
  std::vector<SpecKey> keys;          // keys, defaults, ranges
  std::vector<std::string> examples;  // SPECs that `audit` and the tests exercise; between them they use every key
  // Rotations of interleaved pairs commute and may share a SPEC. Exclusive transforms act on blocks that do not commute
  // with others' and cannot share a SPEC with another feature transform.
  enum class Transform { none, rotation, exclusive } transform = Transform::none;
  std::function<std::unique_ptr<Term>(const TermSpec&, const PositionSettings&)>
      make;  // throws Error on values out of range
  std::function<Transform(const TermSpec&)> transform_of =
      {};  // where it depends on the keys; otherwise `transform` holds
};

const std::vector<StrategyInfo>& strategies();  // sorted by name
struct RegisterStrategy {
  explicit RegisterStrategy(StrategyInfo info);
};

// The position layer of one block: the terms of a SPEC, composed.
class Position {
 public:
  // Throws Error with the nearest right name for an unknown strategy or key, and for terms that cannot be combined.
  Position(const std::string& spec, const PositionSettings& settings);

  const std::vector<std::unique_ptr<Term>>& terms() const { return terms_; }
  const std::vector<TermSpec>& specs() const { return specs_; }
  std::vector<Parameter*> parameters();
  std::vector<PositionConstant> constants();

  struct State {
    std::vector<std::unique_ptr<TermState>> terms;
  };
  State new_state(int64_t batch) const;

  void transform(PositionCall call, Features& features, State* state);
  Variable restore(PositionCall call, Variable output, State* state);  // in reverse order
  Variable lag_bias(PositionCall call, int64_t lags, State* state);
  Variable log_gate(PositionCall call, State* state);
  TileTransport* tile_transport(PositionCall call, const Features& features, State* state);
  bool keys_hold(int64_t total) const;
  double logit_scale(int64_t total) const;
  std::string overflow(int64_t positions) const;

 private:
  std::vector<TermSpec> specs_;
  std::vector<std::unique_ptr<Term>> terms_;
};

}  // namespace sextant
