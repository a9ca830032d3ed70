// Jordan-RoPE: finite jets as a feature transform (arXiv 2605.04217). [position-space.md section 3]
//
//   G(n) = e^{(-i w - g) n} sum_{r < m} (c n)^r / r! N^r,   q~_i = G(i)^T q_i,   k~_j = G(-j) k_j
//
//   exact        c = 1        scores span n^r e^{i w n}, r < m
//   scaled       c = 1 / L    the same in units of L (the training context unless `scale` says otherwise)
//   stabilized   (c n)^r is replaced by sigma(n)^r with |sigma| < 1: tanh(n / L), or n / sqrt(n^2 + L^2). Not a group
//   any more: what is lost is the closure error.
//
// Order 1 without damping is RoPE to the bit. With anchored=1 the same scores come from near anchors (chains.h), which
// floats can hold at any position.
#include <cmath>

#include "core/error.h"
#include "positional/chains.h"

namespace sextant {

namespace {

class Jordan : public Term {
 public:
  Jordan(const TermSpec& spec, const PositionSettings& settings)
      : settings_(settings), anchored_(spec.flag("anchored")), family_(make_family(spec, settings)) {}

  void transform(const PositionCall& call, Features& features) override {
    if (call.composed)
      transform_by_chains_composed(*call.tape, features, family_, *settings_.tables, call.first);
    else if (anchored_)
      features.k = anchor_keys(*call.tape, features.k, family_, *settings_.tables, call.first);
    else
      transform_by_chains(*call.tape, features, family_, *settings_.tables, call.first);
  }

  TileTransport* tile_transport(const PositionCall& call, const Features&) override {
    if (!anchored_ || call.composed) return nullptr;
    return anchored_transport(*call.tape, family_, *settings_.tables, call.first + call.length, settings_.dtype);
  }

 private:
  static ChainFamily make_family(const TermSpec& spec, const PositionSettings& settings) {
    const int64_t order = spec.integer("order", 1, 64), dim = settings.head_dim;
    require(dim % (2 * order) == 0,
            "position: order={} of 'jordan' needs a head dimension (width / heads) that {} divides, it is {}", order,
            2 * order, dim);
    const std::string& mode = spec.word("mode");
    require(mode != "stabilized" || !spec.flag("anchored"),
            "position: 'jordan' with mode=stabilized is no group and cannot be anchored, use mode=exact or scaled with "
            "anchored=1");
    const double L = spec.given("scale") ? spec.number("scale", 1e-6, 1e12) : static_cast<double>(settings.context);
    const double g = spec.number("damping", 0.0, 10.0);
    const bool hyperbolic = spec.word("sigma") == "tanh";
    ChainFamily family = geometric_chains(dim, order, false);
    family.names = ChainTableNames("jordan " + spec.text());
    family.weights = [=](double n, double* row) {
      double base = mode == "exact" ? n : n / L;
      if (mode == "stabilized") base = hyperbolic ? std::tanh(n / L) : n / std::hypot(n, L);
      row[0] = std::exp(-g * n);
      for (int64_t r = 1; r < order; ++r) row[r] = row[r - 1] * base / static_cast<double>(r);
    };
    return family;
  }

  PositionSettings settings_;
  bool anchored_;
  ChainFamily family_;
};

const RegisterStrategy register_jordan({
    .name = "jordan",
    .summary = "Jordan-RoPE, finite jets as a feature transform (arXiv 2605.04217)",
    .keys = {{"order", "2", "slots m of a chain, from 1 to 64; 2 m divides the head dimension", {}},
             {"scale", "", "length scale L in tokens, from 1e-6 to 1e12; the training context when not given", {}},
             {"mode", "scaled", "jets of n, of n / L, or bounded", {"exact", "scaled", "stabilized"}},
             {"damping", "0", "g in 1 / token, from 0 to 10", {}},
             {"anchored", "0", "1 evaluates by tiles from near anchors, exact at any length", {"0", "1"}},
             {"sigma",
              "tanh",
              "what bounds the stabilized jets: tanh(n / L) or n / sqrt(n^2 + L^2)",
              {"tanh", "algebraic"}}},
    .examples = {"jordan", "jordan(order=1)", "jordan(order=4,mode=exact,damping=0.01)",
                 "jordan(order=2,mode=stabilized,scale=64)", "jordan(order=2,mode=stabilized,sigma=algebraic)",
                 "jordan(order=2,mode=exact,anchored=1)"},
    .transform = StrategyInfo::Transform::exclusive,
    .make = [](const TermSpec& spec, const PositionSettings& settings) -> std::unique_ptr<Term> {
      return std::make_unique<Jordan>(spec, settings);
    },
});

}  // namespace

}  // namespace sextant
