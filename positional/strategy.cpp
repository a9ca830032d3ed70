#include "positional/strategy.h"

#include <algorithm>

#include "autograd/elementwise.h"
#include "core/error.h"
#include "positional/strategy_audit.h"

namespace sextant {

// ---- tables -------------------------------------------------------------------------------------------------------

Tensor PositionTables::get(const std::string& key, int64_t positions,
                           const std::function<Tensor(Arena&, int64_t positions)>& make) {
  Entry& entry = tables_[key];
  if (entry.positions < positions) {
    const int64_t grown = std::max(positions, 2 * entry.positions);
    entry.arenas.push_back(std::make_unique<Arena>());
    entry.table = make(*entry.arenas.back(), grown);
    entry.positions = grown;
  }
  return entry.table;
}

size_t PositionTables::bytes() const {
  size_t sum = 0;
  for (const auto& [key, entry] : tables_)
    for (const auto& arena : entry.arenas) sum += arena->used();
  return sum;
}

// ---- registry -----------------------------------------------------------------------------------------------------

namespace {

// Behind a function: strategies register while the library's statics are made, in no particular order.
std::vector<StrategyInfo>& registry() {
  static std::vector<StrategyInfo> all;
  return all;
}

const StrategyInfo& info_of(const TermSpec& spec) {
  return *std::find_if(registry().begin(), registry().end(),
                       [&](const StrategyInfo& info) { return info.name == spec.name(); });
}

StrategyInfo::Transform transform_of(const TermSpec& spec) {
  const StrategyInfo& info = info_of(spec);
  return info.transform_of ? info.transform_of(spec) : info.transform;
}

void check_combination(const std::vector<TermSpec>& specs) {
  using Transform = StrategyInfo::Transform;
  for (size_t second = 1; second < specs.size(); ++second) {
    for (size_t first = 0; first < second; ++first) {
      const TermSpec &a = specs[first], &b = specs[second];
      require(a.name() != b.name(), "position: '{}' stands twice, a SPEC takes each strategy once", a.name());
      const Transform ta = transform_of(a), tb = transform_of(b);
      require(
          ta == Transform::none || tb == Transform::none || (ta == Transform::rotation && tb == Transform::rotation),
          "position: '{}' and '{}' both transform the features and do not commute; keep one of them and add lag biases "
          "or gates",
          a.text(), b.text());
    }
  }
}

}  // namespace

const std::vector<StrategyInfo>& strategies() {
  return registry();
}

RegisterStrategy::RegisterStrategy(StrategyInfo info) {
  std::vector<StrategyInfo>& all = registry();
  const auto place =
      std::find_if(all.begin(), all.end(), [&](const StrategyInfo& other) { return other.name >= info.name; });
  assert(place == all.end() || place->name != info.name);
  RegisterAudit(info.name, "strategy", [info](Arena& arena) { return strategy_audit_cases(info, arena); });
  all.insert(place, std::move(info));
}

Parameter make_parameter(const PositionSettings& settings, const std::string& term, const std::string& name,
                         const Shape& shape) {
  Parameter parameter;
  parameter.name = settings.prefix + term + "." + name;
  parameter.value = zeros(*settings.weights, shape, settings.dtype);
  parameter.gradient = zeros(*settings.weights, shape, settings.dtype);
  return parameter;
}

std::function<void()> fill_with(const Tensor& x, double value) {
  std::vector<double> before;
  for (int64_t i = 0; i < x.elements(); ++i) {
    before.push_back(x.flat(i));
    x.set_flat(i, value);
  }
  return [x, before] {
    for (int64_t i = 0; i < x.elements(); ++i) x.set_flat(i, before[static_cast<size_t>(i)]);
  };
}

// ---- composition --------------------------------------------------------------------------------------------------

Position::Position(const std::string& spec, const PositionSettings& settings) : specs_(parse_spec(spec)) {
  check_combination(specs_);
  for (const TermSpec& term : specs_) terms_.push_back(info_of(term).make(term, settings));
  std::vector<std::string> names;
  for (const Parameter* parameter : parameters()) {
    require(std::find(names.begin(), names.end(), parameter->name) == names.end(),
            "position: '{}': two terms have a parameter '{}'; leave one of them out (gate=1 and the term gate are the "
            "same)",
            spec, parameter->name);
    names.push_back(parameter->name);
  }
}

std::vector<Parameter*> Position::parameters() {
  std::vector<Parameter*> all;
  for (const auto& term : terms_)
    for (Parameter* parameter : term->parameters()) all.push_back(parameter);
  return all;
}

std::vector<PositionConstant> Position::constants() {
  std::vector<PositionConstant> all;
  for (const auto& term : terms_)
    for (PositionConstant& constant : term->constants()) all.push_back(std::move(constant));
  return all;
}

Position::State Position::new_state(int64_t batch) const {
  State state;
  for (const auto& term : terms_) state.terms.push_back(term->new_state(batch));
  return state;
}

namespace {

PositionCall call_of(const PositionCall& call, Position::State* state, size_t term) {
  PositionCall own = call;
  own.state = state == nullptr ? nullptr : state->terms[term].get();
  return own;
}

Variable add_defined(Variable a, Variable b) {
  if (!a.defined()) return b;
  return b.defined() ? add(a, b) : a;
}

}  // namespace

void Position::transform(PositionCall call, Features& features, State* state) {
  for (size_t i = 0; i < terms_.size(); ++i) terms_[i]->transform(call_of(call, state, i), features);
}

Variable Position::restore(PositionCall call, Variable output, State* state) {
  for (size_t i = terms_.size(); i-- > 0;) output = terms_[i]->restore(call_of(call, state, i), output);
  return output;
}

Variable Position::lag_bias(PositionCall call, int64_t lags, State* state) {
  Variable sum;
  for (size_t i = 0; i < terms_.size(); ++i) sum = add_defined(sum, terms_[i]->lag_bias(call_of(call, state, i), lags));
  return sum;
}

Variable Position::log_gate(PositionCall call, State* state) {
  Variable sum;
  for (size_t i = 0; i < terms_.size(); ++i) sum = add_defined(sum, terms_[i]->log_gate(call_of(call, state, i)));
  return sum;
}

TileTransport* Position::tile_transport(PositionCall call, const Features& features, State* state) {
  for (size_t i = 0; i < terms_.size(); ++i)
    if (TileTransport* transport = terms_[i]->tile_transport(call_of(call, state, i), features)) return transport;
  return nullptr;
}

bool Position::keys_hold(int64_t total) const {
  return std::all_of(terms_.begin(), terms_.end(), [&](const auto& term) { return term->keys_hold(total); });
}

std::string Position::overflow(int64_t positions) const {
  std::string all;
  for (const auto& term : terms_)
    if (const std::string own = term->overflow(positions); !own.empty()) all += (all.empty() ? "" : "; ") + own;
  return all;
}

double Position::logit_scale(int64_t total) const {
  double product = 1.0;
  for (const auto& term : terms_) product *= term->logit_scale(total);
  return product;
}

}  // namespace sextant
