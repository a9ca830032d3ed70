#include "core/rotation.h"

#include "core/cpu.h"
#include "core/parallel.h"
#include "core/scratch.h"
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
        .phasors =
            phasors.data<T>() + (by_token ? t * phasors.stride(0) : b * phasors.stride(0) + t * phasors.stride(1)),
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
  for (const Rotation& rotation : rotations) {
    assert(rotation.x.shape() == shape && rotation.y.tensor.shape() == shape && shape[3] % 2 == 0);
    require_contiguous_rows(rotation.x, "rotate");
    require_contiguous_rows(rotation.y.tensor, "rotate: the result");
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

ChainLayout::ChainLayout(const std::vector<int64_t>& orders, bool with_unipotent_block)
    : unipotent(with_unipotent_block) {
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
  for (const Shift shift : {Shift::up, Shift::down}) {
    for (int64_t s = 0; s < order; ++s) {
      for (size_t d = 0; d < slot.size(); ++d) {
        const bool inside = s <= (shift == Shift::up ? chain_order[d] - 1 - slot[d] : slot[d]);
        masks_f32[static_cast<int>(shift)].push_back(inside ? -1 : 0);
        masks_f64[static_cast<int>(shift)].push_back(inside ? -1 : 0);
      }
    }
  }
}

namespace kernels {

namespace {

template <class T>
const MaskOf<T>* masks_of(const ChainLayout& layout, Shift shift) {
  if constexpr (std::is_same_v<T, float>)
    return layout.masks_f32[static_cast<int>(shift)].data();
  else
    return layout.masks_f64[static_cast<int>(shift)].data();
}

// Tokens begin .. end - 1, counted through the batch: the heads of a token share its tables, dense rows have a token
// each.
template <class T>
void apply_to_tokens(const ChainAction& action, const ChainLayout& layout, int64_t begin, int64_t end) {
  const Tensor &x = action.x, &y = action.y.tensor, &phasors = action.phasors, &weights = action.weights;
  const bool dense = x.rank() == 2;  // [T, D]
  thread_local Scratch scratch;
  ChainRows<T> rows = {.rows = dense ? end - begin : x.size(2),
                       .dim = layout.dim,
                       .order = layout.order,
                       .x = nullptr,
                       .x_row = dense ? x.stride(0) : x.stride(2),
                       .phasors = nullptr,
                       .phasor_row = dense ? phasors.stride(0) : 0,
                       .weights = nullptr,
                       .weights_row = dense ? weights.stride(0) : 0,
                       .masks = masks_of<T>(layout, action.shift),
                       .shift = action.shift == Shift::up ? 2 : -2,
                       .unipotent = layout.unipotent,
                       .y = nullptr,
                       .y_row = dense ? y.stride(0) : y.stride(2),
                       .backwards = action.backwards,
                       .accumulate = action.y.accumulate,
                       .scratch = scratch.get<T>(layout.dim + 4 * layout.order)};
  for (int64_t token = begin; token < end; token += dense ? end - begin : 1) {
    const int64_t b = dense ? 0 : token / x.size(1), t = dense ? token : token % x.size(1);
    rows.x = x.data<T>() + (dense ? t * x.stride(0) : b * x.stride(0) + t * x.stride(1));
    rows.y = y.data<T>() + (dense ? t * y.stride(0) : b * y.stride(0) + t * y.stride(1));
    rows.phasors = phasors.data<T>() + t * phasors.stride(0);
    rows.weights = weights.data<T>() + t * weights.stride(0);
    rotation_table<T>().chains(rows);
  }
}

}  // namespace

void apply_chains(std::span<const ChainAction> actions, const ChainLayout& layout) {
  if (actions.empty()) return;
  const Tensor& first = actions.front().x;
  const int64_t batch = first.rank() == 2 ? 1 : first.size(0),
                length = first.rank() == 2 ? first.size(0) : first.size(1);
  for (const ChainAction& action : actions) {
    assert(action.x.shape() == first.shape() && action.y.tensor.shape() == first.shape() &&
           first.size(-1) == layout.dim);
    assert(action.weights.size(1) == layout.columns());
    require_contiguous_rows(action.x, "apply_chains");
    require_contiguous_rows(action.y.tensor, "apply_chains: the result");
  }
  dispatch(first.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_ranges(batch * length, 128, [&](int64_t begin, int64_t end) {
      for (const ChainAction& action : actions) apply_to_tokens<T>(action, layout, begin, end);
    });
  });
}

}  // namespace kernels
}  // namespace sextant
