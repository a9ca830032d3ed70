// Accumulated transport ("Why Do Accumulated Transformations Extrapolate?", arXiv 2606.24975; PaTH, arXiv 2505.16381):
// the way from a key to a query is made of one step a token,
//
//   logit(i, j) = q_i^T M_i M_{i-1} ... M_{j+1} k_j / sqrt(D)
//   out_i = sum_j alpha_ij M_i M_{i-1} ... M_{j+1} v_j               with values=1
//
// This file: the keys of the SPEC, the SO(2) kinds, and gate=1, which adds the term `gate` (the same model as
// `transport(..)+gate`).
//
//   kind=random   M_t = R(-theta_t) with theta a fixed random function of the token (by=token), or of the position
//                 (by=position, a control without content); N(0, std^2) for each head and pair. A route of n steps
//                 keeps e^{-n std^2 / 2} of its score in the mean: the default std = 0.25 mixes within 2 / std^2 = 32
//                 tokens.
//   kind=learned  theta_t = W x_t + c, W ~ N(0, std^2 / C), c = 0: with the default std = 0.02 all routes within a
//                 context begin near the identity and training makes of the angles what it needs, but no two pairs
//                 begin alike.
//
// Cost of a layer's attention with everything the strategy adds to it, forward and backward, as a multiple of RoPE's
// (f32, one thread with AVX-512, 8 heads of 16, 8 sequences of 512): random 1.1, learned 1.2, learned with values 1.3,
// gate 1.07, householder 2.5, householder with values 3.9, path 4.3. One sequence of 4,096: path 1.9; of 16,384:
// path 1.5.
#include "positional/transport.h"

#include <algorithm>
#include <cmath>

#include "autograd/shaping.h"
#include "core/error.h"
#include "positional/accumulated_rotation.h"
#include "positional/gate.h"
#include "positional/projection.h"

namespace sextant {

namespace {

// ---- rotations ----------------------------------------------------------------------------------------------------

struct AngleState : TermState {
  explicit AngleState(int64_t count) : angles(static_cast<size_t>(count), 0.0) {}
  std::vector<double> angles;  // Phi of the last token seen, [B, H, P]
};

class RotationTransport : public Term {
 public:
  RotationTransport(const PositionSettings& settings, AngleSource source, bool values, double deviation)
      : settings_(settings), source_(source), values_(values), deviation_(deviation), pairs_(settings.head_dim / 2) {
    require(settings.head_dim >= 2 && settings.head_dim % 2 == 0,
            "position: 'transport' with angles rotates pairs, the head dimension is {} (width / heads), must be even",
            settings.head_dim);
    if (source == AngleSource::learned) {
      const double weight = deviation / std::sqrt(static_cast<double>(settings.width));
      steps_ = std::make_unique<Projection>(settings, "transport", "weight", "bias", settings.heads * pairs_, weight);
    } else if (source == AngleSource::token) {
      token_angles_ = empty(*settings.weights, {settings.vocabulary, settings.heads, pairs_}, settings.dtype);
      fill_normal(token_angles_, Random(settings.seed, "init/" + settings.prefix + "transport.angles"), 0.0, deviation);
    }
  }

  std::vector<Parameter*> parameters() override {
    return steps_ == nullptr ? std::vector<Parameter*>{} : std::vector<Parameter*>{&steps_->weight, &steps_->bias};
  }
  std::vector<PositionConstant> constants() override {
    return token_angles_.defined()
               ? std::vector<PositionConstant>{{settings_.prefix + "transport.angles", token_angles_}}
               : std::vector<PositionConstant>{};
  }

  void transform(const PositionCall& call, Features& features) override {
    auto* state = static_cast<AngleState*>(call.state);
    const Shape last{call.batch, settings_.heads, pairs_};
    const Tensor before = state == nullptr ? Tensor{} : Tensor::wrap(state->angles.data(), last, DType::f64);
    const Variable angles = (call.composed ? accumulated_angles_composed : accumulated_angles)(steps(call), before);
    rotation_ = accumulated_rotation(angles, settings_.dtype);
    (call.composed ? rotate_composed : rotate)(rotation_, features, values_);
    if (state != nullptr) before.copy_from(angles.value().select(1, call.length - 1));
  }

  Variable restore(const PositionCall& call, Variable output) override {
    if (!values_) return output;
    return (call.composed ? rotate_back_composed : rotate_back)(rotation_, output);
  }

  std::unique_ptr<TermState> new_state(int64_t batch) const override {
    return std::make_unique<AngleState>(batch * settings_.heads * pairs_);
  }

 private:
  // theta [B, T, H, P]
  Variable steps(const PositionCall& call) {
    const Shape shape{call.batch, call.length, settings_.heads, pairs_};
    if (source_ == AngleSource::learned) return reshape((*steps_)(call), shape);
    const Tensor values = call.tape->empty(shape, settings_.dtype);
    if (source_ == AngleSource::token) {
      const int64_t lanes = settings_.heads * pairs_;
      kernels::embedding(token_angles_.reshape({settings_.vocabulary, lanes}), call.tokens,
                         values.reshape({call.batch * call.length, lanes}));
    } else {
      const Tensor table = position_angles(call.first + call.length).slice(0, call.first, call.length);
      for (int64_t b = 0; b < call.batch; ++b) values.select(0, b).copy_from(table);
    }
    return call.tape->constant(values, "angle steps");
  }

  // [positions, H, P], the same numbers however long the table: each is a function of its index alone.
  Tensor position_angles(int64_t positions) const {
    const std::string name = settings_.prefix + "transport.angles by position";
    return settings_.tables->get(name, positions, [&](Arena& arena, int64_t count) {
      const Tensor table = empty(arena, {count, settings_.heads, pairs_}, settings_.dtype);
      fill_normal(table, Random(settings_.seed, "init/" + name), 0.0, deviation_);
      return table;
    });
  }

  PositionSettings settings_;
  AngleSource source_;
  bool values_;
  double deviation_;
  int64_t pairs_;
  std::unique_ptr<Projection> steps_;
  Tensor token_angles_;
  AccumulatedRotation rotation_;  // of the call under way: what transform() turned, restore() turns back
};

// ---- gate=1 -------------------------------------------------------------------------------------------------------

class GatedTransport : public Term {
 public:
  GatedTransport(std::unique_ptr<Term> transport, std::unique_ptr<Term> gate)
      : transport_(std::move(transport)), gate_(std::move(gate)) {}

  std::vector<Parameter*> parameters() override {
    std::vector<Parameter*> all = transport_->parameters();
    for (Parameter* parameter : gate_->parameters()) all.push_back(parameter);
    return all;
  }
  std::vector<PositionConstant> constants() override { return transport_->constants(); }
  void transform(const PositionCall& call, Features& features) override { transport_->transform(call, features); }
  Variable restore(const PositionCall& call, Variable output) override { return transport_->restore(call, output); }
  Variable log_gate(const PositionCall& call) override { return gate_->log_gate(call); }
  TileTransport* tile_transport(const PositionCall& call, const Features& features) override {
    return transport_->tile_transport(call, features);
  }
  std::unique_ptr<TermState> new_state(int64_t batch) const override { return transport_->new_state(batch); }

 private:
  std::unique_ptr<Term> transport_, gate_;
};

// ---- registration -------------------------------------------------------------------------------------------------

std::unique_ptr<Term> make_kind(const TermSpec& spec, const PositionSettings& settings) {
  const std::string& kind = spec.word("kind");
  const bool values = spec.flag("values"), rotation = kind == "random" || kind == "learned";
  require(rotation || !spec.given("std"), "position: '{}': std is the deviation of angles, kind={} has none",
          spec.text(), kind);
  require(kind == "random" || spec.word("by") == "token", "position: '{}': by=position is for kind=random",
          spec.text());
  require(kind != "path" || !values,
          "position: '{}': kind=path has no values=1, since its steps cannot be undone on the output", spec.text());
  if (kind == "householder") return make_householder_transport(settings, values);
  if (kind == "path") return make_path_transport(settings);
  const double deviation = spec.given("std") ? spec.number("std", 0.0, 100.0) : kind == "random" ? 0.25 : 0.02;
  const AngleSource source = kind == "learned"            ? AngleSource::learned
                             : spec.word("by") == "token" ? AngleSource::token
                                                          : AngleSource::position;
  return make_rotation_transport(settings, source, values, deviation);
}

const RegisterStrategy register_transport({
    .name = "transport",
    .summary = "token-dependent steps accumulated along the route (arXiv 2606.24975, 2505.16381)",
    .keys = {{"kind", "learned", "the steps", {"random", "learned", "householder", "path"}},
             {"values", "0", "1: the values travel too and are brought back on the output; not for path", {"0", "1"}},
             {"std", "", "standard deviation of the angle steps at the start, radians; random 0.25, learned 0.02", {}},
             {"by", "token", "what random angles are a function of", {"token", "position"}},
             {"gate", "0", "1: the same as adding the term gate", {"0", "1"}}},
    .examples = {"transport", "transport(kind=learned,values=1,std=0.1,gate=1)", "transport(kind=random)",
                 "transport(kind=random,values=1,by=position)", "transport(kind=householder)",
                 "transport(kind=householder,values=1)", "transport(kind=path)", "transport(kind=path,gate=1)"},
    .transform = StrategyInfo::Transform::exclusive,
    .make = [](const TermSpec& spec, const PositionSettings& settings) -> std::unique_ptr<Term> {
      std::unique_ptr<Term> transport = make_kind(spec, settings);
      if (!spec.flag("gate")) return transport;
      return std::make_unique<GatedTransport>(std::move(transport), make_gate(settings));
    },
    // Rotations of pairs commute with RoPE's; general steps do not.
    .transform_of =
        [](const TermSpec& spec) {
          const bool rotation = spec.word("kind") == "random" || spec.word("kind") == "learned";
          return rotation ? StrategyInfo::Transform::rotation : StrategyInfo::Transform::exclusive;
        },
});

}  // namespace

std::unique_ptr<Term> make_rotation_transport(const PositionSettings& settings, AngleSource source, bool values,
                                              double deviation) {
  return std::make_unique<RotationTransport>(settings, source, values, deviation);
}

}  // namespace sextant
