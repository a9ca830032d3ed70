#include "positional/diagnostics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "positional/logits.h"
#include "positional/pj_bias_kernel.h"

namespace sextant {

// ---- sectors ------------------------------------------------------------------------------------------------------

namespace {

void fill_shares(std::vector<SectorDiagnostics>& all) {
  double mass = 0, energy = 0;
  for (const SectorDiagnostics& each : all) {
    mass += each.mass;
    energy += each.energy;
  }
  for (SectorDiagnostics& each : all) {
    each.mass_share = mass > 0 ? each.mass / mass : 0;
    each.energy_share = energy > 0 ? each.energy / energy : 0;
    each.cancellation = each.mass > 0 ? std::sqrt(each.energy) / each.mass : 0;
  }
}

// With the name of the strategy that each is of.
struct NamedComponent : SectorComponent {
  std::string term;
};

SectorDiagnostics diagnose(const NamedComponent& component, int64_t heads, int64_t window) {
  SectorDiagnostics result;
  result.term = component.term;
  result.sector = component.sector;
  result.order = component.order;
  result.mass = component.mass;
  const double count = static_cast<double>(window);
  std::vector<double> values(static_cast<size_t>(window));
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t d = 0; d < window; ++d) values[static_cast<size_t>(d)] = component.value(static_cast<int>(h), d);
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
    for (const double value : values) {
      result.energy += value * value / count / static_cast<double>(heads);
      result.centred_energy += (value - mean) * (value - mean) / count / static_cast<double>(heads);
    }
  }
  return result;
}

std::vector<NamedComponent> components_of(Position& position) {
  std::vector<NamedComponent> all;
  for (size_t n = 0; n < position.terms().size(); ++n)
    for (SectorComponent& component : position.terms()[n]->components())
      all.push_back({std::move(component), position.specs()[n].name()});
  return all;
}

}  // namespace

std::vector<SectorDiagnostics> sector_diagnostics(Position& position, int64_t heads, int64_t window) {
  std::vector<SectorDiagnostics> all;
  for (const NamedComponent& component : components_of(position)) all.push_back(diagnose(component, heads, window));
  fill_shares(all);
  return all;
}

std::vector<SectorDiagnostics> sector_diagnostics(std::span<Position* const> layers, int64_t heads, int64_t window) {
  std::vector<SectorDiagnostics> mean;
  for (Position* layer : layers) {
    const auto own = sector_diagnostics(*layer, heads, window);
    if (mean.empty()) mean.resize(own.size());
    for (size_t i = 0; i < own.size(); ++i) {
      const double share = 1.0 / static_cast<double>(layers.size());
      mean[i].term = own[i].term;
      mean[i].sector = own[i].sector;
      mean[i].order = own[i].order;
      mean[i].mass += share * own[i].mass;
      mean[i].energy += share * own[i].energy;
      mean[i].centred_energy += share * own[i].centred_energy;
    }
  }
  fill_shares(mean);
  return mean;
}

std::vector<LeaveOneOut> leave_one_out(std::span<Position* const> layers, const std::function<double()>& loss) {
  std::vector<LeaveOneOut> result;
  if (layers.empty()) return result;
  const double whole = loss();
  const size_t count = components_of(*layers.front()).size();
  for (size_t i = 0; i < count; ++i) {
    std::vector<std::function<void()>> restore;
    LeaveOneOut row;
    for (Position* layer : layers) {
      const NamedComponent component = components_of(*layer)[i];
      row.term = component.term;
      row.sector = component.sector;
      row.order = component.order;
      restore.push_back(component.remove());
    }
    row.change = loss() - whole;
    for (auto each = restore.rbegin(); each != restore.rend(); ++each) (*each)();
    result.push_back(std::move(row));
  }
  return result;
}

// ---- fits of fixed kernels ----------------------------------------------------------------------------------------

std::vector<BasisColumn> pj_basis(std::span<const int64_t> lags, int64_t frequencies, int64_t jets, int64_t lc_jets,
                                  bool affine, double length_scale) {
  const int64_t longest = lags.empty() ? 0 : *std::ranges::max_element(lags);
  Arena arena;
  const auto grid = geometric_frequencies({10000.0}, frequencies);
  const Tensor rows = pj::lag_table(arena, longest + 1, grid, length_scale);
  const pj::Tables tables{longest + 1, frequencies, rows.data<double>(), rows.stride(0), nullptr};
  std::vector<BasisColumn> basis;
  const auto add = [&](const char* sector, int64_t order, const double* base, const double* wave) {
    BasisColumn column{sector, static_cast<int>(order), {}};
    for (const int64_t d : lags)
      column.values.push_back(std::pow(base[d], static_cast<double>(order)) * (wave == nullptr ? 1.0 : wave[d]));
    basis.push_back(std::move(column));
  };
  const auto add_waves = [&](const char* sector, int64_t order, const double* base, auto cosine, auto sine) {
    for (int64_t k = 0; k < frequencies; ++k) {
      add(sector, order, base, cosine(k));
      add(sector, order, base, sine(k));
    }
  };
  for (int64_t r = 0; r < jets; ++r)
    add_waves(
        "FJ", r, tables.x(), [&](int64_t k) { return tables.fj_cos(k); }, [&](int64_t k) { return tables.fj_sin(k); });
  if (affine) {
    add("affine", 0, tables.x(), nullptr);
    add("affine", 1, tables.x(), nullptr);
  }
  for (int64_t r = 0; r < lc_jets; ++r)
    add_waves(
        "LC", r, tables.amplitude(), [&](int64_t k) { return tables.lc_cos(k); },
        [&](int64_t k) { return tables.lc_sin(k); });
  return basis;
}

namespace {

// Least squares by Householder reflections of the columns, the right side along with them; a column without anything
// left gets the coefficient 0.
std::vector<double> least_squares(std::vector<std::vector<double>> columns, std::vector<double> right) {
  const size_t rows = right.size(), count = columns.size();
  const auto reflect = [&](const std::vector<double>& v, double scale, std::vector<double>& x, size_t from) {
    double dot = 0;
    for (size_t i = from; i < rows; ++i) dot += v[i] * x[i];
    for (size_t i = from; i < rows; ++i) x[i] -= scale * dot * v[i];
  };
  for (size_t j = 0; j < count && j < rows; ++j) {
    double norm = 0;
    for (size_t i = j; i < rows; ++i) norm += columns[j][i] * columns[j][i];
    norm = std::sqrt(norm);
    if (norm == 0) continue;
    std::vector<double> v = columns[j];
    v[j] += std::copysign(norm, v[j]);
    double square = 0;
    for (size_t i = j; i < rows; ++i) square += v[i] * v[i];
    for (size_t c = j; c < count; ++c) reflect(v, 2 / square, columns[c], j);
    reflect(v, 2 / square, right, j);
  }
  std::vector<double> x(count, 0.0);
  for (size_t j = std::min(count, rows); j-- > 0;) {
    double rest = right[j];
    for (size_t c = j + 1; c < count; ++c) rest -= columns[c][j] * x[c];
    // Columns have norm 1: what is left of one that depends on the others is rounding.
    x[j] = std::fabs(columns[j][j]) > 1e-13 ? rest / columns[j][j] : 0.0;
  }
  return x;
}

double norm_of(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

}  // namespace

std::vector<double> ridge_fit(std::span<const BasisColumn> basis, std::span<const double> target, double ridge) {
  require(ridge >= 0, "ridge is {}, must be 0 or more", ridge);
  std::vector<std::vector<double>> columns;
  std::vector<double> norms;
  for (size_t c = 0; c < basis.size(); ++c) {
    require(basis[c].values.size() == target.size(), "basis column {} has {} values, the target {}", c,
            basis[c].values.size(), target.size());
    std::vector<double> column = basis[c].values;
    norms.push_back(norm_of(column));
    for (double& value : column) value = norms[c] > 0 ? value / norms[c] : 0.0;
    column.resize(target.size() + (ridge > 0 ? basis.size() : 0), 0.0);
    if (ridge > 0) column[target.size() + c] = std::sqrt(ridge);
    columns.push_back(std::move(column));
  }
  std::vector<double> right(target.begin(), target.end());
  right.resize(target.size() + (ridge > 0 ? basis.size() : 0), 0.0);
  std::vector<double> x = least_squares(std::move(columns), std::move(right));
  for (size_t c = 0; c < x.size(); ++c) x[c] = norms[c] > 0 ? x[c] / norms[c] : 0.0;
  return x;
}

double normalised_error(std::span<const BasisColumn> basis, std::span<const double> coefficients,
                        std::span<const double> target) {
  const double mean = std::accumulate(target.begin(), target.end(), 0.0) / static_cast<double>(target.size());
  double error = 0, variance = 0;
  for (size_t i = 0; i < target.size(); ++i) {
    double fitted = 0;
    for (size_t c = 0; c < basis.size(); ++c) fitted += coefficients[c] * basis[c].values[i];
    error += (fitted - target[i]) * (fitted - target[i]);
    variance += (target[i] - mean) * (target[i] - mean);
  }
  return variance > 0 ? error / variance : error;
}

std::vector<FitLeaveOneOut> fit_leave_one_out(std::span<const BasisColumn> basis, std::span<const double> target,
                                              double ridge) {
  const std::vector<double> whole = ridge_fit(basis, target, ridge);
  const double error = normalised_error(basis, whole, target);
  std::vector<FitLeaveOneOut> result;
  for (const BasisColumn& column : basis) {
    const auto same = [&](const auto& other) { return other.sector == column.sector && other.order == column.order; };
    if (std::ranges::any_of(result, same)) continue;
    std::vector<double> without = whole;
    std::vector<BasisColumn> others;
    for (size_t c = 0; c < basis.size(); ++c) {
      if (same(basis[c]))
        without[c] = 0;
      else
        others.push_back(basis[c]);
    }
    const std::vector<double> refitted = ridge_fit(others, target, ridge);
    result.push_back({column.sector, column.order, normalised_error(basis, without, target) - error,
                      normalised_error(others, refitted, target) - error});
  }
  return result;
}

// ---- transforms at long range -------------------------------------------------------------------------------------

namespace {

Tensor unit_rows(Arena& arena, const Shape& shape, const Random& random) {
  const Tensor x = empty(arena, shape, DType::f64);
  fill_normal(x, random, 0.0, 1.0);
  const int64_t dim = shape[-1];
  for (int64_t row = 0; row < shape.rows(); ++row) {
    double square = 0;
    for (int64_t d = 0; d < dim; ++d) square += x.flat(row * dim + d) * x.flat(row * dim + d);
    for (int64_t d = 0; d < dim; ++d) x.set_flat(row * dim + d, x.flat(row * dim + d) / std::sqrt(square));
  }
  return x;
}

struct Rows {
  Tensor q, k;  // [T, D]
};

Rows transformed_rows(PositionStand& stand, Tape& tape, int64_t first, int64_t count, uint64_t seed) {
  const PositionSettings& settings = stand.settings();
  const Shape shape{1, count, settings.heads, settings.head_dim};
  Features features{tape.constant(unit_rows(tape.arena(), shape, Random(seed, "stability q"))),
                    tape.constant(unit_rows(tape.arena(), shape, Random(seed, "stability k"))),
                    {}};
  features.v = features.k;
  const std::vector<int32_t> tokens(static_cast<size_t>(count), 0);
  const PositionCall call{&tape,         tape.constant(tape.zeros({1, count, settings.width}, DType::f64)),
                          tokens,        1,
                          count,         first,
                          first + count, false,
                          nullptr};
  stand.position().transform(call, features, nullptr);
  return {features.q.value().select(0, 0).select(1, 0), features.k.value().select(0, 0).select(1, 0)};
}

// What has overflowed is as large as can be: a maximum would pass over NaN.
double magnitude_of(double x) {
  return std::isnan(x) ? INFINITY : std::fabs(x);
}

void measure_norms(const Tensor& rows, double& largest, double& mean) {
  const int64_t count = rows.size(0);
  for (int64_t t = 0; t < count; ++t) {
    double square = 0;
    for (int64_t d = 0; d < rows.size(1); ++d) square += rows.at({t, d}) * rows.at({t, d});
    largest = std::max(largest, magnitude_of(std::sqrt(square)));
    mean += std::sqrt(square) / static_cast<double>(count);
  }
}

double largest_logit(const Tensor& q, const Tensor& k) {
  double most = 0;
  for (int64_t i = 0; i < q.size(0); ++i) {
    for (int64_t j = 0; j < k.size(0); ++j) {
      double dot = 0;
      for (int64_t d = 0; d < q.size(1); ++d) dot += q.at({i, d}) * k.at({j, d});
      most = std::max(most, std::fabs(dot));
    }
  }
  return most / std::sqrt(static_cast<double>(q.size(1)));
}

}  // namespace

std::vector<StabilityRow> stability(PositionStand& stand, std::span<const int64_t> positions, uint64_t seed) {
  std::vector<StabilityRow> rows;
  for (const int64_t position : positions) {
    require(position >= 0, "position {} must be 0 or more", position);
    Tape tape;
    NoGrad none(tape);
    const int64_t count = std::min<int64_t>(64, position + 1);
    const Rows far = transformed_rows(stand, tape, position + 1 - count, count, seed),
               start = transformed_rows(stand, tape, 0, count, seed + 1);
    StabilityRow row;
    row.position = position;
    measure_norms(far.q, row.largest_query, row.mean_query);
    measure_norms(far.k, row.largest_key, row.mean_key);
    row.largest_logit = std::max(largest_logit(far.q, far.k), largest_logit(far.q, start.k));
    row.key_bytes = static_cast<double>(position + 1) * static_cast<double>(stand.settings().head_dim) * sizeof(float);
    rows.push_back(row);
  }
  return rows;
}

StabilityRow stability_of(AttentionInputs inputs) {
  const int64_t keys = inputs.k.size(1), queries = inputs.q.size(1), heads = inputs.q.size(2), dim = inputs.q.size(3);
  const int64_t last_queries = std::min<int64_t>(64, queries), last_keys = std::min<int64_t>(64, keys);
  inputs.bias = inputs.gate = {};
  StabilityRow row;
  row.position = keys - 1;
  row.key_bytes = static_cast<double>(keys * dim) * static_cast<double>(size_of(inputs.k.dtype()));
  for (int64_t h = 0; h < heads; ++h) {
    const Tensor q = inputs.q.select(0, 0).select(1, h).slice(0, queries - last_queries, last_queries),
                 k = inputs.k.select(0, 0).select(1, h).slice(0, keys - last_keys, last_keys);
    double mean_query = 0, mean_key = 0;
    measure_norms(q, row.largest_query, mean_query);
    measure_norms(k, row.largest_key, mean_key);
    row.mean_query += mean_query / static_cast<double>(heads);
    row.mean_key += mean_key / static_cast<double>(heads);
    for (const double logit : logits_of_query(inputs, 0, h, queries - 1))
      row.largest_logit = std::max(row.largest_logit, magnitude_of(logit));
  }
  return row;
}

PhaseSpan phase_span(double frequency, double length_scale, int64_t from, int64_t to) {
  const auto rapidity = [&](int64_t d) { return length_scale * std::asinh(static_cast<double>(d) / length_scale); };
  return {frequency * static_cast<double>(to - from), frequency * (rapidity(to) - rapidity(from))};
}

double retrieval_accuracy(std::span<const std::vector<double>> features, int64_t delta, double noise, int64_t trials,
                          uint64_t seed) {
  const int64_t count = static_cast<int64_t>(features.size());
  require(count > 2 * delta && delta >= 1,
          "retrieval among {} lags with hard negatives within {}, needs more than twice as many lags", count, delta);
  std::vector<std::vector<double>> unit(features.begin(), features.end());
  for (std::vector<double>& vector : unit) {
    const double norm = norm_of(vector);
    for (double& value : vector) value = norm > 0 ? value / norm : 0.0;
  }
  const Random targets(seed, "retrieval target"), disturbance(seed, "retrieval noise");
  int64_t hits = 0;
  for (int64_t trial = 0; trial < trials; ++trial) {
    const int64_t target = delta + static_cast<int64_t>(targets.below(static_cast<uint64_t>(trial),
                                                                      static_cast<uint64_t>(count - 2 * delta)));
    std::vector<double> seen = unit[static_cast<size_t>(target)];
    for (size_t i = 0; i < seen.size(); ++i)
      seen[i] += noise * disturbance.normal(static_cast<uint64_t>(trial) * seen.size() + i);
    int64_t best = target - delta;
    double least = INFINITY;
    for (int64_t candidate = target - delta; candidate <= target + delta; ++candidate) {
      double distance = 0;
      for (size_t i = 0; i < seen.size(); ++i) {
        const double difference = seen[i] - unit[static_cast<size_t>(candidate)][i];
        distance += difference * difference;
      }
      if (distance < least) {
        least = distance;
        best = candidate;
      }
    }
    hits += best == target;
  }
  return static_cast<double>(hits) / static_cast<double>(trials);
}

std::vector<std::vector<double>> phase_features(std::span<const int64_t> lags, int64_t frequencies, double length_scale,
                                                bool light_cone) {
  return phase_features(lags, {"", values_of(geometric_frequencies({10000.0}, frequencies)), length_scale, light_cone});
}

std::vector<std::vector<double>> phase_features(std::span<const int64_t> lags, const PhaseChart& chart) {
  std::vector<std::vector<double>> features;
  for (const int64_t d : lags) {
    std::vector<double> vector;
    for (const double w : chart.frequencies) {
      const DoubleDouble turns = in_turns({w});
      const Phasor wave = chart.light_cone
                              ? phasor(light_cone_position(static_cast<double>(d), chart.length_scale), turns)
                              : phasor(d, turns);
      vector.push_back(wave.cosine);
      vector.push_back(wave.sine);
    }
    features.push_back(std::move(vector));
  }
  return features;
}

std::vector<Resolution> resolution(const Position& position, int64_t length, uint64_t seed) {
  constexpr int64_t trials = 1000;
  std::vector<Resolution> all;
  std::vector<int64_t> lags(static_cast<size_t>(std::min<int64_t>(64, length)));
  std::iota(lags.begin(), lags.end(), length - static_cast<int64_t>(lags.size()));
  for (size_t n = 0; n < position.terms().size(); ++n) {
    for (const PhaseChart& chart : position.terms()[n]->phase_charts()) {
      Resolution one;
      one.term = position.specs()[n].name();
      one.sector = chart.sector;
      one.light_cone = chart.light_cone;
      if (static_cast<int64_t>(lags.size()) <= 2 * one.delta || chart.frequencies.empty()) continue;
      one.from = lags.front();
      one.to = lags.back();
      one.span = phase_span(std::ranges::max(chart.frequencies), chart.length_scale, one.from, one.to);
      one.hits = retrieval_accuracy(phase_features(lags, chart), one.delta, one.noise, trials, seed);
      all.push_back(std::move(one));
    }
  }
  return all;
}

}  // namespace sextant
