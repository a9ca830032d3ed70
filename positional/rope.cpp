// Rotary position embedding, RoPE (Su et al., arXiv 2104.09864), and the published ways to stretch it.
//
//   q~_i = R(i w_k) q_i,  k~_j = R(j w_k) k_j   pair by pair,  w_k = base^(-2k/D)
//   the logit depends on R((j - i) w) only
//
//   linear       n -> n / s                                      (position interpolation, arXiv 2306.15595)
//   ntk          base -> base s^(D/(D-2)): the slowest pair is slowed by s, the fastest not at all
//   dynamic-ntk  the same with s = max(1, T / context) at length T
//   yarn         by wavelength (arXiv 2309.00071, section 3.2): with r = context w / 2 pi, turns in the context,
//                w -> (1 - g) w / s + g w,  g = clamp((r - 1) / (32 - 1), 0, 1); and logits times (0.1 ln s + 1)^2
#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "positional/phase.h"
#include "positional/rope.h"
#include "positional/rotate.h"

namespace sextant {

std::vector<DoubleDouble> rope_frequencies(double base, const std::string& scaling, DoubleDouble factor,
                                           int64_t head_dim, int64_t context) {
  const int64_t pairs = head_dim / 2;
  DoubleDouble stretched{base};
  // s^(D/(D-2)) = s s^(1/(P-1)); a single pair has frequency 1 whatever the base.
  if (scaling.ends_with("ntk") && pairs > 1) stretched = stretched * factor * nth_root(factor, pairs - 1);
  std::vector<DoubleDouble> frequencies = geometric_frequencies(stretched, pairs);
  if (scaling == "linear")
    for (DoubleDouble& frequency : frequencies) frequency = frequency / factor;
  if (scaling == "yarn") {
    for (DoubleDouble& frequency : frequencies) {
      const DoubleDouble turns = in_turns(frequency) * DoubleDouble{static_cast<double>(context)};
      DoubleDouble share = (turns - DoubleDouble{1.0}) / DoubleDouble{31.0};
      if (share.high <= 0) share = {0.0};
      if (share.high >= 1) share = {1.0};
      frequency = (DoubleDouble{1.0} - share) * frequency / factor + share * frequency;
    }
  }
  return frequencies;
}

namespace {

class Rope : public Term {
 public:
  Rope(const TermSpec& spec, const PositionSettings& settings)
      : settings_(settings),
        base_(spec.number("base", 1.0, 1e15)),
        scaling_(spec.word("scaling")),
        factor_(spec.number("factor", 1.0, 1e6)),
        pairing_(spec.word("pairing") == "half" ? Pairing::half : Pairing::interleaved),
        key_("rope " + spec.text()) {
    require(settings.head_dim >= 2 && settings.head_dim % 2 == 0,
            "position: 'rope' rotates pairs, the head dimension is {} (width / heads), must be even",
            settings.head_dim);
    frequencies_ =
        rope_frequencies(base_, dynamic() ? "none" : scaling_, {factor_}, settings.head_dim, settings.context);
  }

  void transform(const PositionCall& call, Features& features) override {
    const Tensor phasors = phasors_of(call);
    if (call.composed) {
      features.q = rotate_composed(*call.tape, features.q, phasors, pairing_);
      features.k = rotate_composed(*call.tape, features.k, phasors, pairing_);
    } else {
      rotate(*call.tape, features, phasors, pairing_);
    }
  }

  bool keys_hold(int64_t total) const override { return !dynamic() || total <= settings_.context; }

  double logit_scale(int64_t) const override {
    const double temperature = scaling_ == "yarn" ? 0.1 * std::log(factor_) + 1.0 : 1.0;
    return temperature * temperature;
  }

  // Of dynamic scaling those within the training context.
  std::vector<PhaseChart> phase_charts() const override { return {{.frequencies = values_of(frequencies_)}}; }

 private:
  bool dynamic() const { return scaling_ == "dynamic-ntk"; }

  Tensor phasors_of(const PositionCall& call) const {
    if (dynamic() && call.total > settings_.context) {
      // Every length has frequencies of its own, so there is nothing to share beyond the step.
      const DoubleDouble factor =
          DoubleDouble{static_cast<double>(call.total)} / DoubleDouble{static_cast<double>(settings_.context)};
      const auto stretched = rope_frequencies(base_, scaling_, factor, settings_.head_dim, settings_.context);
      return phasor_table(call.tape->arena(), call.first, call.length, stretched, pairing_, settings_.dtype);
    }
    return shared_phasors(*settings_.tables, key_, call.first, call.length, frequencies_, pairing_, settings_.dtype);
  }

  PositionSettings settings_;
  double base_;
  std::string scaling_;
  double factor_;
  Pairing pairing_;
  std::string key_;
  std::vector<DoubleDouble> frequencies_;
};

const RegisterStrategy register_rope({
    .name = "rope",
    .summary = "rotary position embedding and its scalings (arXiv 2104.09864, 2306.15595, 2309.00071)",
    .keys = {{"base", "10000", "wavelengths run from 2 pi to nearly 2 pi base; from 1 on", {}},
             {"scaling", "none", "how longer contexts are reached", {"none", "linear", "ntk", "dynamic-ntk", "yarn"}},
             {"factor", "2", "how many times the training context, from 1 on; read by linear, ntk and yarn", {}},
             {"pairing", "interleaved", "pairs (x0, x1), (x2, x3), .. or (x0, x_{D/2}), ..", {"interleaved", "half"}}},
    .examples = {"rope", "rope(base=500000,pairing=half)", "rope(scaling=linear,factor=4)",
                 "rope(scaling=ntk,factor=4)", "rope(scaling=dynamic-ntk)", "rope(scaling=yarn,factor=8)"},
    .transform = StrategyInfo::Transform::rotation,
    .make = [](const TermSpec& spec, const PositionSettings& settings) -> std::unique_ptr<Term> {
      return std::make_unique<Rope>(spec, settings);
    },
    // Other rotations act on interleaved pairs, which half pairs do not commute with.
    .transform_of =
        [](const TermSpec& spec) {
          return spec.word("pairing") == "half" ? StrategyInfo::Transform::exclusive
                                                : StrategyInfo::Transform::rotation;
        },
});

}  // namespace

}  // namespace sextant
