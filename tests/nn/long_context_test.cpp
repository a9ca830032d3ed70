// Every strategy at 32,768 positions, as `eval` reads them: a model's losses, streamed through the cache and the fused
// attention, against the definitions of the strategies written out here once more, for a few queries each. The model
// has one layer, whose input depends on the token alone, so that a query costs no more than one pass over its keys.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <map>

#include "core/random.h"
#include "nn/generation.h"
#include "nn/transformer.h"

namespace sextant {
namespace {

using Real = long double;
using Complex = std::complex<Real>;
using Row = std::vector<Real>;

constexpr int64_t vocabulary = 11, dim = 8, pairs = dim / 2, context = 24;

Real softplus(Real x) {
  return std::fmax(x, 0.0L) + std::log1p(std::exp(-std::fabs(x)));
}
Real sigmoid(Real x) {
  return 1 / (1 + std::exp(-x));
}
Real dot(const Real* a, const Real* b, int64_t count) {
  Real sum = 0;
  for (int64_t d = 0; d < count; ++d) sum += a[d] * b[d];
  return sum;
}
Row add(Row a, const Row& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// ---- the model around the attention -------------------------------------------------------------------------------

struct Weights {
  int64_t width, heads;
  std::map<std::string, Row> all;

  explicit Weights(Transformer& model) : width(model.config().width), heads(model.config().heads) {
    const auto keep = [this](const std::string& name, const Tensor& x) {
      for (int64_t i = 0; i < x.elements(); ++i) all[name].push_back(x.flat(i));
    };
    for (const Parameter* parameter : model.parameters()) keep(parameter->name, parameter->value);
    for (const PositionConstant& constant : model.constants()) keep(constant.name, constant.value);
  }

  const Row& operator()(const std::string& name) const { return all.at(name); }
  const Row& position(const std::string& name) const { return all.at("blocks.0.position." + name); }
  bool has_position(const std::string& name) const { return all.contains("blocks.0.position." + name); }

  // W x + b
  Row linear(const std::string& weight, const std::string& bias, const Row& x) const {
    Row y = (*this)(bias);
    for (size_t r = 0; r < y.size(); ++r)
      y[r] += dot((*this)(weight).data() + r * x.size(), x.data(), static_cast<int64_t>(x.size()));
    return y;
  }
  Row linear(const std::string& name, const Row& x) const { return linear(name + ".weight", name + ".bias", x); }
  Row norm(const std::string& name, const Row& x) const {
    Real mean = 0, variance = 0;
    for (const Real value : x) mean += value / x.size();
    for (const Real value : x) variance += (value - mean) * (value - mean) / x.size();
    Row y;
    for (size_t i = 0; i < x.size(); ++i)
      y.push_back((x[i] - mean) / std::sqrt(variance + 1e-5L) * (*this)(name + ".weight")[i] +
                  (*this)(name + ".bias")[i]);
    return y;
  }
  Row embedding(int32_t token) const {
    const auto begin = (*this)("tok_embed.weight").begin() + token * width;
    return {begin, begin + width};
  }
};

// ---- the strategies -----------------------------------------------------------------------------------------------

// What a SPEC says of a query at i and the keys j <= i, straight from the formulas of the position space.
class Definition {
 public:
  Definition(const std::string& spec, const Weights& weights, const std::vector<int32_t>& tokens, int64_t total)
      : specs_(parse_spec(spec)),
        weights_(weights),
        width_(weights.width),
        heads_(weights.heads),
        tokens_(tokens),
        total_(total) {
    for (int32_t token = 0; token < vocabulary; ++token) {
      x_.push_back(weights.norm("blocks.0.norm1", weights.embedding(token)));
      qkv_.push_back(weights.linear("blocks.0.attn.qkv", x_.back()));
    }
    bias_.resize(static_cast<size_t>(heads_ * total));
    for (const TermSpec& term : specs_) tabulate(term);
  }

  // The attention's output of head h for the query at i.
  Row attended(int64_t i, int64_t h) const {
    Row logits = products(i, h);
    for (Real& logit : logits) logit *= temperature() / std::sqrt(static_cast<Real>(dim));
    for (int64_t j = 0; j <= i; ++j) {
      logits[j] += bias_[h * total_ + i - j];
      if (!gate_.empty()) logits[j] += gate_[i * heads_ + h] - gate_[j * heads_ + h];
    }
    Real largest = -INFINITY, sum = 0;
    for (const Real logit : logits) largest = std::max(largest, logit);
    for (Real& logit : logits) sum += logit = std::exp(logit - largest);
    for (Real& weight : logits) weight /= sum;
    return carried_values(i, h, logits);
  }

 private:
  const Real* q(int64_t i, int64_t h) const { return of(i).data() + h * dim; }
  const Real* k(int64_t j, int64_t h) const { return of(j).data() + width_ + h * dim; }
  const Real* v(int64_t j, int64_t h) const { return of(j).data() + 2 * width_ + h * dim; }
  const Row& of(int64_t position) const { return qkv_[static_cast<size_t>(token(position))]; }
  int32_t token(int64_t position) const { return tokens_[static_cast<size_t>(position)]; }

  static bool is_transport(const TermSpec& term, const char* kind) {
    return term.name() == "transport" && term.word("kind") == kind;
  }
  const TermSpec* reflections() const {
    for (const TermSpec& term : specs_)
      if (is_transport(term, "householder") || is_transport(term, "path")) return &term;
    return nullptr;
  }
  static Real scale_of(const TermSpec& term) {
    return term.given("scale") ? static_cast<Real>(term.number("scale", 0, 1e300)) : static_cast<Real>(context);
  }

  // Prefix sums: Phi of accumulated rotations [T, H, P], F of gates [T, H]; and steps by token.
  void tabulate(const TermSpec& term) {
    for (int64_t h = 0; h < heads_; ++h)
      for (int64_t d = 0; d < total_; ++d) bias_[h * total_ + d] += bias(term, h, d);
    if (term.name() == "gate" || (term.name() == "transport" && term.flag("gate"))) {
      std::vector<Row> log_gate;
      for (const Row& x : x_) {
        log_gate.push_back(weights_.linear("blocks.0.position.gate.weight", "blocks.0.position.gate.bias", x));
        for (Real& value : log_gate.back()) value = -softplus(-value);
      }
      accumulate(gate_, heads_, [&](int64_t t, int64_t h) { return log_gate[static_cast<size_t>(token(t))][h]; });
    }
    if (is_transport(term, "learned")) {
      std::vector<Row> steps;
      for (const Row& x : x_)
        steps.push_back(weights_.linear("blocks.0.position.transport.weight", "blocks.0.position.transport.bias", x));
      accumulate(phi_, heads_ * pairs, [&](int64_t t, int64_t n) { return steps[static_cast<size_t>(token(t))][n]; });
    }
    if (is_transport(term, "random") && term.word("by") == "token") {
      const Row& angles = weights_.position("transport.angles");
      accumulate(phi_, heads_ * pairs, [&](int64_t t, int64_t n) { return angles[token(t) * heads_ * pairs + n]; });
    }
    if (is_transport(term, "random") && term.word("by") == "position") {
      const Random random(ModelConfig{}.seed, "init/blocks.0.position.transport.angles by position");
      accumulate(phi_, heads_ * pairs, [&](int64_t t, int64_t n) {
        return 0.25 * random.normal(static_cast<uint64_t>(t * heads_ * pairs + n));
      });
    }
    if (&term == reflections()) {
      for (const Row& x : x_) {
        w_.push_back(weights_.linear("blocks.0.position.transport.weight", "blocks.0.position.transport.bias", x));
        strength_.emplace_back(heads_, 2.0L);
        if (is_transport(term, "path")) {
          strength_.back() =
              weights_.linear("blocks.0.position.transport.beta_weight", "blocks.0.position.transport.beta_bias", x);
          for (Real& beta : strength_.back()) beta = 2 * sigmoid(beta);
        }
      }
    }
  }
  template <class Step>
  void accumulate(Row& sums, int64_t lanes, Step&& step) const {
    Row sum(static_cast<size_t>(lanes), 0);
    for (int64_t t = 0; t < total_; ++t)
      for (int64_t n = 0; n < lanes; ++n) sums.push_back(sum[n] += step(t, n));
  }

  // M_t x = x - beta w (w x) / (w w)
  void reflect(int64_t t, int64_t h, Row& x) const {
    const Real* w = w_[static_cast<size_t>(token(t))].data() + h * dim;
    const Real along = strength_[static_cast<size_t>(token(t))][h] * dot(w, x.data(), dim) / dot(w, w, dim);
    for (int64_t d = 0; d < dim; ++d) x[d] -= along * w[d];
  }

  // <q~_i, k~_j>
  Row products(int64_t i, int64_t h) const {
    Row result(static_cast<size_t>(i + 1));
    if (reflections() != nullptr) {  // x_j = M_{j+1} .. M_i q_i, the steps being symmetric
      Row x(q(i, h), q(i, h) + dim);
      for (int64_t j = i; j >= 0; --j) {
        result[j] = dot(x.data(), k(j, h), dim);
        reflect(j, h, x);
      }
      return result;
    }
    for (const TermSpec& term : specs_)
      if (term.name() == "jordan" || term.name() == "pj-rotary") {
        for (int64_t j = 0; j <= i; ++j) result[j] = chain_product(term, i, j, q(i, h), k(j, h));
        return result;
      }
    const bool half = pairing_is_half();
    const Row frequencies = rope_frequencies();
    for (int64_t j = 0; j <= i; ++j) {
      for (int64_t p = 0; p < pairs; ++p) {
        const Real angle = frequencies[p] * (j - i) + phi_difference(i, j, h, p);
        const int64_t a = half ? p : 2 * p, b = half ? p + pairs : 2 * p + 1;
        const Real *query = q(i, h), *key = k(j, h);
        result[j] += std::cos(angle) * (query[a] * key[a] + query[b] * key[b]) +
                     std::sin(angle) * (query[b] * key[a] - query[a] * key[b]);
      }
    }
    return result;
  }
  Real phi_difference(int64_t i, int64_t j, int64_t h, int64_t p) const {
    if (phi_.empty()) return 0;
    return phi_[(j * heads_ + h) * pairs + p] - phi_[(i * heads_ + h) * pairs + p];
  }

  // q^T G(i) G(-j) k, G(i) G(-j) = e^{i (P(j) - P(i)) w} e^{-g (i - j)} exp((b(i) - b(j)) N), b odd.
  static Real chain_product(const TermSpec& term, int64_t i, int64_t j, const Real* query, const Real* key) {
    const Real L = scale_of(term);
    const bool jordan = term.name() == "jordan", affine = !jordan && term.flag("affine"),
               light_cone = !jordan && term.word("chart") == "lc";
    const Real damping = jordan ? static_cast<Real>(term.number("damping", 0, 10)) : 0;
    const auto jet = [&](int64_t n) -> Real {
      if (jordan && term.word("mode") == "exact") return n;
      if (light_cone || (jordan && term.word("mode") == "stabilized" && term.word("sigma") == "algebraic"))
        return n / std::sqrt(n * n + L * L);
      return jordan && term.word("mode") == "stabilized" ? std::tanh(n / L) : n / L;
    };
    const Real turned = light_cone ? L * (std::asinh(j / L) - std::asinh(i / L)) : static_cast<Real>(j - i);
    const int64_t order = term.integer("order", 1, 64), in_chains = affine ? dim - 2 : dim;
    const int64_t chains = (in_chains / 2 + order - 1) / order;
    Real sum = 0;
    for (int64_t chain = 0, at = 0; chain < chains; ++chain) {
      const int64_t slots = std::min(order, in_chains / 2 - chain * order);
      const Complex turn =
          std::polar(std::exp(-damping * (i - j)), turned * std::pow(10000.0L, -static_cast<Real>(chain) / chains));
      for (int64_t r = 0; r < slots; ++r) {
        Complex lifted = 0;
        Real factor = 1;
        for (int64_t s = 0; r + s < slots; factor *= (jet(i) - jet(j)) / ++s)
          lifted += factor * Complex(key[at + 2 * (r + s)], key[at + 2 * (r + s) + 1]);
        sum += (std::conj(Complex(query[at + 2 * r], query[at + 2 * r + 1])) * turn * lifted).real();
      }
      at += 2 * slots;
    }
    if (affine) {
      const Real *a = query + dim - 2, *b = key + dim - 2;
      sum += a[0] * (b[0] + (i - j) / L * b[1]) + a[1] * b[1];
    }
    return sum;
  }

  bool pairing_is_half() const {
    for (const TermSpec& term : specs_)
      if (term.name() == "rope") return term.word("pairing") == "half";
    return false;
  }
  Row rope_frequencies() const {
    Row w(pairs, 0);
    for (const TermSpec& term : specs_) {
      if (term.name() != "rope") continue;
      const std::string& scaling = term.word("scaling");
      const Real factor = scaling == "dynamic-ntk" ? std::max<Real>(1, static_cast<Real>(total_) / context)
                                                   : static_cast<Real>(term.number("factor", 1, 1e6));
      Real base = term.number("base", 1, 1e15);
      if (scaling.ends_with("ntk")) base *= std::pow(factor, static_cast<Real>(dim) / (dim - 2));
      for (int64_t p = 0; p < pairs; ++p) {
        w[p] = std::pow(base, -2 * static_cast<Real>(p) / dim);
        if (scaling == "linear") w[p] /= factor;
        const Real turns = context * w[p] / (2 * M_PIl), share = std::clamp<Real>((turns - 1) / 31, 0, 1);
        if (scaling == "yarn") w[p] *= (1 - share) / factor + share;
      }
    }
    return w;
  }
  Real temperature() const {
    for (const TermSpec& term : specs_)
      if (term.name() == "rope" && term.word("scaling") == "yarn") {
        const Real root = 0.1L * std::log(static_cast<Real>(term.number("factor", 1, 1e6))) + 1;
        return root * root;
      }
    return 1;
  }

  // b_h(d)
  Real bias(const TermSpec& term, int64_t h, int64_t d) const {
    if (term.name() == "alibi") return -std::exp2(-8.0L * (h + 1) / heads_) * d;
    if (term.name() == "affine") {
      const Real raw = weights_.position("affine.slope")[h];
      return weights_.position("affine.const")[h] -
             (term.flag("either-sign") ? raw : softplus(raw)) * d / scale_of(term);
    }
    if (term.name() == "buckets") {
      const int64_t count = term.integer("buckets", 2, 4096), near = count / 2;
      const Real distance = static_cast<Real>(term.integer("distance", 1, 1 << 30));
      int64_t bucket = d;
      if (d >= near)
        bucket = std::min(
            count - 1, near + static_cast<int64_t>(std::floor((count - near) * std::log(static_cast<Real>(d) / near) /
                                                              std::log(distance / near))));
      return weights_.position("buckets.weight")[h * count + bucket];
    }
    return term.name() == "pj-bias" ? pj_bias(term, h, d) : 0;
  }
  Real pj_bias(const TermSpec& term, int64_t h, int64_t d) const {
    static const Row nothing;
    const auto own = [&](const std::string& name) -> const Row& {
      return weights_.has_position("pj-bias." + name) ? weights_.position("pj-bias." + name) : nothing;
    };
    const Row &gate = own("gate"), &damping = own("damping"), &fj_cos = own("fj_cos"), &fj_sin = own("fj_sin"),
              &lc_cos = own("lc_cos"), &lc_sin = own("lc_sin"), &log_frequency = own("log_frequency");
    const int64_t count = term.integer("frequencies", 1, 1024), jets = term.integer("jets", 0, 16),
                  lc_jets = term.integer("lc-jets", 0, 16);
    const Real L = term.flag("learn-scale") ? std::exp(own("log_scale")[0]) : scale_of(term), x = d / L;
    Real phase_jets = 0, light_cone = 0, affine = 0;
    for (int64_t k = 0; k < count; ++k) {
      const Real w = term.flag("learn-frequencies") ? std::exp(log_frequency[k])
                                                    : std::pow(10000.0L, -static_cast<Real>(k) / count);
      Real jet = jets > 0 ? std::exp(-softplus(damping[k]) * x) : 0, amplitude = 1;
      Real waves[4] = {};
      if (jets > 0) waves[0] = std::cos(w * d), waves[1] = std::sin(w * d);
      if (lc_jets > 0) waves[2] = std::cos(w * L * std::asinh(x)), waves[3] = std::sin(w * L * std::asinh(x));
      for (int64_t r = 0, at = (h * count + k) * jets; r < jets; ++r, ++at, jet *= x)
        phase_jets += jet * (fj_cos[at] * waves[0] + fj_sin[at] * waves[1]);
      for (int64_t r = 0, at = (h * count + k) * lc_jets; r < lc_jets; ++r, ++at, amplitude *= x / std::sqrt(x * x + 1))
        light_cone += amplitude * (lc_cos[at] * waves[2] + lc_sin[at] * waves[3]);
    }
    if (term.flag("affine")) affine = own("affine_const")[h] - softplus(own("affine_slope")[h]) * x;
    return sigmoid(gate[0]) * phase_jets + sigmoid(gate[1]) * affine + sigmoid(gate[2]) * light_cone;
  }

  // sum_j a_j v_j, or of P(j -> i) v_j where values travel.
  Row carried_values(int64_t i, int64_t h, const Row& weights) const {
    Row sum(dim, 0);
    bool travel = false;
    for (const TermSpec& term : specs_) travel = travel || (term.name() == "transport" && term.flag("values"));
    for (int64_t j = 0; j <= i; ++j) {
      if (travel && reflections() != nullptr) reflect(j, h, sum);  // all that came from before j takes step j
      for (int64_t p = 0; p < pairs; ++p) {
        const Real angle = travel ? phi_difference(i, j, h, p) : 0, a = v(j, h)[2 * p], b = v(j, h)[2 * p + 1];
        sum[2 * p] += weights[j] * (std::cos(angle) * a - std::sin(angle) * b);
        sum[2 * p + 1] += weights[j] * (std::sin(angle) * a + std::cos(angle) * b);
      }
    }
    return sum;
  }

  std::vector<TermSpec> specs_;
  const Weights& weights_;
  const int64_t width_, heads_;
  const std::vector<int32_t>& tokens_;
  int64_t total_;
  std::vector<Row> x_, qkv_, w_, strength_;  // by token
  Row phi_, gate_;                           // prefix sums
  Row bias_;                                 // [H, T]
};

// -log p(token i + 1 | tokens 0 .. i)
Real loss_at(int64_t i, const Definition& definition, const Weights& weights, const std::vector<int32_t>& tokens) {
  Row mixed;
  for (int64_t h = 0; h < weights.heads; ++h)
    for (const Real value : definition.attended(i, h)) mixed.push_back(value);
  Row x = add(weights.embedding(tokens[i]), weights.linear("blocks.0.attn.out", mixed));
  Row inner = weights.linear("blocks.0.mlp.up", weights.norm("blocks.0.norm2", x));
  for (Real& u : inner) u *= 0.5L * (1 + std::tanh(std::sqrt(2 / M_PIl) * (u + 0.044715L * u * u * u)));
  x = weights.norm("norm_f", add(x, weights.linear("blocks.0.mlp.down", inner)));
  Real sum = 0, target = 0;
  for (int32_t token = 0; token < vocabulary; ++token) {
    const Real logit = dot(weights.embedding(token).data(), x.data(), weights.width);
    sum += std::exp(logit);
    if (token == tokens[i + 1]) target = logit;
  }
  return std::log(sum) - target;
}

// ---- the test -----------------------------------------------------------------------------------------------------

struct Case {
  std::string spec;
  DType dtype;
  int64_t heads;
};

std::ostream& operator<<(std::ostream& out, const Case& each) {
  return out << each.spec << " in " << name_of(each.dtype);
}

#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr int64_t longest = 32768, longest_of_matrices = 16384;
#else
constexpr int64_t longest = 2048, longest_of_matrices = 1024;  // what these builds look for, they see there
#endif

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const StrategyInfo& info : strategies())
    for (const std::string& example : info.examples) all.push_back({example, DType::f64, 1});
  for (const char* spec :
       {"rope(scaling=dynamic-ntk)+affine", "rope+affine+gate", "transport(kind=learned,values=1)+alibi",
        "pj-bias+rope", "jordan(order=4,anchored=1)", "jordan(mode=exact)", "jordan(order=4,mode=exact,damping=0.01)",
        "jordan(mode=stabilized)+alibi+gate", "rope+transport(kind=random)", "pj-rotary(affine=0,chart=lc)+buckets"})
    all.push_back({spec, DType::f64, 1});
  // In f32 what keeps its digits there.
  for (const char* spec : {"none", "rope", "alibi", "affine", "gate", "buckets", "pj-bias", "rope+affine+gate",
                           "jordan(damping=0.01)", "jordan(mode=stabilized,damping=0.01)", "transport(kind=path)"})
    all.push_back({spec, DType::f32, 2});
  return all;
}

class AtLength32768 : public testing::TestWithParam<Case> {};

TEST_P(AtLength32768, LossesAreThoseOfTheDefinition) {
  const auto& [spec, dtype, heads] = GetParam();
  const bool matrices = spec.find("householder") != std::string::npos || spec.find("path") != std::string::npos;
  const int64_t length = matrices ? longest_of_matrices : longest;
  ModelConfig config;
  config.vocab = vocabulary;
  config.layers = 1;
  config.width = heads * dim;
  config.heads = heads;
  config.context = context;
  config.position = spec;
  config.dtype = dtype;
  Transformer model(config);
  // Away from where they start: near 0, attention would be an average whatever the positions.
  for (Parameter* parameter : model.parameters()) {
    const Random random(9, parameter->name);
    const double size = parameter->name.find("attn.qkv.weight") != std::string::npos ? 0.5 : 0.2;
    for (int64_t n = 0; n < parameter->value.elements(); ++n)
      parameter->value.set_flat(n, parameter->value.flat(n) + size * random.normal(static_cast<uint64_t>(n)));
  }
  std::vector<int32_t> tokens;
  for (int64_t t = 0; t <= length; ++t)
    tokens.push_back(static_cast<int32_t>(Random(3, "long").below(static_cast<uint64_t>(t), vocabulary)));
  Tape tape;
  const std::vector<double> losses = sequence_losses(model, tape, tokens, 1024);
  const Weights weights(model);
  const Definition definition(spec, weights, tokens, length);
  const double tolerance = dtype == DType::f64 ? 1e-8 : 1e-4;
  for (const int64_t i : {length - 1, length - 2, length - 66, length / 7}) {
    const double expected = static_cast<double>(loss_at(i, definition, weights, tokens));
    EXPECT_NEAR(losses[static_cast<size_t>(i)], expected, tolerance) << "position " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, AtLength32768, testing::ValuesIn(cases()), [](const auto& instance) {
  std::string name = std::to_string(instance.index) + "_" + name_of(instance.param.dtype) + "_" + instance.param.spec;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

}  // namespace
}  // namespace sextant
