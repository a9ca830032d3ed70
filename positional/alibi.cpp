// ALiBi: attention with linear biases (Press, Smith & Lewis, arXiv 2108.12409).
//
//   b_h(d) = -m_h d,   m_h = 2^(-8 h / H), h = 1..H, for H a power of two
//
// For other H the published rule: the slopes of the power of two P below H, then every other slope of 2P until there
// are H. Nothing is learned: one table [H, lags] serves all layers, and its composed twin is itself.
#include <bit>
#include <cmath>

#include "positional/alibi.h"
#include "positional/strategy.h"

namespace sextant {

std::vector<double> alibi_slopes(int64_t heads) {
  const int64_t power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  const auto slope = [](int64_t h, int64_t count) {
    return std::exp2(-8.0 * static_cast<double>(h) / static_cast<double>(count));
  };
  std::vector<double> slopes;
  for (int64_t h = 1; h <= power; ++h) slopes.push_back(slope(h, power));
  for (int64_t h = 1; static_cast<int64_t>(slopes.size()) < heads; h += 2) slopes.push_back(slope(h, 2 * power));
  return slopes;
}

namespace {

class Alibi : public Term {
 public:
  explicit Alibi(const PositionSettings& settings)
      : dtype_(settings.dtype), tables_(settings.tables), slopes_(alibi_slopes(settings.heads)) {}

  Variable lag_bias(const PositionCall& call, int64_t lags) override {
    if (removed_) return {};
    const Tensor table = tables_->get("alibi", lags, [&](Arena& arena, int64_t count) {
      const Tensor bias = empty(arena, {static_cast<int64_t>(slopes_.size()), count}, dtype_);
      for (size_t h = 0; h < slopes_.size(); ++h)
        for (int64_t d = 0; d < count; ++d)
          bias.set_flat(static_cast<int64_t>(h) * count + d, -slopes_[h] * static_cast<double>(d));
      return bias;
    });
    return call.tape->constant(table.slice(1, 0, lags), "alibi");
  }

  std::vector<SectorComponent> components() override {
    double mean = 0;
    for (const double slope : slopes_) mean += slope / static_cast<double>(slopes_.size());
    return {{.sector = "affine",
             .order = 1,
             .mass = mean,
             .value = [this](int head,
                             int64_t lag) { return -slopes_[static_cast<size_t>(head)] * static_cast<double>(lag); },
             .remove =
                 [this] {
                   removed_ = true;
                   return [this] { removed_ = false; };
                 }}};
  }

 private:
  DType dtype_;
  PositionTables* tables_;
  std::vector<double> slopes_;
  bool removed_ = false;
};

const RegisterStrategy register_alibi({
    .name = "alibi",
    .summary = "linear recency with fixed slopes (arXiv 2108.12409)",
    .keys = {},
    .examples = {"alibi"},
    .make = [](const TermSpec&, const PositionSettings& settings) -> std::unique_ptr<Term> {
      return std::make_unique<Alibi>(settings);
    },
});

}  // namespace

}  // namespace sextant
