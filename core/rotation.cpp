#include "core/rotation.h"

#include "core/cpu.h"
#include "core/parallel.h"
#include "core/simd/rotation.h"

namespace sextant::kernels {

namespace {

template <class T>
const RotationTable<T>& rotation_table() {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return isa_avx512::rotation_table(T{});
  if (isa() == Isa::avx2) return isa_avx2::rotation_table(T{});
#endif
  return isa_plain::rotation_table(T{});
}

template <class T>
void rotate_token(const Rotation& rotation, const Tensor& phasors, int64_t b, int64_t t, bool backwards,
                  void (*rows)(const RotateRows<T>&)) {
  const Tensor &x = rotation.x, &y = rotation.y.tensor;
  const bool by_token = phasors.rank() == 2;
  rows({.rows = x.size(2),
        .dim = x.size(3),
        .x = x.data<T>() + b * x.stride(0) + t * x.stride(1),
        .x_row = x.stride(2),
        .phasors = phasors.data<T>() + (by_token ? t * phasors.stride(0) : b * phasors.stride(0) + t * phasors.stride(1)),
        .phasor_row = by_token ? 0 : phasors.stride(2),
        .y = y.data<T>() + b * y.stride(0) + t * y.stride(1),
        .y_row = y.stride(2),
        .backwards = backwards,
        .accumulate = rotation.y.accumulate});
}

}  // namespace

void rotate(std::span<const Rotation> rotations, const Tensor& phasors, Pairing pairing, bool backwards) {
  if (rotations.empty()) return;
  const Shape& shape = rotations.front().x.shape();
  for ([[maybe_unused]] const Rotation& rotation : rotations) {
    assert(rotation.x.shape() == shape && rotation.y.tensor.shape() == shape && shape[3] % 2 == 0);
    assert(rotation.x.stride(3) == 1 && rotation.y.tensor.stride(3) == 1);
  }
  const int64_t batch = shape[0], length = shape[1];
  dispatch(phasors.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto rows = pairing == Pairing::interleaved ? rotation_table<T>().interleaved : rotation_table<T>().half;
    parallel_ranges(batch * length, 256, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token)
        for (const Rotation& rotation : rotations)
          rotate_token<T>(rotation, phasors, token / length, token % length, backwards, rows);
    });
  });
}

}  // namespace sextant::kernels

namespace sextant {

ChainLayout::ChainLayout(const std::vector<int64_t>& orders, bool with_unipotent_block) : unipotent(with_unipotent_block) {
  const auto add = [this](int64_t chain, int64_t r) {
    slot.insert(slot.end(), 2, r);
    chain_order.insert(chain_order.end(), 2, chain);
    dim += 2;
  };
  for (const int64_t m : orders) {
    order = std::max(order, m);
    for (int64_t r = 0; r < m; ++r) add(m, r);
  }
  if (unipotent) add(1, 0);
}

namespace kernels {

namespace {

// Room that each thread grows once: expanded weights [order, D], and a row with what lies around it.
template <class T>
T* thread_scratch(int64_t count) {
  thread_local std::vector<T> room;
  if (static_cast<int64_t>(room.size()) < count) room.resize(static_cast<size_t>(count));
  return room.data();
}

// weights[s][d] for the coordinates whose chain has the slot that s leads to, 0 for the others.
template <class T>
void expand(const ChainLayout& layout, const T* weights, Shift shift, T* expanded) {
  for (int64_t s = 0; s < layout.order; ++s) {
    for (int64_t d = 0; d < layout.dim; ++d) {
      const size_t at = static_cast<size_t>(d);
      const int64_t reach = shift == Shift::up ? layout.chain_order[at] - 1 - layout.slot[at] : layout.slot[at];
      expanded[s * layout.dim + d] = s <= reach ? weights[s] : T(0);
    }
  }
}

template <class T>
void apply_to_token(const ChainAction& action, const ChainLayout& layout, int64_t b, int64_t t) {
  const Tensor &x = action.x, &y = action.y.tensor;
  const bool dense = x.rank() == 2;  // [T, D]: one row a token
  const T* weights = action.weights.data<T>() + t * action.weights.stride(0);
  T* expanded = thread_scratch<T>(layout.order * layout.dim + layout.dim + 4 * layout.order);
  expand(layout, weights, action.shift, expanded);
  rotation_table<T>().chains({.rows = dense ? 1 : x.size(2),
                              .dim = layout.dim,
                              .order = layout.order,
                              .x = x.data<T>() + (dense ? t * x.stride(0) : b * x.stride(0) + t * x.stride(1)),
                              .x_row = dense ? 0 : x.stride(2),
                              .phasors = action.phasors.data<T>() + t * action.phasors.stride(0),
                              .weights = expanded,
                              .shift = action.shift == Shift::up ? 2 : -2,
                              .block = layout.unipotent ? weights[layout.order] : T(0),
                              .y = y.data<T>() + (dense ? t * y.stride(0) : b * y.stride(0) + t * y.stride(1)),
                              .y_row = dense ? 0 : y.stride(2),
                              .backwards = action.backwards,
                              .accumulate = action.y.accumulate,
                              .scratch = expanded + layout.order * layout.dim});
}

}  // namespace

void apply_chains(std::span<const ChainAction> actions, const ChainLayout& layout) {
  if (actions.empty()) return;
  const Tensor& first = actions.front().x;
  const int64_t batch = first.rank() == 2 ? 1 : first.size(0), length = first.rank() == 2 ? first.size(0) : first.size(1);
  for ([[maybe_unused]] const ChainAction& action : actions) {
    assert(action.x.shape() == first.shape() && action.y.tensor.shape() == first.shape() && first.size(-1) == layout.dim);
    assert(action.x.stride(-1) == 1 && action.y.tensor.stride(-1) == 1 && action.weights.size(1) == layout.columns());
  }
  dispatch(first.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_ranges(batch * length, 128, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token)
        for (const ChainAction& action : actions) apply_to_token<T>(action, layout, token / length, token % length);
    });
  });
}

}  // namespace kernels
}  // namespace sextant
