// Learned buckets, the relative bias of T5 (Raffel et al., arXiv 1910.10683, section 2.1): near lags have a value each,
// far ones share values by ranges that grow geometrically, and everything beyond `distance` has the last one.
//
//   b_h(d) = weight[h, bucket(d)]
//   bucket(d) = d for d < n/2, beyond it min(n - 1, n/2 + floor(n/2 log(d / (n/2)) / log(distance / (n/2))))
//
// This file is the example of CONTRIBUTING.md: all that a strategy consists of.
#include <algorithm>
#include <cmath>

#include "autograd/formula.h"
#include "autograd/gradient_check.h"
#include "autograd/products.h"
#include "core/error.h"
#include "positional/strategy.h"

namespace sextant {

namespace {

struct Buckets {
  int64_t count;     // n
  int64_t distance;  // lags from here on share the last bucket

  int64_t of(int64_t lag) const {
    const int64_t near = count / 2;
    if (lag < near) return lag;
    const double share = std::log(static_cast<double>(lag) / static_cast<double>(near)) /
                         std::log(static_cast<double>(distance) / static_cast<double>(near));
    return std::min(count - 1, near + static_cast<int64_t>(std::floor(share * static_cast<double>(count - near))));
  }
};

FORMULA("bucket bias", "b_h(d) = weight[h, bucket(d)]",
        "dweight[h, n] = sum of db_h(d) over the lags d in bucket n, in double");
// weight [H, n] -> b [H, lags]
Variable bucket_bias(Variable weight, const Buckets& buckets, int64_t lags) {
  Tape& tape = weight.tape();
  const int64_t heads = weight.size(0);
  const Tensor bias = tape.empty({heads, lags}, weight.dtype());
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t d = 0; d < lags; ++d)
      bias.set_flat(h * lags + d, weight.value().flat(h * buckets.count + buckets.of(d)));
  return tape.record("bucket bias", {weight}, bias, [weight, buckets, heads, lags](const Tensor& dbias) {
    const Tensor sums = zeros(weight.tape().arena(), weight.shape(), DType::f64);
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t d = 0; d < lags; ++d)
        sums.data<double>()[h * buckets.count + buckets.of(d)] += dbias.flat(h * lags + d);
    weight.accumulate(converted(weight.tape().arena(), sums, weight.dtype()));
  });
}

// The same as a product with the one-hot matrix [n, lags] of which lag is in which bucket.
Variable bucket_bias_composed(Variable weight, const Buckets& buckets, int64_t lags) {
  const Tensor member = weight.tape().zeros({buckets.count, lags}, weight.dtype());
  for (int64_t d = 0; d < lags; ++d) member.set_flat(buckets.of(d) * lags + d, 1.0);
  return matmul(weight, weight.tape().constant(member));
}

}  // namespace

AUDIT(bucket_bias, "positional") {
  const auto audit = [&](const char* label, const Buckets& buckets, int64_t lags) {
    return AuditCase{label,
                     {sample(arena, {3, buckets.count})},
                     [=](Tape&, std::span<const Variable> x) { return bucket_bias(x[0], buckets, lags); },
                     [=](Tape&, std::span<const Variable> x) { return bucket_bias_composed(x[0], buckets, lags); }};
  };
  return {audit("ordinary", {8, 32}, 70), audit("lag 0 alone", {8, 32}, 1), audit("two buckets", {2, 9}, 12)};
}

namespace {

class BucketBias : public Term {
 public:
  BucketBias(const TermSpec& spec, const PositionSettings& settings)
      : buckets_{spec.integer("buckets", 2, 4096), spec.integer("distance", 2, int64_t{1} << 40)},
        weight_(make_parameter(settings, spec.name(), "weight", {settings.heads, buckets_.count})) {
    require(buckets_.distance > buckets_.count / 2,
            "position: distance={} of 'buckets' must be above half of buckets={}", buckets_.distance, buckets_.count);
    fill_normal(weight_.value, Random(settings.seed, "init/" + weight_.name), 0.0, 0.02);
  }

  std::vector<Parameter*> parameters() override { return {&weight_}; }

  Variable lag_bias(const PositionCall& call, int64_t lags) override {
    return (call.composed ? bucket_bias_composed : bucket_bias)(call.tape->parameter(weight_), buckets_, lags);
  }

 private:
  Buckets buckets_;
  Parameter weight_;
};

const RegisterStrategy register_buckets({
    .name = "buckets",
    .summary = "learned bias by buckets of lags, as in T5 (arXiv 1910.10683)",
    .keys = {{"buckets", "32", "how many values a head has, from 2 to 4096", {}},
             {"distance", "128", "tokens from which on all lags share the last bucket; above half the buckets", {}}},
    .examples = {"buckets", "buckets(buckets=8,distance=20)"},
    .make = [](const TermSpec& spec, const PositionSettings& settings) -> std::unique_ptr<Term> {
      return std::make_unique<BucketBias>(spec, settings);
    },
});

}  // namespace

}  // namespace sextant
