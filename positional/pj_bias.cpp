// PJ-bias: a learned lag bias from the phase-jet (FJ), affine and light-cone (LC) sectors of the position space. The
// formula, its gradients and its composed twin are in pj_bias_operation.cpp; here are its keys, parameters and audit.
// [arXiv 2606.05345]
//
// Starts with gates at 1/2, amplitudes N(0, 0.02^2) and c = softplus(0), and with a slope whose mass is about that of
// one order of the other sectors (softplus(-2) = 0.13), so that no sector starts switched off or far ahead.
#include "positional/pj_bias.h"

#include "autograd/gradient_check.h"
#include "core/error.h"
#include "positional/functions.h"
#include "positional/strategy.h"

namespace sextant {

namespace {

class PjBias : public Term {
 public:
  PjBias(const TermSpec& spec, const PositionSettings& settings)
      : fj_orders_(spec.integer("jets", 0, 16)),
        lc_orders_(spec.integer("lc-jets", 0, 16)),
        affine_(spec.flag("affine")),
        learn_frequencies_(spec.flag("learn-frequencies")),
        learn_scale_(spec.flag("learn-scale")) {
    require(fj_orders_ + lc_orders_ > 0 || affine_,
            "position: '{}' has no sector left, at least one of jets, lc-jets and affine must be above 0", spec.text());
    const int64_t count = spec.integer("frequencies", 1, 1024), heads = settings.heads;
    settings_.heads = heads;
    settings_.frequencies = geometric_frequencies({10000.0}, count);
    settings_.length_scale =
        spec.given("scale") ? spec.number("scale", 1e-6, 1e12) : static_cast<double>(settings.context);
    settings_.tables = settings.tables;
    const auto parameter = [&](const char* name, const Shape& shape) {
      return make_parameter(settings, spec.name(), name, shape);
    };
    const auto amplitudes = [&](const char* name, int64_t orders) {
      Parameter result = parameter(name, {heads, count, orders});
      fill_normal(result.value, Random(settings.seed, "init/" + result.name), 0.0, 0.02);
      return result;
    };
    gate_ = parameter("gate", {3});
    if (fj_orders_ > 0) {
      fj_cos_ = amplitudes("fj_cos", fj_orders_);
      fj_sin_ = amplitudes("fj_sin", fj_orders_);
      damping_ = parameter("damping", {count});
    }
    if (lc_orders_ > 0) {
      lc_cos_ = amplitudes("lc_cos", lc_orders_);
      lc_sin_ = amplitudes("lc_sin", lc_orders_);
    }
    if (affine_) {
      constant_ = parameter("affine_const", {heads});
      slope_ = parameter("affine_slope", {heads});
      slope_.value.fill(-2.0);
    }
    if (learn_frequencies_) {
      log_frequency_ = parameter("log_frequency", {count});
      for (int64_t k = 0; k < count; ++k)
        log_frequency_.value.set_flat(k, std::log(settings_.frequencies[static_cast<size_t>(k)].value()));
    }
    if (learn_scale_) {
      log_scale_ = parameter("log_scale", {1});
      log_scale_.value.fill(std::log(settings_.length_scale));
    }
  }

  std::vector<Parameter*> parameters() override {
    std::vector<Parameter*> present;
    for (Parameter* parameter :
         {&gate_, &fj_cos_, &fj_sin_, &damping_, &lc_cos_, &lc_sin_, &constant_, &slope_, &log_frequency_, &log_scale_})
      if (parameter->value.defined()) present.push_back(parameter);
    return present;
  }

  Variable lag_bias(const PositionCall& call, int64_t lags) override {
    const auto variable = [&](Parameter& parameter) {
      return parameter.value.defined() ? call.tape->parameter(parameter) : Variable{};
    };
    const PjBiasVariables in{variable(gate_),          variable(fj_cos_),   variable(fj_sin_), variable(damping_),
                             variable(constant_),      variable(slope_),    variable(lc_cos_), variable(lc_sin_),
                             variable(log_frequency_), variable(log_scale_)};
    return call.composed ? pj_bias_composed(in, settings_, lags) : pj_bias(in, settings_, lags);
  }

  std::vector<SectorComponent> components() override {
    std::vector<SectorComponent> all;
    for (int64_t r = 0; r < fj_orders_; ++r) all.push_back(wave_component("FJ", 0, fj_cos_, fj_sin_, r));
    if (affine_) {
      all.push_back({"affine", 0, gate(1) * mean([this](int64_t h) { return std::fabs(constant_.value.flat(h)); }),
                     [this](int h, int64_t) { return gate(1) * constant_.value.flat(h); },
                     [this] { return fill_with(constant_.value, 0.0); }});
      all.push_back(
          {"affine", 1, gate(1) * mean([this](int64_t h) { return slope(h); }),
           [this](int h, int64_t lag) { return -gate(1) * slope(h) * static_cast<double>(lag) / length_scale(); },
           [this] { return fill_with(slope_.value, -1e4); }});  // softplus gives exactly 0
    }
    for (int64_t r = 0; r < lc_orders_; ++r) all.push_back(wave_component("LC", 2, lc_cos_, lc_sin_, r));
    return all;
  }

  std::vector<PhaseChart> phase_charts() const override {
    std::vector<double> w;
    for (int64_t k = 0; k < frequencies(); ++k) w.push_back(frequency(k).value());
    std::vector<PhaseChart> all;
    if (fj_orders_ > 0) all.push_back({.sector = "FJ", .frequencies = w});
    if (lc_orders_ > 0)
      all.push_back({.sector = "LC", .frequencies = w, .length_scale = length_scale(), .light_cone = true});
    return all;
  }

 private:
  double gate(int64_t sector) const { return sigmoid_of(gate_.value.flat(sector)); }
  double slope(int64_t h) const { return softplus_of(slope_.value.flat(h)); }
  double length_scale() const { return learn_scale_ ? std::exp(log_scale_.value.flat(0)) : settings_.length_scale; }
  DoubleDouble frequency(int64_t k) const {
    return learn_frequencies_ ? DoubleDouble{std::exp(log_frequency_.value.flat(k))}
                              : settings_.frequencies[static_cast<size_t>(k)];
  }
  int64_t frequencies() const { return static_cast<int64_t>(settings_.frequencies.size()); }

  template <class F>
  double mean(F f) const {
    double sum = 0;
    for (int64_t h = 0; h < settings_.heads; ++h) sum += f(h);
    return sum / static_cast<double>(settings_.heads);
  }

  // One jet order of the FJ or LC sector.
  SectorComponent wave_component(const char* sector, int64_t sector_index, Parameter& a, Parameter& b, int64_t r) {
    const Tensor cosines = a.value.select(2, r), sines = b.value.select(2, r);  // [H, K]
    const auto at = [this](const Tensor& x, int64_t h, int64_t k) { return x.flat(h * frequencies() + k); };
    SectorComponent result;
    result.sector = sector;
    result.order = static_cast<int>(r);
    result.mass = gate(sector_index) * mean([&](int64_t h) {
                    double sum = 0;
                    for (int64_t k = 0; k < frequencies(); ++k) sum += std::hypot(at(cosines, h, k), at(sines, h, k));
                    return sum;
                  });
    result.value = [=, this](int h, int64_t lag) {
      const double L = length_scale(), d = static_cast<double>(lag), x = d / L;
      const bool light_cone = sector_index == 2;
      double sum = 0;
      for (int64_t k = 0; k < frequencies(); ++k) {
        const DoubleDouble turns = in_turns(frequency(k));
        const Phasor wave = light_cone ? phasor(light_cone_position(d, L), turns) : phasor(lag, turns);
        const double envelope = light_cone ? 1.0 : std::exp(-softplus_of(damping_.value.flat(k)) * x);
        sum += envelope * (at(cosines, h, k) * wave.cosine + at(sines, h, k) * wave.sine);
      }
      const double base = light_cone ? d / std::hypot(d, L) : x;
      return gate(sector_index) * std::pow(base, static_cast<double>(r)) * sum;
    };
    result.remove = [cosines, sines] {
      const auto put_cosines = fill_with(cosines, 0.0), put_sines = fill_with(sines, 0.0);
      return [put_cosines, put_sines] {
        put_cosines();
        put_sines();
      };
    };
    return result;
  }

  int64_t fj_orders_, lc_orders_;
  bool affine_, learn_frequencies_, learn_scale_;
  PjBiasSettings settings_;
  Parameter gate_, fj_cos_, fj_sin_, damping_, constant_, slope_, lc_cos_, lc_sin_, log_frequency_, log_scale_;
};

// ---- audit --------------------------------------------------------------------------------------------------------

struct PjCase {
  const char* label;
  int64_t heads = 2, frequencies = 3, jets = 3, lc_jets = 2, lags = 21;
  double scale = 8, gate = 0, amplitude = 1, damping = 0;
  bool learn_scale = true;
};

PjBiasVariables variables_of(std::span<const Variable> x) {
  return {x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], x.size() > 9 ? x[9] : Variable{}};
}

AuditCase pj_case(Arena& arena, const PjCase& with) {
  const int64_t H = with.heads, K = with.frequencies;
  const auto around = [&](double center, const Shape& shape, double spread, uint64_t seed) {
    const Tensor x = sample(arena, shape, spread, seed);
    for (double& value : x.span<double>()) value += center;
    return x;
  };
  AuditCase result;
  result.label = with.label;
  result.inputs = {around(with.gate, {3}, 0.5, 1),
                   sample(arena, {H, K, with.jets}, with.amplitude, 2),
                   sample(arena, {H, K, with.jets}, with.amplitude, 3),
                   around(with.damping, {K}, 0.5, 4),
                   sample(arena, {H}, with.amplitude, 5),
                   around(0, {H}, 1.0, 6),
                   sample(arena, {H, K, with.lc_jets}, with.amplitude, 7),
                   sample(arena, {H, K, with.lc_jets}, with.amplitude, 8),
                   around(-1.5, {K}, 1.0, 9)};
  if (with.learn_scale) result.inputs.push_back(full(arena, {1}, std::log(with.scale), DType::f64));
  PjBiasSettings settings{H, geometric_frequencies({10000.0}, K), with.scale, nullptr};
  result.function = [settings, lags = with.lags](Tape&, std::span<const Variable> x) {
    return pj_bias(variables_of(x), settings, lags);
  };
  result.composed = [settings, lags = with.lags](Tape&, std::span<const Variable> x) {
    return pj_bias_composed(variables_of(x), settings, lags);
  };
  return result;
}

const RegisterStrategy register_pj_bias({
    .name = "pj-bias",
    .summary = "learned lag bias of phase-jet, affine and light-cone sectors (arXiv 2606.05345)",
    .keys = {{"jets", "2", "orders of the phase-jet sector, R + 1, from 0 (no such sector) to 16", {}},
             {"lc-jets", "2", "orders of the light-cone sector, R' + 1, from 0 (no such sector) to 16", {}},
             {"affine", "1", "whether there is an affine sector", {"0", "1"}},
             {"frequencies", "8", "K, from 1 to 1024: w_k = 10000^(-k/K)", {}},
             {"scale", "", "length scale L in tokens, from 1e-6 to 1e12; the training context when not given", {}},
             {"learn-frequencies", "0", "whether log w_k are learned", {"0", "1"}},
             {"learn-scale", "0", "whether log L is learned", {"0", "1"}}},
    .examples = {"pj-bias", "pj-bias(jets=3,lc-jets=0,affine=0,frequencies=5)", "pj-bias(jets=0,lc-jets=1,scale=32)",
                 "pj-bias(jets=0,lc-jets=0)", "pj-bias(learn-frequencies=1,learn-scale=1)"},
    .make = [](const TermSpec& spec, const PositionSettings& settings) -> std::unique_ptr<Term> {
      return std::make_unique<PjBias>(spec, settings);
    },
});

}  // namespace

AUDIT(pj_bias, "positional") {
  return {
      pj_case(arena, {.label = "ordinary"}),
      pj_case(arena,
              {.label = "several chunks of lags", .heads = 1, .frequencies = 1, .jets = 2, .lags = 300, .scale = 100}),
      pj_case(arena, {.label = "gates open", .gate = 30}),
      pj_case(arena, {.label = "gates shut", .gate = -30}),
      pj_case(arena, {.label = "zero amplitudes", .amplitude = 0}),
      pj_case(arena, {.label = "lag 0 alone", .lags = 1}),
      pj_case(arena, {.label = "large L", .scale = 1e4}),
      pj_case(arena, {.label = "very large L", .scale = 1e9, .learn_scale = false}),
      pj_case(arena, {.label = "very small L", .jets = 1, .lc_jets = 2, .scale = 1e-3}),
      pj_case(arena, {.label = "damping near 0", .damping = -30}),
      pj_case(arena, {.label = "large damping", .damping = 30})};
}

}  // namespace sextant
