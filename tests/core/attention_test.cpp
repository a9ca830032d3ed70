// Fused attention against plain loops in long double, finite differences, and itself computed otherwise.
#include "core/attention.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "core/cpu.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/tile_transport.h"

namespace sextant {
namespace {

using Real = long double;
constexpr double infinity = std::numeric_limits<double>::infinity();

struct Case {
  int64_t batch = 2, queries = 70, keys = 70, heads = 2, depth = 8;
  bool bias = false, gate = false;
  DType dtype = DType::f64;
  double spread = 1.0;  // standard deviation of q and k
  double scale = 0.35;
};

// One problem, its results and gradients, in an arena of its own.
struct Problem {
  Arena arena;
  Case size;
  AttentionInputs inputs;
  Tensor out, lse, dout;
  Tensor dq, dk, dv, dbias, dgate;

  explicit Problem(const Case& wanted, uint64_t seed = 1) : size(wanted) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    const auto [B, T, S, H, D] = std::tuple{size.batch, size.queries, size.keys, size.heads, size.depth};
    // q, k and v as views of one tensor, as the model has them. With T < S the queries are the last.
    const Tensor qkv = empty(arena, {B, S, 3, H, D}, size.dtype);
    for (int64_t n = 0; n < qkv.elements(); ++n) {
      const bool value = n / (H * D) % 3 == 2;
      qkv.set_flat(n, static_cast<double>(static_cast<float>((value ? 1.0 : size.spread) * normal(random))));
    }
    inputs.q = qkv.select(2, 0).slice(1, S - T, T);
    inputs.k = qkv.select(2, 1);
    inputs.v = qkv.select(2, 2);
    inputs.scale = size.scale;
    if (size.bias) {
      inputs.bias = empty(arena, {H, S + 3}, size.dtype);
      for (int64_t n = 0; n < inputs.bias.elements(); ++n)
        inputs.bias.set_flat(n, static_cast<double>(static_cast<float>(normal(random))));
    }
    if (size.gate) {
      inputs.gate = empty(arena, {B, S, H}, DType::f64);
      for (int64_t b = 0; b < B; ++b) {
        for (int64_t h = 0; h < H; ++h) {
          double sum = 0.0;
          for (int64_t s = 0; s < S; ++s) {
            sum -= 0.2 * std::abs(normal(random));
            inputs.gate.set_flat((b * S + s) * H + h, sum);
          }
        }
      }
    }
    out = empty(arena, {B, T, H, D}, size.dtype);
    lse = empty(arena, {B, H, T}, size.dtype);
    dout = empty(arena, {B, T, H, D}, size.dtype);
    for (int64_t n = 0; n < dout.elements(); ++n)
      dout.set_flat(n, static_cast<double>(static_cast<float>(normal(random))));
    dq = full(arena, {B, T, H, D}, 7.0, size.dtype);
    dk = full(arena, {B, S, H, D}, 7.0, size.dtype);
    dv = full(arena, {B, S, H, D}, 7.0, size.dtype);
    dbias = full(arena, {H, S + 3}, 7.0, size.dtype);
    dgate = full(arena, {B, S, H}, 7.0, DType::f64);
  }

  void forward() { kernels::attention(inputs, out, lse); }
  void backward(bool accumulate = false) {
    AttentionGradients gradients{{dq, accumulate}, {dk, accumulate}, {dv, accumulate}, {}, {}};
    if (size.bias) gradients.bias = {dbias, accumulate};
    if (size.gate) gradients.gate = {dgate, accumulate};
    kernels::attention_backward(inputs, out, lse, dout, gradients, arena);
  }
  std::vector<Tensor> results() const {
    std::vector<Tensor> all = {out, lse, dq, dk, dv};
    if (size.bias) all.push_back(dbias);
    if (size.gate) all.push_back(dgate);
    return all;
  }
};

std::vector<Real> values(const Tensor& x) {
  std::vector<Real> all;
  for (int64_t n = 0; x.defined() && n < x.elements(); ++n) all.push_back(x.flat(n));
  return all;
}

// The same by loops over pairs, straight from the definition.
struct Oracle {
  std::vector<Real> out, lse, dq, dk, dv, dbias, dgate;

  explicit Oracle(const Problem& problem) {
    const auto [B, T, S, H, D] =
        std::tuple{problem.size.batch, problem.size.queries, problem.size.keys, problem.size.heads, problem.size.depth};
    const AttentionInputs& in = problem.inputs;
    const std::vector<Real> q = values(in.q), k = values(in.k), v = values(in.v), bias = values(in.bias),
                            gate = values(in.gate);
    const std::vector<Real> dout = values(problem.dout);
    out.resize(B * T * H * D);
    dq.resize(out.size());
    lse.resize(B * H * T);
    dk.resize(B * S * H * D);
    dv.resize(dk.size());
    dbias.resize(H * (S + 3));
    dgate.resize(B * S * H);
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t h = 0; h < H; ++h) {
        for (int64_t t = 0; t < T; ++t) {
          const int64_t i = S - T + t;
          std::vector<Real> logit(i + 1), p(i + 1), dp(i + 1);
          Real largest = -infinity;
          for (int64_t j = 0; j <= i; ++j) {
            for (int64_t d = 0; d < D; ++d)
              logit[j] += q[((b * T + t) * H + h) * D + d] * k[((b * S + j) * H + h) * D + d];
            logit[j] *= in.scale;
            if (in.bias.defined()) logit[j] += bias[h * (S + 3) + i - j];
            if (in.gate.defined()) logit[j] += gate[(b * S + i) * H + h] - gate[(b * S + j) * H + h];
            largest = std::max(largest, logit[j]);
          }
          Real sum = 0;
          for (int64_t j = 0; j <= i && largest > -infinity; ++j) sum += p[j] = std::exp(logit[j] - largest);
          lse[(b * H + h) * T + t] = sum > 0 ? largest + std::log(sum) : -infinity;
          Real delta = 0;
          for (int64_t j = 0; j <= i && sum > 0; ++j) {
            p[j] /= sum;
            for (int64_t d = 0; d < D; ++d) {
              const int64_t query = ((b * T + t) * H + h) * D + d, key = ((b * S + j) * H + h) * D + d;
              out[query] += p[j] * v[key];
              dp[j] += dout[query] * v[key];
              dv[key] += p[j] * dout[query];
            }
            delta += p[j] * dp[j];
          }
          for (int64_t j = 0; j <= i; ++j) {
            const Real ds = p[j] * (dp[j] - delta);
            dbias[h * (S + 3) + i - j] += ds;
            dgate[(b * S + i) * H + h] += ds;
            dgate[(b * S + j) * H + h] -= ds;
            for (int64_t d = 0; d < D; ++d) {
              const int64_t query = ((b * T + t) * H + h) * D + d, key = ((b * S + j) * H + h) * D + d;
              dq[query] += ds * in.scale * k[key];
              dk[key] += ds * in.scale * q[query];
            }
          }
        }
      }
    }
  }
};

// Largest difference, in units of the largest absolute value there is. Infinities must agree exactly.
double worst(const Tensor& x, const std::vector<Real>& expected) {
  EXPECT_EQ(static_cast<size_t>(x.elements()), expected.size());
  Real largest = 1e-30L, difference = 0;
  for (int64_t n = 0; n < x.elements(); ++n) {
    const Real want = expected[static_cast<size_t>(n)], have = x.flat(n);
    if (std::isinf(want) && want == have) continue;
    if (!std::isfinite(have)) return infinity;
    largest = std::max(largest, std::abs(want));
    difference = std::max(difference, std::abs(want - have));
  }
  return static_cast<double>(difference / largest);
}

void expect_agreement(const Problem& problem, const Oracle& oracle, double tolerance) {
  EXPECT_LT(worst(problem.out, oracle.out), tolerance) << "out";
  EXPECT_LT(worst(problem.lse, oracle.lse), tolerance) << "lse";
  EXPECT_LT(worst(problem.dq, oracle.dq), tolerance) << "dq";
  EXPECT_LT(worst(problem.dk, oracle.dk), tolerance) << "dk";
  EXPECT_LT(worst(problem.dv, oracle.dv), tolerance) << "dv";
  if (problem.size.bias) {
    EXPECT_LT(worst(problem.dbias, oracle.dbias), tolerance) << "dbias";
  }
  if (problem.size.gate) {
    EXPECT_LT(worst(problem.dgate, oracle.dgate), tolerance) << "dgate";
  }
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape())) return false;
  for (int64_t n = 0; n < a.elements(); ++n) {
    if (std::bit_cast<uint64_t>(a.flat(n)) != std::bit_cast<uint64_t>(b.flat(n))) return false;
  }
  return true;
}

// One thread for the scope: thousands of small calls would mostly wait for each other.
struct OneThread {
  int before = threads();
  OneThread() { set_threads(1); }
  ~OneThread() { set_threads(before); }
};

// Every instruction set of the machine, one after another.
template <class F>
void for_each_isa(F&& f) {
  const Isa before = isa();
  for (Isa each : available_isas()) {
    SCOPED_TRACE(name_of(each));
    set_isa(each);
    f();
  }
  set_isa(before);
}

// Both passes with every instruction set; f32 within 1e-5 of the largest value, f64 within 2e-14.
void expect_agreement_everywhere(const Case& size, uint64_t seed) {
  SCOPED_TRACE(fmt::format("{} B={} T={} S={} H={} D={} bias={} gate={}", name_of(size.dtype), size.batch, size.queries,
                           size.keys, size.heads, size.depth, size.bias, size.gate));
  Problem problem(size, seed);
  problem.forward();
  const Oracle oracle(problem);
  for_each_isa([&] {
    problem.forward();
    problem.backward();
    expect_agreement(problem, oracle, size.dtype == DType::f64 ? 2e-14 : 1e-5);
  });
}

TEST(Attention, AgreesWithLoopsAtAllSizes) {
  const OneThread one_thread;
  uint64_t seed = 1;
  for (DType dtype : {DType::f64, DType::f32}) {
    for (int64_t keys : {1, 2, 15, 16, 17, 63, 64, 65, 100, 128, 200}) {
      for (int64_t depth : {1, 8, 16, 24, 40, 64, 128}) {
        if (depth > 24 && keys % 5 != 0) continue;
        Case size{.batch = 1 + keys % 2, .queries = keys, .keys = keys, .heads = 1 + depth % 3, .depth = depth};
        size.bias = seed % 2 == 0;
        size.gate = seed % 3 == 0;
        size.dtype = dtype;
        expect_agreement_everywhere(size, seed++);
      }
    }
  }
}

TEST(Attention, QueriesMayBeTheLastOfManyKeys) {
  for (int64_t queries : {1, 2, 7, 40, 64, 65, 130}) {
    for (DType dtype : {DType::f64, DType::f32}) {
      expect_agreement_everywhere({.batch = 1,
                                   .queries = queries,
                                   .keys = 203,
                                   .heads = 2,
                                   .depth = 24,
                                   .bias = true,
                                   .gate = true,
                                   .dtype = dtype},
                                  5);
    }
  }
}

// ---- bits ---------------------------------------------------------------------------------------------------------

TEST(Attention, SameBitsForAnyNumberOfThreads) {
  const int before = threads();
  for (const bool few : {false, true}) {  // few heads are shared out by query tiles in the backward
    std::vector<std::unique_ptr<Problem>> runs;
    for (int count : {1, 2, 3}) {
      set_threads(count);
      const int64_t length = few ? 600 : 130;
      runs.push_back(std::make_unique<Problem>(Case{.batch = few ? 1 : 5,
                                                    .queries = length,
                                                    .keys = length,
                                                    .heads = few ? 1 : 3,
                                                    .depth = 16,
                                                    .bias = true,
                                                    .gate = true,
                                                    .dtype = DType::f32}));
      runs.back()->forward();
      runs.back()->backward();
    }
    for (size_t run : {1u, 2u}) {
      for (size_t n = 0; n < runs[0]->results().size(); ++n)
        EXPECT_TRUE(same_bits(runs[0]->results()[n], runs[run]->results()[n])) << n;
    }
  }
  set_threads(before);
}

// The backward shares few (batch, head) out by parts, many whole: a sequence alone must not notice.
TEST(Attention, ASequencesBitsDoNotDependOnTheBatch) {
  for (const int64_t heads : {1, 3, 4}) {
    const auto problem = [&](int64_t batch) {
      return Problem({.batch = batch,
                      .queries = 333,
                      .keys = 333,
                      .heads = heads,
                      .depth = 16,
                      .bias = true,
                      .gate = true,
                      .dtype = DType::f32});
    };
    Problem many = problem(8);
    many.forward();
    many.backward();
    for (const int64_t sequence : {0, 7}) {
      Problem alone = problem(1);
      for (const auto& [to, from] : {std::pair{alone.inputs.q, many.inputs.q},
                                     {alone.inputs.k, many.inputs.k},
                                     {alone.inputs.v, many.inputs.v},
                                     {alone.inputs.gate, many.inputs.gate},
                                     {alone.dout, many.dout}})
        to.copy_from(from.slice(0, sequence, 1));
      alone.inputs.bias = many.inputs.bias;
      alone.forward();
      alone.backward();
      for (const auto& [one, of_many] : {std::pair{alone.out, many.out},
                                         {alone.lse, many.lse},
                                         {alone.dq, many.dq},
                                         {alone.dk, many.dk},
                                         {alone.dv, many.dv},
                                         {alone.dgate, many.dgate}})
        EXPECT_TRUE(same_bits(one, of_many.slice(0, sequence, 1))) << heads << " heads, sequence " << sequence;
    }
  }
}

// A query alone, or the last few, with a cache of keys, against the pass over everything.
TEST(Attention, AQuerysBitsDoNotDependOnItsCompany) {
  const OneThread one_thread;
  for_each_isa([] {
    for (DType dtype : {DType::f32, DType::f64}) {
      Problem whole({.batch = 1,
                     .queries = 201,
                     .keys = 201,
                     .heads = 2,
                     .depth = 24,
                     .bias = true,
                     .gate = true,
                     .dtype = dtype});
      whole.forward();
      Arena arena;
      for (int64_t keys = 1; keys <= 201; ++keys) {
        for (int64_t queries : {1, 3, 80}) {
          if (queries > keys) continue;
          AttentionInputs inputs = whole.inputs;
          inputs.q = inputs.q.slice(1, keys - queries, queries);
          inputs.k = inputs.k.slice(1, 0, keys);
          inputs.v = inputs.v.slice(1, 0, keys);
          inputs.gate = inputs.gate.slice(1, 0, keys);
          if (queries != 1 && keys % 7 != 0) continue;
          const Tensor out = empty(arena, {1, queries, 2, 24}, dtype), lse = empty(arena, {1, 2, queries}, dtype);
          kernels::attention(inputs, out, lse);
          ASSERT_TRUE(same_bits(out, whole.out.slice(1, keys - queries, queries))) << keys << " " << queries;
          ASSERT_TRUE(same_bits(lse, whole.lse.slice(2, keys - queries, queries))) << keys << " " << queries;
        }
        arena.reset();
      }
    }
  });
}

// ---- sinks and scratch --------------------------------------------------------------------------------------------

TEST(Attention, GradientsAreAddedOrWritten) {
  const Case size{.batch = 2, .queries = 70, .keys = 90, .bias = true, .gate = true};
  Problem written(size), added(size);
  written.forward();
  written.backward();
  added.forward();
  added.backward(true);  // onto the sevens that are there
  for (size_t n = 2; n < written.results().size(); ++n) {
    const Tensor a = written.results()[n], b = added.results()[n];
    for (int64_t e = 0; e < a.elements(); ++e) ASSERT_NEAR(a.flat(e) + 7.0, b.flat(e), 1e-14) << n << " " << e;
  }
}

TEST(Attention, ScratchIsLinearInLength) {
  const auto scratch_of = [](int64_t length) {
    Problem problem({.batch = 1,
                     .queries = length,
                     .keys = length,
                     .heads = 1,
                     .depth = 8,
                     .bias = true,
                     .gate = true,
                     .dtype = DType::f32});
    problem.forward();
    const size_t before = problem.arena.used();
    problem.backward();
    EXPECT_EQ(problem.arena.used(), before);
    return problem.arena.peak() - before;
  };
  const size_t at_2048 = scratch_of(2048), at_8192 = scratch_of(8192);
  EXPECT_LT(at_8192, 4 * at_2048);
  EXPECT_LT(at_8192, size_t{8192} * 8192);  // bytes: a quarter of a matrix of scores
}

// ---- awkward values -----------------------------------------------------------------------------------------------

TEST(Attention, HiddenRowsGiveZero) {
  for_each_isa([] {
    Problem problem({.batch = 1, .queries = 90, .keys = 90, .heads = 2, .depth = 8, .bias = true, .dtype = DType::f32});
    // Head 0 sees nothing at all; head 1 only what is at least 70 behind.
    for (int64_t lag = 0; lag < 93; ++lag) {
      problem.inputs.bias.set_flat(lag, -infinity);
      if (lag < 70) problem.inputs.bias.set_flat(93 + lag, -infinity);
    }
    problem.forward();
    problem.backward();
    expect_agreement(problem, Oracle(problem), 1e-5);
    EXPECT_EQ(problem.out.at({0, 80, 0, 3}), 0.0);
    EXPECT_EQ(problem.lse.at({0, 0, 80}), -infinity);
    EXPECT_EQ(problem.out.at({0, 69, 1, 3}), 0.0);
    EXPECT_NE(problem.out.at({0, 70, 1, 3}), 0.0);
    EXPECT_EQ(problem.dv.at({0, 30, 1, 3}), 0.0);
  });
}

TEST(Attention, HugeAndEqualLogits) {
  for_each_isa([] {
    for (DType dtype : {DType::f32, DType::f64}) {
      Problem huge({.queries = 80, .keys = 80, .dtype = dtype, .spread = 1e15});
      huge.forward();
      huge.backward();
      // One key takes all. Which one, the definition says; logits of 1e30 have no close rivals.
      const Oracle oracle(huge);
      EXPECT_LT(worst(huge.out, oracle.out), 1e-6);
      EXPECT_LT(worst(huge.lse, oracle.lse), 1e-6);
      for (const Tensor& x : huge.results()) EXPECT_TRUE(all_finite(x));

      Problem equal({.queries = 80, .keys = 80, .dtype = dtype, .spread = 0.0});
      equal.forward();
      equal.backward();
      expect_agreement(equal, Oracle(equal), dtype == DType::f64 ? 1e-14 : 2e-6);
    }
  });
}

TEST(Attention, GateKeepsItsDigitsFarFromTheStart) {
  Problem problem({.batch = 1, .queries = 130, .keys = 130, .heads = 1, .depth = 8, .gate = true, .dtype = DType::f32});
  for (int64_t s = 0; s < 130; ++s) problem.inputs.gate.set_flat(s, problem.inputs.gate.flat(s) - 1e5);
  problem.forward();
  problem.backward();
  expect_agreement(problem, Oracle(problem), 2e-6);
}

// Gates that all but close: within 16 keys F falls by thousands, millions, and what no float can hold. Keys on either
// side of a drop must still differ by their own gates, and what lies before it has no weight.
TEST(Attention, GateKeepsItsDigitsAcrossADropWithinATile) {
  for_each_isa([] {
    for (const DType dtype : {DType::f32, DType::f64}) {
      for (const double drop : {88.0, 5e3, 1e6, 3e8, 1e35}) {
        Problem problem(
            {.batch = 1, .queries = 150, .keys = 150, .heads = 2, .depth = 8, .gate = true, .dtype = dtype});
        for (int64_t s = 0; s < 150; ++s)
          for (int64_t h = 0; h < 2; ++h) {
            const int64_t drops = (s >= 5 + h) + (s >= 37) + (s >= 39) + (s >= 64) + (s >= 127);
            problem.inputs.gate.set_flat(2 * s + h,
                                         problem.inputs.gate.flat(2 * s + h) - drop * static_cast<double>(drops));
          }
        problem.forward();
        problem.backward();
        SCOPED_TRACE(fmt::format("{} drop {}", name_of(dtype), drop));
        expect_agreement(problem, Oracle(problem), dtype == DType::f32 ? 2e-6 : 1e-13);
      }
    }
  });
}

// Attention that is nearly uniform over a long context is an average of values of one sign: one chain over all keys
// would round each p v to the digits of the growing sum, always alike where values repeat, as tokens do.
TEST(Attention, AnAverageOverThousandsOfKeysKeepsItsDigits) {
  constexpr int64_t keys = 32768, depth = 8, tokens = 11;
  for_each_isa([] {
    for (const int64_t queries : {1, 70}) {
      Arena arena;
      const Tensor q = zeros(arena, {1, queries, 1, depth}, DType::f32),
                   k = zeros(arena, {1, keys, 1, depth}, DType::f32), v = empty(arena, k.shape(), DType::f32),
                   out = empty(arena, q.shape(), DType::f32), lse = empty(arena, {1, 1, queries}, DType::f32);
      std::mt19937_64 random(3);
      std::vector<double> values(tokens * depth);
      for (double& value : values) value = 1 + 0.3 * std::normal_distribution<double>()(random);
      for (int64_t j = 0; j < keys; ++j) {
        const size_t token = random() % tokens;
        for (int64_t d = 0; d < depth; ++d) v.set_flat(j * depth + d, values[token * depth + static_cast<size_t>(d)]);
      }
      kernels::attention({q, k, v, {}, {}, 1.0, nullptr}, out, lse);
      for (const int64_t i : {int64_t{0}, queries - 1}) {
        const int64_t seen = keys - queries + i + 1;
        for (int64_t d = 0; d < depth; ++d) {
          Real sum = 0;
          for (int64_t j = 0; j < seen; ++j) sum += v.flat(j * depth + d);
          EXPECT_NEAR(out.flat(i * depth + d) / static_cast<double>(sum / seen), 1.0, 5e-6) << queries << " queries";
        }
      }
    }
  });
}

// A long sequence: what f32 loses against f64.
TEST(Attention, FloatStaysCloseToDoubleAtLength4096) {
  Case size{.batch = 1, .queries = 4096, .keys = 4096, .heads = 1, .depth = 16, .bias = true, .dtype = DType::f32};
  Problem single(size);
  size.dtype = DType::f64;
  Problem twice(size);  // the same numbers: they are rounded to f32 in either
  single.forward();
  single.backward();
  twice.forward();
  twice.backward();
  for (size_t n = 0; n < single.results().size(); ++n) {
    std::vector<Real> expected;
    for (int64_t e = 0; e < twice.results()[n].elements(); ++e) expected.push_back(twice.results()[n].flat(e));
    EXPECT_LT(worst(single.results()[n], expected), 1e-5) << n;
  }
}

// ---- transport ----------------------------------------------------------------------------------------------------

// A transport with something of everything: rows turned by an angle for each tile passed, and on entry some of the raw
// row; on the diagonal scores with a quadratic part.
//   x_I = 1.1 q,   x_J = R(angle[h, J + 1]) x_{J+1} + 0.2 q,   A = s + 0.3 s^2 with s = <x_I, k_j>
struct Turning : TileTransport {
  std::vector<double> angles;
  mutable std::vector<double> dangles;
  int64_t tiles;
  bool overriding;

  Turning(int64_t heads, int64_t tiles_, bool overriding_) : tiles(tiles_), overriding(overriding_) {
    for (int64_t n = 0; n < heads * tiles; ++n) angles.push_back(0.3 + 0.1 * static_cast<double>(n));
    dangles.resize(angles.size());
  }
  size_t passed(const TilePair& pair) const { return static_cast<size_t>(pair.head * tiles + pair.key_tile + 1); }

  void carry(const TilePair& pair, const Tensor& raw, const Tensor& carried) const override {
    for (int64_t n = 0; n < raw.elements(); n += 2) {
      const double x = carried.flat(n), y = carried.flat(n + 1);
      if (pair.diagonal()) {
        carried.set_flat(n, 1.1 * x);
        carried.set_flat(n + 1, 1.1 * y);
        continue;
      }
      const double c = std::cos(angles[passed(pair)]), s = std::sin(angles[passed(pair)]);
      carried.set_flat(n, c * x - s * y + 0.2 * raw.flat(n));
      carried.set_flat(n + 1, s * x + c * y + 0.2 * raw.flat(n + 1));
    }
  }
  void carry_backward(const TilePair& pair, const Tensor&, const Tensor& carried, const Tensor& dcarried,
                      const Tensor& draw) const override {
    for (int64_t n = 0; n < draw.elements(); n += 2) {
      const double dx = dcarried.flat(n), dy = dcarried.flat(n + 1);
      if (pair.diagonal()) {
        dcarried.set_flat(n, 1.1 * dx);
        dcarried.set_flat(n + 1, 1.1 * dy);
        continue;
      }
      const double c = std::cos(angles[passed(pair)]), s = std::sin(angles[passed(pair)]);
      const double x = carried.flat(n), y = carried.flat(n + 1);
      dangles[passed(pair)] += dx * (-s * x - c * y) + dy * (c * x - s * y);
      draw.set_flat(n, draw.flat(n) + 0.2 * dx);
      draw.set_flat(n + 1, draw.flat(n + 1) + 0.2 * dy);
      dcarried.set_flat(n, c * dx + s * dy);
      dcarried.set_flat(n + 1, -s * dx + c * dy);
    }
  }
  bool overrides_diagonal() const override { return overriding; }
  static double dot(const Tensor& x, int64_t i, const Tensor& k, int64_t j) {
    double sum = 0;
    for (int64_t d = 0; d < x.size(1); ++d) sum += x.at({i, d}) * k.at({j, d});
    return sum;
  }
  void diagonal_scores(const TilePair& pair, const Tensor& x, const Tensor& k, const Tensor& scores) const override {
    EXPECT_EQ(scores.shape(), (Shape{pair.queries, pair.keys}));
    for (int64_t i = 0; i < pair.queries; ++i) {
      for (int64_t j = 0; j < pair.keys; ++j) {
        const double s = dot(x, i, k, j);
        const bool later = pair.first_key() + j > pair.first_query + i;
        scores.set_flat(i * pair.keys + j, later ? std::nan("") : s + 0.3 * s * s);
      }
    }
  }
  void diagonal_backward(const TilePair& pair, const Tensor& x, const Tensor& k, const Tensor& dscores,
                         const Tensor& dx, const Tensor& dk) const override {
    for (int64_t i = 0; i < pair.queries; ++i) {
      for (int64_t j = 0; j < pair.keys; ++j) {
        const double ds = dscores.at({i, j}) * (1 + 0.6 * dot(x, i, k, j));
        if (pair.first_key() + j > pair.first_query + i) {
          EXPECT_EQ(ds, 0.0);
        }
        const int64_t D = x.size(1);
        for (int64_t d = 0; d < D; ++d) {
          dx.set_flat(i * D + d, dx.flat(i * D + d) + ds * k.at({j, d}));
          dk.set_flat(j * D + d, dk.flat(j * D + d) + ds * x.at({i, d}));
        }
      }
    }
  }
};

// sum over all of dout out, in long double, straight from the definition of Turning.
Real loss_of_turning(const Problem& problem, const Turning& turning) {
  const auto [B, T, S, H, D] =
      std::tuple{problem.size.batch, problem.size.queries, problem.size.keys, problem.size.heads, problem.size.depth};
  const AttentionInputs& in = problem.inputs;
  const std::vector<Real> all_q = values(in.q), k = values(in.k), v = values(in.v), bias = values(in.bias),
                          gate = values(in.gate);
  const std::vector<Real> dout = values(problem.dout);
  Real loss = 0;
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t t = 0; t < T; ++t) {
        const int64_t i = S - T + t;
        std::vector<Real> q(D), x(D), logit(i + 1);
        for (int64_t d = 0; d < D; ++d) x[d] = 1.1L * (q[d] = all_q[((b * T + t) * H + h) * D + d]);
        for (int64_t j = i; j >= 0; --j) {
          if (j != i && j % 64 == 63) {  // entering another tile
            const Real angle = turning.angles[static_cast<size_t>(h * turning.tiles + j / 64 + 1)];
            for (int64_t d = 0; d < D; d += 2) {
              const Real u = x[d], w = x[d + 1];
              x[d] = std::cos(angle) * u - std::sin(angle) * w + 0.2L * q[d];
              x[d + 1] = std::sin(angle) * u + std::cos(angle) * w + 0.2L * q[d + 1];
            }
          }
          Real s = 0;
          for (int64_t d = 0; d < D; ++d) s += x[d] * k[((b * S + j) * H + h) * D + d];
          if (turning.overriding && j / 64 == i / 64) s += 0.3L * s * s;
          logit[j] = problem.inputs.scale * s + bias[h * (S + 3) + i - j] + gate[(b * S + i) * H + h] -
                     gate[(b * S + j) * H + h];
        }
        Real sum = 0, product = 0;
        for (int64_t j = 0; j <= i; ++j) {
          const Real p = std::exp(logit[j]);
          sum += p;
          for (int64_t d = 0; d < D; ++d)
            product += p * v[((b * S + j) * H + h) * D + d] * dout[((b * T + t) * H + h) * D + d];
        }
        loss += product / sum;
      }
    }
  }
  return loss;
}

TEST(Attention, TransportAgreesWithDifferencesOfTheDefinition) {
  for_each_isa([] {
    for (bool overriding : {false, true}) {
      for (int64_t queries : {150, 40}) {
        SCOPED_TRACE(fmt::format("overriding={} T={}", overriding, queries));
        Problem problem({.batch = 1,
                         .queries = queries,
                         .keys = 150,
                         .heads = 2,
                         .depth = 6,
                         .bias = true,
                         .gate = true,
                         .spread = 0.8});
        Turning turning(2, 3, overriding);
        problem.inputs.transport = &turning;
        problem.forward();
        problem.backward();
        Real loss = 0;
        for (int64_t n = 0; n < problem.out.elements(); ++n)
          loss += static_cast<Real>(problem.out.flat(n)) * problem.dout.flat(n);
        EXPECT_NEAR(static_cast<double>(loss), static_cast<double>(loss_of_turning(problem, turning)), 1e-11);

        const auto expect_slope = [&](double& place, double analytic, const char* what) {
          const double step = 1e-5, before = place;
          place = before + step;
          const Real above = loss_of_turning(problem, turning);
          place = before - step;
          const Real below = loss_of_turning(problem, turning);
          place = before;
          EXPECT_NEAR(static_cast<double>((above - below) / (2 * step)), analytic, 2e-7) << what;
        };
        const auto place = [](const Tensor& x, int64_t b, int64_t s, int64_t h, int64_t d) -> double& {
          return x.data<double>()[b * x.stride(0) + s * x.stride(1) + h * x.stride(2) + d];
        };
        if (isa() != available_isas().back())
          continue;  // differences are slow, and what differs by instruction set is tested above
        std::mt19937_64 random(3);
        for (int n = 0; n < 8; ++n) {
          const int64_t t = static_cast<int64_t>(random() % static_cast<uint64_t>(queries)),
                        s = static_cast<int64_t>(random() % 150), h = n % 2;
          const int64_t d = static_cast<int64_t>(random() % 6);
          expect_slope(place(problem.inputs.q, 0, t, h, d), problem.dq.at({0, t, h, d}), "q");
          expect_slope(place(problem.inputs.k, 0, s, h, d), problem.dk.at({0, s, h, d}), "k");
          expect_slope(place(problem.inputs.v, 0, s, h, d), problem.dv.at({0, s, h, d}), "v");
          expect_slope(problem.inputs.bias.data<double>()[h * 153 + s], problem.dbias.at({h, s}), "bias");
          expect_slope(problem.inputs.gate.data<double>()[s * 2 + h], problem.dgate.at({0, s, h}), "gate");
        }
        for (size_t n = 0; n < turning.angles.size(); ++n) expect_slope(turning.angles[n], turning.dangles[n], "angle");
      }
    }
  });
}

// ---- arguments ----------------------------------------------------------------------------------------------------

TEST(Attention, WrongShapesAreRefused) {
  Problem problem({.batch = 1, .queries = 5, .keys = 5, .heads = 2, .depth = 8, .bias = true});
  AttentionInputs inputs = problem.inputs;
  inputs.v = inputs.v.slice(1, 0, 4);
  EXPECT_THROW(kernels::attention(inputs, problem.out, problem.lse), Error);
  inputs = problem.inputs;
  inputs.bias = inputs.bias.slice(1, 0, 4);
  EXPECT_THROW(kernels::attention(inputs, problem.out, problem.lse), Error);
  inputs = problem.inputs;
  inputs.k = inputs.k.slice(1, 0, 4);
  inputs.v = inputs.v.slice(1, 0, 4);  // fewer keys than queries
  EXPECT_THROW(kernels::attention(inputs, problem.out, problem.lse), Error);
  inputs = problem.inputs;
  inputs.gate = empty(problem.arena, {1, 5, 2}, DType::f32);
  EXPECT_THROW(kernels::attention(inputs, problem.out, problem.lse), Error);
}

}  // namespace
}  // namespace sextant
