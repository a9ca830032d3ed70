#include "positional/response.h"

#include <algorithm>
#include <cmath>

#include "autograd/reductions.h"
#include "core/error.h"
#include "positional/logits.h"

namespace sextant {

PositionStand::PositionStand(const std::string& spec, PositionSettings settings) : settings_(std::move(settings)) {
  settings_.dtype = DType::f64;
  settings_.weights = &weights_;
  settings_.tables = &tables_;
  if (settings_.prefix.empty()) settings_.prefix = "position.";
  position_ = std::make_unique<Position>(spec, settings_);
}

namespace {

// A sequence of `length` random tokens with random inputs, as a call; what is drawn does not depend on the length.
struct Sequence {
  std::vector<int32_t> tokens;
  PositionCall call;

  Sequence(Tape& tape, const PositionSettings& settings, int64_t length, uint64_t seed) {
    const Random random(seed, "response tokens");
    for (int64_t t = 0; t < length; ++t)
      tokens.push_back(
          static_cast<int32_t>(random.below(static_cast<uint64_t>(t), static_cast<uint64_t>(settings.vocabulary))));
    const Tensor input = tape.empty({1, length, settings.width}, DType::f64);
    fill_normal(input, Random(seed, "response input"), 0.0, 1.0);
    call = {&tape, tape.constant(input), tokens, 1, length, 0, length, false, nullptr};
  }
};

Variable unit_rows(Tape& tape, const PositionSettings& settings, int64_t length, int64_t coordinate) {
  const Tensor x = tape.zeros({1, length, settings.heads, settings.head_dim}, DType::f64);
  for (int64_t row = 0; row < length * settings.heads; ++row)
    x.data<double>()[row * settings.head_dim + coordinate] = 1.0;
  return tape.constant(x);
}

std::vector<double> at_lags(const std::vector<double>& by_position, std::span<const int64_t> lags) {
  std::vector<double> values;
  for (const int64_t lag : lags) values.push_back(by_position[by_position.size() - 1 - static_cast<size_t>(lag)]);
  return values;
}

void check_lags(std::span<const int64_t> lags, int64_t query_position) {
  require(!lags.empty() && *std::ranges::min_element(lags) >= 0, "lags must be 0 or more");
  require(*std::ranges::max_element(lags) <= query_position, "a query at position {} has no key at lag {}",
          query_position, *std::ranges::max_element(lags));
}

}  // namespace

std::vector<Response> transform_responses(PositionStand& stand, std::span<const int64_t> lags, int64_t query_position,
                                          std::span<const int> heads, std::span<const int64_t> coordinates,
                                          uint64_t seed) {
  check_lags(lags, query_position);
  const PositionSettings& settings = stand.settings();
  const int64_t length = query_position + 1;
  // q = k = e_c everywhere, transformed; f gets the features and the transport.
  const auto with_unit_rows = [&](int64_t coordinate, auto f) {
    Tape tape;
    NoGrad none(tape);
    const Sequence sequence(tape, settings, length, seed);
    const Variable unit = unit_rows(tape, settings, length, coordinate);
    Features features{unit, unit, unit};
    stand.position().transform(sequence.call, features, nullptr);
    f(features, stand.position().tile_transport(sequence.call, features, nullptr));
  };
  Arena arena;
  std::vector<Tensor> queries;  // by coordinate, [1, 1, H, D] of the last position
  for (const int64_t a : coordinates)
    with_unit_rows(a, [&](const Features& features, const TileTransport*) {
      queries.push_back(converted(arena, features.q.value().slice(1, query_position, 1), DType::f64));
    });
  std::vector<Response> all;
  for (const int64_t b : coordinates) {
    with_unit_rows(b, [&](const Features& features, const TileTransport* transport) {
      for (const int head : heads) {
        for (size_t a = 0; a < coordinates.size(); ++a) {
          const auto by_position =
              logits_of_query({queries[a], features.k.value(), {}, {}, {}, 1.0, transport}, 0, head, 0);
          Response response{"transform", head, fmt::format("q{} k{}", coordinates[a], b), "",
                            at_lags(by_position, lags)};
          if (std::ranges::any_of(response.values, [](double value) { return std::fabs(value) > 1e-13; }))
            all.push_back(std::move(response));
        }
      }
    });
  }
  return all;
}

std::vector<Response> bias_responses(PositionStand& stand, std::span<const int64_t> lags, int head) {
  const int64_t longest = *std::ranges::max_element(lags) + 1;
  Tape tape;
  NoGrad none(tape);
  const Sequence sequence(tape, stand.settings(), longest, 1);
  const Variable bias = stand.position().lag_bias(sequence.call, longest, nullptr);
  std::vector<Response> all;
  if (!bias.defined()) return all;
  Response sum{"bias", head, "sum", "", {}};
  for (const int64_t lag : lags) sum.values.push_back(bias.value().at({head, lag}));
  all.push_back(std::move(sum));
  const auto& terms = stand.position().terms();
  const auto has_components = [](const auto& term) { return !term->components().empty(); };
  const bool several = std::ranges::count_if(terms, has_components) > 1;  // which may share sectors
  for (size_t n = 0; n < terms.size(); ++n) {
    const std::string name = stand.position().specs()[n].name();
    for (const SectorComponent& component : terms[n]->components()) {
      Response response{"bias",
                        head,
                        fmt::format("{}{} {}", several && name != component.sector ? name + " " : "", component.sector,
                                    component.order),
                        component.sector,
                        {}};
      for (const int64_t lag : lags) response.values.push_back(component.value(head, lag));
      all.push_back(std::move(response));
    }
  }
  return all;
}

std::vector<Response> gate_responses(PositionStand& stand, std::span<const int64_t> lags, int64_t query_position,
                                     int head, uint64_t seed) {
  check_lags(lags, query_position);
  Tape tape;
  NoGrad none(tape);
  const Sequence sequence(tape, stand.settings(), query_position + 1, seed);
  const Variable log_gate = stand.position().log_gate(sequence.call, nullptr);
  if (!log_gate.defined()) return {};
  const Tensor sums = cumulative_sum(log_gate, 1).value();  // F [1, T, H]
  Response response{"gate", head, "F", "", {}};
  for (const int64_t lag : lags)
    response.values.push_back(sums.at({0, query_position, head}) - sums.at({0, query_position - lag, head}));
  return {std::move(response)};
}

}  // namespace sextant
