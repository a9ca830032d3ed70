// Jordan-RoPE: finite jets as a feature transform (arXiv 2605.04217). [position-space.md section 3]
//
//   G(n) = e^{(-i w - g) n} sum_{r < m} (c n)^r / r! N^r,   q~_i = G(i)^T q_i,   k~_j = G(-j) k_j
//
//   exact        c = 1        scores span n^r e^{i w n}, r < m
//   scaled       c = 1 / L    the same in units of L (the training context unless `scale` says otherwise)
//   stabilized   (c n)^r is replaced by sigma(n)^r with |sigma| < 1: tanh(n / L), or n / sqrt(n^2 + L^2). Not a group
//   any more: what is lost is the closure error.
//
// Order 1 without damping is RoPE to the bit. There are two evaluations of the same scores. The plain one has factors
// G(i)^T and G(-j), which grow with the position; with damping the latter holds e^{g j}, which no float can hold for
// long. The anchored one (chains.h) sees keys and queries from near anchors, which floats can hold at any position. It
// is taken where asked for, and wherever there is damping.
//
// Stabilized chains have no anchored form: since sigma is odd,
//
//   G(i) G(-j) = e^{(-i w - g) (i - j)} exp((sigma(i) - sigma(j)) N)
//
// and no bounded sigma makes sigma(i) - sigma(j) a function of i - j. What carries a query to an anchor would then be a
// matrix for each pair of position and anchor instead of one for each lag, and nothing would be won by it: these jets
// are bounded where they stand. Their damping, which is a group by itself, e^{-g (i - j)} = e^{-g (i - a)} e^{-g (a -
// j)}, has the anchors.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/error.h"
#include "positional/chains.h"

namespace sextant {

namespace {

class Jordan : public Term {
 public:
  Jordan(const TermSpec& spec, const PositionSettings& settings)
      : settings_(settings), text_(spec.text()), whole_(chains(spec, settings, spec.number("damping", 0.0, 10.0))) {
    const double damping = spec.number("damping", 0.0, 10.0);
    damped_ = damping > 0;
    const bool stabilized = spec.word("mode") == "stabilized", asked = spec.given("anchored") && spec.flag("anchored");
    require(!stabilized || !asked,
            "position: 'jordan' with mode=stabilized cannot be anchored: its jets are bounded at absolute positions, "
            "which is no group; leave anchored out (damping has its anchors without it), or use mode=exact or scaled");
    if (spec.given("anchored") ? !asked : damping == 0) {
      plain_ = whole_;
    } else if (stabilized) {
      plain_ = chains(spec, settings, 0.0);
      anchored_ = damping_alone(spec, settings, damping);
    } else {
      anchored_ = whole_;
    }
    if (anchored_) check_range(*anchored_, damping, settings.dtype);
  }

  void transform(const PositionCall& call, Features& features) override {
    if (call.composed) {
      transform_by_chains_composed(*call.tape, features, whole_, *settings_.tables, call.first);
      return;
    }
    if (plain_) transform_by_chains(*call.tape, features, *plain_, *settings_.tables, call.first);
    if (anchored_) features.k = anchor_keys(*call.tape, features.k, *anchored_, *settings_.tables, call.first);
  }

  TileTransport* tile_transport(const PositionCall& call, const Features&) override {
    if (!anchored_ || call.composed) return nullptr;
    return anchored_transport(*call.tape, *anchored_, *settings_.tables, call.first + call.length, settings_.dtype);
  }

  std::vector<PhaseChart> phase_charts() const override { return whole_.phase_charts(1); }

  std::string overflow(int64_t positions) const override {
    const auto said = [&](const ChainFamily& family, const char* what, const char* instead) {
      const int64_t query = family.first_overflow(positions, false, settings_.dtype),
                    key = plain_ ? family.first_overflow(positions, true, settings_.dtype) : -1;
      const int64_t at = query < 0 || (key >= 0 && key < query) ? key : query;
      return at < 0 ? std::string()
                    : fmt::format("'{}' overflows {} at {} {}: {}", text_, name_of(settings_.dtype), what, at, instead);
    };
    if (!plain_) return said(*anchored_, "lag", "take fewer slots (order), a larger scale, or mode=stabilized");
    return said(*plain_, "position",
                damped_ && !anchored_ ? "leave anchored=0 out, damping then has near anchors"
                                      : "take fewer slots (order), a larger scale, or mode=stabilized");
  }

 private:
  static ChainFamily chains(const TermSpec& spec, const PositionSettings& settings, double g) {
    const int64_t order = spec.integer("order", 1, 64), dim = settings.head_dim;
    require(dim % (2 * order) == 0,
            "position: order={} of 'jordan' needs a head dimension (width / heads) that {} divides, it is {}", order,
            2 * order, dim);
    const std::string& mode = spec.word("mode");
    const double L = spec.given("scale") ? spec.number("scale", 1e-6, 1e12) : static_cast<double>(settings.context);
    const bool hyperbolic = spec.word("sigma") == "tanh";
    ChainFamily family = geometric_chains(dim, order, false);
    family.names = ChainTableNames(fmt::format("jordan {} damped by {}", spec.text(), g));
    family.weights = [=](double n, double* row) {
      double base = mode == "exact" ? n : n / L;
      if (mode == "stabilized") base = hyperbolic ? std::tanh(n / L) : n / std::hypot(n, L);
      row[0] = std::exp(-g * n);
      for (int64_t r = 1; r < order; ++r) row[r] = row[r - 1] * base / static_cast<double>(r);
    };
    return family;
  }

  // G(n) = e^{-g n}
  static ChainFamily damping_alone(const TermSpec& spec, const PositionSettings& settings, double g) {
    ChainFamily family = geometric_chains(settings.head_dim, 1, false);
    std::ranges::fill(family.frequencies, DoubleDouble{0.0});
    family.names = ChainTableNames("jordan damping " + spec.text());
    family.weights = [g](double n, double* row) { row[0] = std::exp(-g * n); };
    return family;
  }

  // Within half a tile of the anchor the factors must stay numbers, with room for the features they multiply; and what
  // underflows on the query's side must be nothing after the key's, too. Jets that no damping would bring down to that
  // are not the damping's fault.
  static void check_range(const ChainFamily& family, double damping, DType dtype) {
    const bool f32 = dtype == DType::f32;
    const double largest = f32 ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max(),
                 least = f32 ? std::numeric_limits<float>::min() : std::numeric_limits<double>::min(),
                 unit = f32 ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon(),
                 half_tile = static_cast<double>(TileTransport::tile / 2), room = 1e4;
    std::vector<double> row(static_cast<size_t>(family.layout.columns()));
    family.weights(-half_tile, row.data());
    double factor = 0;
    for (const double weight : row) factor = std::max(factor, std::fabs(weight));
    const double by_keys = damping - std::log(factor / (largest / room)) / half_tile,
                 by_queries = std::log(unit / least) / half_tile, most = std::min(by_keys, by_queries);
    require(damping <= most || by_keys <= 0,
            "position: damping={} of 'jordan' is too strong for {}, which cannot hold what it does to {} tokens; take "
            "{:.2f} or less, or dtype f64",
            damping, name_of(dtype), half_tile, std::floor(100 * most) / 100);
  }

  PositionSettings settings_;
  std::string text_;
  ChainFamily whole_;  // what the scores are made of
  bool damped_ = false;
  std::optional<ChainFamily> plain_, anchored_;  // and how: by absolute positions, then from anchors
};

const RegisterStrategy register_jordan({
    .name = "jordan",
    .summary = "Jordan-RoPE, finite jets as a feature transform (arXiv 2605.04217)",
    .keys = {{"order", "2", "slots m of a chain, from 1 to 64; 2 m divides the head dimension", {}},
             {"scale", "", "length scale L in tokens, from 1e-6 to 1e12; the training context when not given", {}},
             {"mode", "scaled", "jets of n, of n / L, or bounded", {"exact", "scaled", "stabilized"}},
             {"damping", "0", "g in 1 / token, from 0 to 10; in f32 to 2.2, and less with many slots", {}},
             {"anchored",
              "",
              "1 evaluates by tiles from near anchors, exact at any length; when not given, 1 where there is damping "
              "(with 0, e^(g j) overflows at position 88 / g in f32, 709 / g in f64)",
              {"0", "1"}},
             {"sigma",
              "tanh",
              "what bounds the stabilized jets: tanh(n / L) or n / sqrt(n^2 + L^2)",
              {"tanh", "algebraic"}}},
    .examples = {"jordan", "jordan(order=1)", "jordan(order=4,damping=0.01)", "jordan(order=2,damping=0.01,anchored=0)",
                 "jordan(order=2,mode=stabilized,scale=64)",
                 "jordan(order=2,mode=stabilized,sigma=algebraic,damping=0.01)",
                 "jordan(order=2,mode=exact,anchored=1)"},
    .transform = StrategyInfo::Transform::exclusive,
    .make = [](const TermSpec& spec, const PositionSettings& settings) -> std::unique_ptr<Term> {
      return std::make_unique<Jordan>(spec, settings);
    },
});

}  // namespace

}  // namespace sextant
