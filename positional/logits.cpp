#include "positional/logits.h"

#include <algorithm>

#include "core/tile_transport.h"

namespace sextant {

namespace {

// <x, k_j> for the first `count` keys; k [keys, D], rows apart by any stride.
void products_with(const Tensor& x, const Tensor& k, int64_t count, double* out) {
  dispatch(k.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* query = x.data<T>();
    for (int64_t j = 0; j < count; ++j) {
      const T* key = k.data<T>() + j * k.stride(0);
      double sum = 0;
      for (int64_t d = 0; d < k.size(1); ++d) sum += static_cast<double>(query[d]) * static_cast<double>(key[d]);
      out[j] = sum;
    }
  });
}

// Key tile by key tile from the query's own leftwards, as core/tile_transport.h says.
void carried_products(const AttentionInputs& inputs, int64_t batch, int64_t head, int64_t position, const Tensor& raw,
                      const Tensor& keys, double* out) {
  constexpr int64_t tile = TileTransport::tile;
  Arena arena;
  const Tensor carried = empty(arena, raw.shape(), raw.dtype());
  carried.copy_from(raw);
  for (int64_t n = position / tile; n >= 0; --n) {
    const int64_t count = std::min(tile, keys.size(0) - n * tile);
    const TilePair pair{batch, head, position / tile, n, position, 1, count};
    inputs.transport->carry(pair, raw, carried);
    const Tensor own = keys.slice(0, n * tile, count);
    if (pair.diagonal() && inputs.transport->overrides_diagonal()) {
      const Tensor scores = empty(arena, {1, count}, raw.dtype()), dense = empty(arena, own.shape(), raw.dtype());
      dense.copy_from(own);
      inputs.transport->diagonal_scores(pair, carried, dense, scores);
      for (int64_t j = 0; n * tile + j <= position; ++j) out[n * tile + j] = scores.at({0, j});
    } else {
      products_with(carried, own, std::min(count, position + 1 - n * tile), out + n * tile);
    }
  }
}

}  // namespace

std::vector<double> logits_of_query(const AttentionInputs& inputs, int64_t batch, int64_t head, int64_t row) {
  const int64_t position = inputs.k.size(1) - inputs.q.size(1) + row;
  std::vector<double> logits(static_cast<size_t>(position + 1));
  Arena arena;
  const Tensor keys = inputs.k.select(0, batch).select(1, head);
  const Tensor query = empty(arena, {1, keys.size(1)}, keys.dtype());
  query.copy_from(inputs.q.select(0, batch).select(1, head).slice(0, row, 1));
  if (inputs.transport == nullptr)
    products_with(query, keys, position + 1, logits.data());
  else
    carried_products(inputs, batch, head, position, query, keys, logits.data());
  for (int64_t j = 0; j <= position; ++j) {
    double& logit = logits[static_cast<size_t>(j)];
    logit *= inputs.scale;
    if (inputs.bias.defined()) logit += inputs.bias.at({head, position - j});
    if (inputs.gate.defined()) logit += inputs.gate.at({batch, position, head}) - inputs.gate.at({batch, j, head});
  }
  return logits;
}

}  // namespace sextant
