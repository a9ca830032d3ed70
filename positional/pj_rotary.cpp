// PJ-rotary: the position space as one exact feature transform (arXiv 2606.05345). [position-space.md section 5]
//
//   G(n) = (+)_k [Jordan chain of order m at w_k, jets of n / L]  (+)  [[1, n/L], [0, 1]]
//   q~_i = G(i)^T q_i,   k~_j = G(-j) k_j
//
// The last block (affine=1) is unipotent, at the unit root, and carries the constant and the linear lag; it owns the
// last two coordinates, and the chains share the others. Where their number is no multiple of 2 m, the last chain is
// shorter.
//
// chart=lc puts P(n) = L asinh(n / L) for the phase and B(n) = n / sqrt(n^2 + L^2) for the jets, at absolute positions.
// That chart is bounded but has no exact one-parameter representation: the logits depend on more than the lag, by the
// closure error. Order 1 in the raw chart without the affine block is RoPE to the bit.
#include <cmath>

#include "core/error.h"
#include "positional/chains.h"

namespace sextant {

namespace {

class PjRotary : public Term {
 public:
  PjRotary(const TermSpec& spec, const PositionSettings& settings)
      : settings_(settings),
        text_(spec.text()),
        length_scale_(scale_of(spec, settings)),
        family_(make_family(spec, settings)) {}

  void transform(const PositionCall& call, Features& features) override {
    const auto form = call.composed ? transform_by_chains_composed : transform_by_chains;
    form(*call.tape, features, family_, *settings_.tables, call.first);
  }

  std::vector<PhaseChart> phase_charts() const override { return family_.phase_charts(length_scale_); }

  std::string overflow(int64_t positions) const override {
    const int64_t at = family_.first_overflow(positions, false, settings_.dtype);
    return at < 0
               ? ""
               : fmt::format("'{}' overflows {} at position {}: take fewer slots (order), a larger scale, or chart=lc",
                             text_, name_of(settings_.dtype), at);
  }

 private:
  static double scale_of(const TermSpec& spec, const PositionSettings& settings) {
    return spec.given("scale") ? spec.number("scale", 1e-6, 1e12) : static_cast<double>(settings.context);
  }

  static ChainFamily make_family(const TermSpec& spec, const PositionSettings& settings) {
    const int64_t order = spec.integer("order", 1, 64), dim = settings.head_dim;
    const bool affine = spec.flag("affine");
    require(dim % 2 == 0, "position: 'pj-rotary' rotates pairs, the head dimension is {} (width / heads), must be even",
            dim);
    require(affine ? dim >= 2 * order + 2 : dim % (2 * order) == 0,
            "position: order={} of 'pj-rotary' needs a head dimension (width / heads) {} {}, it is {}", order,
            affine ? "of at least" : "that is a multiple of", affine ? 2 * order + 2 : 2 * order, dim);
    const double L = scale_of(spec, settings);
    const bool light_cone = spec.word("chart") == "lc";
    ChainFamily family = geometric_chains(dim, order, affine);
    family.names = ChainTableNames("pj-rotary " + spec.text());
    if (light_cone) family.phase = [L](double n) { return light_cone_position(n, L); };
    family.weights = [=](double n, double* row) {
      const double base = light_cone ? n / std::hypot(n, L) : n / L;
      row[0] = 1.0;
      for (int64_t r = 1; r < order; ++r) row[r] = row[r - 1] * base / static_cast<double>(r);
      if (affine) row[order] = n / L;
    };
    return family;
  }

  PositionSettings settings_;
  std::string text_;
  double length_scale_;
  ChainFamily family_;
};

const RegisterStrategy register_pj_rotary({
    .name = "pj-rotary",
    .summary = "Jordan chains and a unipotent block as one exact transform (arXiv 2606.05345)",
    .keys = {{"order", "2", "slots m of a chain, from 1 to 64", {}},
             {"scale", "", "length scale L in tokens, from 1e-6 to 1e12; the training context when not given", {}},
             {"affine", "1", "whether the last two coordinates carry constant and linear lag", {"0", "1"}},
             {"chart", "raw", "positions as they are, or bounded by the light-cone chart", {"raw", "lc"}}},
    .examples = {"pj-rotary", "pj-rotary(order=1,affine=0)", "pj-rotary(order=2,affine=0,scale=64)",
                 "pj-rotary(order=2,chart=lc)"},
    .transform = StrategyInfo::Transform::exclusive,
    .make = [](const TermSpec& spec, const PositionSettings& settings) -> std::unique_ptr<Term> {
      return std::make_unique<PjRotary>(spec, settings);
    },
});

}  // namespace

}  // namespace sextant
