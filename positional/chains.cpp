#include "positional/chains.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/attention.h"
#include "autograd/elementwise.h"
#include "autograd/formula.h"
#include "autograd/gradient_check.h"
#include "autograd/shaping.h"
#include "core/parallel.h"
#include "positional/rotate.h"

namespace sextant {

// ---- tables -------------------------------------------------------------------------------------------------------

ChainFamily geometric_chains(int64_t dim, int64_t order, bool unipotent) {
  const int64_t in_chains = unipotent ? dim - 2 : dim;
  std::vector<int64_t> orders(static_cast<size_t>(in_chains / (2 * order)), order);
  if (const int64_t rest = in_chains / 2 % order; rest > 0) orders.push_back(rest);
  ChainFamily family{ChainLayout(orders, unipotent), {}, {}, {}, {}};
  const auto by_chain = geometric_frequencies({10000.0}, static_cast<int64_t>(orders.size()));
  for (size_t k = 0; k < orders.size(); ++k)
    family.frequencies.insert(family.frequencies.end(), static_cast<size_t>(orders[k]), by_chain[k]);
  if (unipotent) family.frequencies.push_back({0.0});
  return family;
}

Tensor ChainFamily::phasors(PositionTables& tables, int64_t first, int64_t count, DType dtype) const {
  if (!phase) return shared_phasors(tables, names.phasors, first, count, frequencies, Pairing::interleaved, dtype);
  const auto make = [&](Arena& arena, int64_t positions) {
    const int64_t pairs = static_cast<int64_t>(frequencies.size());
    const Tensor made = empty(arena, {positions, 2 * pairs}, dtype);
    std::vector<DoubleDouble> turns;
    for (const DoubleDouble& frequency : frequencies) turns.push_back(in_turns(frequency));
    for (int64_t n = 0; n < positions; ++n) {
      const DoubleDouble at = phase(static_cast<double>(n));
      for (int64_t k = 0; k < pairs; ++k) {
        const Phasor wave = phasor(at, turns[static_cast<size_t>(k)]);
        made.set_flat(2 * (n * pairs + k), wave.cosine);
        made.set_flat(2 * (n * pairs + k) + 1, wave.sine);
      }
    }
    return made;
  };
  return tables.get(names.phasors, first + count, std::ref(make)).slice(0, first, count);
}

Tensor ChainFamily::weights_of(PositionTables& tables, int64_t first, int64_t count, int sign, DType dtype) const {
  const auto make = [&](Arena& arena, int64_t positions) {
    const int64_t columns = layout.columns();
    const Tensor exact = empty(arena, {positions, columns}, DType::f64);
    for (int64_t n = 0; n < positions; ++n) weights(static_cast<double>(sign * n), exact.data<double>() + n * columns);
    return dtype == DType::f64 ? exact : converted(arena, exact, dtype);
  };
  return tables.get(sign > 0 ? names.plus : names.minus, first + count, std::ref(make)).slice(0, first, count);
}

std::vector<PhaseChart> ChainFamily::phase_charts(double length_scale) const {
  std::vector<double> by_chain = values_of(frequencies);
  std::erase(by_chain, 0.0);  // the unipotent block turns nothing
  by_chain.erase(std::ranges::unique(by_chain).begin(), by_chain.end());
  return {{.frequencies = by_chain, .length_scale = length_scale, .light_cone = static_cast<bool>(phase)}};
}

int64_t ChainFamily::first_overflow(int64_t positions, bool back, DType dtype) const {
  const double most =
      dtype == DType::f32 ? static_cast<double>(std::numeric_limits<float>::max()) : std::numeric_limits<double>::max();
  std::vector<double> row(static_cast<size_t>(layout.columns()));
  for (int64_t n = 0; n < positions; ++n) {
    weights(static_cast<double>(back ? -n : n), row.data());
    if (!std::ranges::all_of(row, [&](double weight) { return std::fabs(weight) <= most; })) return n;
  }
  return -1;
}

// ---- the absolute evaluation --------------------------------------------------------------------------------------
//
// G(i)^T = (sum_s w_s(i) N^s)^T R(i w) and G(-j) = (sum_s w_s(-j) N^s) R(j w); both sums commute with the rotation. The
// gradient goes through the transposes, which rotate back and shift the other way.

FORMULA("jordan chains", "q~_i = G(i)^T q_i,  k~_j = G(-j) k_j", "dq_i = G(i) dq~_i,  dk_j = G(-j)^T dk~_j");
void transform_by_chains(Tape& tape, Features& features, const ChainFamily& family, PositionTables& tables,
                         int64_t first) {
  const Variable q = features.q, k = features.k;
  const int64_t length = q.size(1);
  const Tensor phasors = family.phasors(tables, first, length, q.dtype());
  const Tensor forth = family.weights_of(tables, first, length, 1, q.dtype());
  const Tensor back = family.weights_of(tables, first, length, -1, q.dtype());
  const ChainLayout* layout = &family.layout;  // of the term, which outlives the tape's step
  const Tensor out_q = tape.empty(q.shape(), q.dtype()), out_k = tape.empty(k.shape(), k.dtype());
  kernels::apply_chains({{{q.value(), {out_q}, phasors, forth, Shift::down, false},
                          {k.value(), {out_k}, phasors, back, Shift::up, false}}},
                        *layout);
  const auto out = tape.record_many<2>("jordan chains", {q, k}, {out_q, out_k},
                                       [q, k, phasors, forth, back, layout](std::span<const Tensor> dy) {
                                         kernels::ChainAction actions[2];
                                         size_t count = 0;
                                         if (q.needs_gradient())
                                           actions[count++] = {dy[0], q.sink(), phasors, forth, Shift::up, true};
                                         if (k.needs_gradient())
                                           actions[count++] = {dy[1], k.sink(), phasors, back, Shift::down, true};
                                         kernels::apply_chains({actions, count}, *layout);
                                       });
  features.q = out[0];
  features.k = out[1];
}

// Slot by slot: y_r = sum_s w_s z_{r +- s} over the pairs of the rotated z.
namespace {

Variable chains_composed(Tape& tape, Variable x, const Tensor& phasors, const Tensor& weights,
                         const ChainLayout& layout, Shift shift) {
  const Variable z = rotate_composed(tape, x, phasors, Pairing::interleaved);
  const int64_t length = x.size(1);
  const auto weight = [&](int64_t s) {
    return tape.constant(contiguous(tape.arena(), weights.slice(1, s, 1)).reshape({length, 1, 1}));
  };
  const auto coordinates = [&](int64_t from, int64_t count) { return contiguous(slice(z, 3, from, count)); };
  Variable y;
  for (int64_t d = 0; d < layout.dim; d += 2) {
    const size_t at = static_cast<size_t>(d);
    const int64_t reach = shift == Shift::up ? layout.chain_order[at] - 1 - layout.slot[at] : layout.slot[at];
    Variable pair;
    if (layout.unipotent && d == layout.dim - 2) {
      const Variable head = coordinates(d, 1), tail = coordinates(d + 1, 1), u = weight(layout.order);
      pair = shift == Shift::up ? concatenate(add(head, multiply(tail, u)), tail, 3)
                                : concatenate(head, add(tail, multiply(head, u)), 3);
    } else {
      for (int64_t s = 0; s <= reach; ++s) {
        const Variable part = multiply(coordinates(d + (shift == Shift::up ? 2 : -2) * s, 2), weight(s));
        pair = pair.defined() ? add(pair, part) : part;
      }
    }
    y = y.defined() ? concatenate(y, pair, 3) : pair;
  }
  return y;
}

}  // namespace

void transform_by_chains_composed(Tape& tape, Features& features, const ChainFamily& family, PositionTables& tables,
                                  int64_t first) {
  const int64_t length = features.q.size(1);
  const DType dtype = features.q.dtype();
  const Tensor phasors = family.phasors(tables, first, length, dtype);
  features.q = chains_composed(tape, features.q, phasors, family.weights_of(tables, first, length, 1, dtype),
                               family.layout, Shift::down);
  features.k = chains_composed(tape, features.k, phasors, family.weights_of(tables, first, length, -1, dtype),
                               family.layout, Shift::up);
}

// ---- the anchored evaluation --------------------------------------------------------------------------------------

namespace {

constexpr int64_t half_tile = TileTransport::tile / 2;

// Row r belongs to n = r - 32: the lags from an anchor that occur run from -32 on.
struct AnchoredTables {
  Tensor phasors, weights;
};

AnchoredTables anchored_tables(const ChainFamily& family, PositionTables& tables, int64_t positions, DType dtype) {
  const int64_t rows = positions + TileTransport::tile;
  const auto make_phasors = [&](Arena& arena, int64_t count) {
    return phasor_table(arena, -half_tile, count, family.frequencies, Pairing::interleaved, dtype);
  };
  const auto make_weights = [&](Arena& arena, int64_t count) {
    const int64_t columns = family.layout.columns();
    const Tensor exact = empty(arena, {count, columns}, DType::f64);
    for (int64_t r = 0; r < count; ++r)
      family.weights(static_cast<double>(r - half_tile), exact.data<double>() + r * columns);
    return dtype == DType::f64 ? exact : converted(arena, exact, dtype);
  };
  return {tables.get(family.names.anchored_phasors, rows, std::ref(make_phasors)),
          tables.get(family.names.anchored_weights, rows, std::ref(make_weights))};
}

// Carries raw queries to a key tile's anchor: x_J = G(i - a)^T q_i, and back: dq_i += G(i - a) dx_J.
class AnchoredTransport : public TileTransport {
 public:
  AnchoredTransport(const AnchoredTables& tables, const ChainLayout* layout) : tables_(tables), layout_(layout) {}

  void carry(const TilePair& pair, const Tensor& raw, const Tensor& carried) const override {
    apply(pair, raw, {carried, false}, Shift::down, false);
  }
  void carry_backward(const TilePair& pair, const Tensor&, const Tensor&, const Tensor& dcarried,
                      const Tensor& draw) const override {
    apply(pair, dcarried, {draw, true}, Shift::up, true);
    dcarried.zero();  // x_J came from the raw queries alone
  }

 private:
  void apply(const TilePair& pair, const Tensor& x, const Sink& y, Shift shift, bool backwards) const {
    const int64_t row = pair.first_query - pair.first_key();  // i - a + 32
    const kernels::ChainAction action{
        x,     y,        tables_.phasors.slice(0, row, pair.queries), tables_.weights.slice(0, row, pair.queries),
        shift, backwards};
    kernels::apply_chains({&action, 1}, *layout_);
  }

  AnchoredTables tables_;
  const ChainLayout* layout_;
};

// The rows for keys first .. first + count - 1: n = a - j, 32 down to -31 within a tile.
AnchoredTables key_tables(const ChainFamily& family, PositionTables& tables, int64_t first, int64_t count,
                          DType dtype) {
  const AnchoredTables all = anchored_tables(family, tables, TileTransport::tile, dtype);
  const auto rows_of = [&](const std::string& name, const Tensor& table) {
    const auto make = [&](Arena& arena, int64_t positions) {
      const Tensor rows = empty(arena, {positions, table.size(1)}, dtype);
      for (int64_t j = 0; j < positions; ++j)
        rows.slice(0, j, 1).copy_from(table.slice(0, TileTransport::tile - j % TileTransport::tile, 1));
      return rows;
    };
    return tables.get(name, first + count, std::ref(make)).slice(0, first, count);
  };
  return {rows_of(family.names.key_phasors, all.phasors), rows_of(family.names.key_weights, all.weights)};
}

}  // namespace

FORMULA("anchored keys", "k~_j = G(a - j) k_j = (sum_s w_s(a - j) N^s) R(-(a - j) w) k_j,  a the anchor of its tile",
        "dk_j = G(a - j)^T dk~_j");
Variable anchor_keys(Tape& tape, Variable k, const ChainFamily& family, PositionTables& tables, int64_t first) {
  const AnchoredTables rows = key_tables(family, tables, first, k.size(1), k.dtype());
  const ChainLayout* layout = &family.layout;
  const Tensor y = tape.empty(k.shape(), k.dtype());
  const kernels::ChainAction action{k.value(), {y}, rows.phasors, rows.weights, Shift::up, true};
  kernels::apply_chains({&action, 1}, *layout);
  return tape.record("anchored keys", {k}, y, [k, rows, layout](const Tensor& dy) {
    const kernels::ChainAction back{dy, k.sink(), rows.phasors, rows.weights, Shift::down, false};
    kernels::apply_chains({&back, 1}, *layout);
  });
}

TileTransport* anchored_transport(Tape& tape, const ChainFamily& family, PositionTables& tables, int64_t positions,
                                  DType dtype) {
  void* place = tape.arena().allocate(sizeof(AnchoredTransport));
  return new (place) AnchoredTransport(anchored_tables(family, tables, positions, dtype), &family.layout);
}

// ---- audit --------------------------------------------------------------------------------------------------------

namespace {

// What a case's functions share beyond their inputs.
struct Stand {
  ChainFamily family;
  PositionTables tables;
};

std::shared_ptr<Stand> make_stand(int64_t dim, int64_t order, bool unipotent, double damping) {
  auto stand = std::make_shared<Stand>(Stand{geometric_chains(dim, order, unipotent), {}});
  stand->family.names = ChainTableNames("audit");
  stand->family.weights = [order, unipotent, damping](double n, double* row) {
    row[0] = std::exp(-damping * n);
    for (int64_t r = 1; r < order; ++r) row[r] = row[r - 1] * n / 8 / static_cast<double>(r);
    if (unipotent) row[order] = n / 8;
  };
  return stand;
}

AuditCase chains_case(Arena& arena, const char* label, const Shape& shape, int64_t order, bool unipotent,
                      double damping) {
  AuditCase result;
  result.label = label;
  result.inputs = {sample(arena, shape, 1.0, 3), sample(arena, shape, 1.0, 4)};
  const auto form = [=](auto transform) {
    const auto stand = make_stand(shape[3], order, unipotent, damping);
    return [stand, transform](Tape& tape, std::span<const Variable> x) {
      Features features{x[0], x[1], {}};
      transform(tape, features, stand->family, stand->tables, 3);
      return subtract(features.q, scale(features.k, 2.0));  // unequal weights: a swap of q and k would show
    };
  };
  result.function = form(transform_by_chains);
  result.composed = form(transform_by_chains_composed);
  result.function_f32 = form(transform_by_chains);
  return result;
}

// Anchored attention against plain attention of the absolute transform.
AuditCase anchored_case(Arena& arena, const char* label, const Shape& shape, int64_t order, double damping) {
  const auto stand = make_stand(shape[3], order, false, damping);
  AuditCase result;
  result.label = label;
  result.inputs = {sample(arena, shape, 1.0, 3), sample(arena, shape, 1.0, 4), sample(arena, shape, 1.0, 5)};
  const auto anchored = [](const std::shared_ptr<Stand>& with) {
    return [with](Tape& tape, std::span<const Variable> x) {
      const Variable k = anchor_keys(tape, x[1], with->family, with->tables, 0);
      TileTransport* transport = anchored_transport(tape, with->family, with->tables, k.size(1), k.dtype());
      return attention({x[0], k, x[2], {}, {}, 0.1, transport});
    };
  };
  result.function = anchored(stand);
  result.function_f32 = anchored(make_stand(shape[3], order, false, damping));
  result.composed = [stand](Tape& tape, std::span<const Variable> x) {
    Features features{x[0], x[1], {}};
    transform_by_chains_composed(tape, features, stand->family, stand->tables, 0);
    return attention_composed({features.q, features.k, x[2], {}, {}, 0.1, nullptr});
  };
  return result;
}

}  // namespace

AUDIT(jordan_chains, "positional") {
  return {chains_case(arena, "order 1", {2, 3, 2, 8}, 1, false, 0.0),
          chains_case(arena, "order 3, damped", {2, 3, 2, 12}, 3, false, 0.1),
          chains_case(arena, "one chain", {1, 2, 1, 16}, 8, false, 0.0),
          chains_case(arena, "unipotent block, shorter last chain", {1, 4, 2, 8}, 2, true, 0.0),
          chains_case(arena, "one token", {1, 1, 1, 4}, 2, false, 0.0)};
}

AUDIT(anchored_chains, "positional") {
  return {anchored_case(arena, "within a tile", {2, 5, 2, 4}, 2, 0.0),
          anchored_case(arena, "three tiles", {1, 131, 1, 4}, 2, 0.01)};
}

}  // namespace sextant
