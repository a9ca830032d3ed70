// Operations that move or re-window numbers without computing, and the gather of rows.
#pragma once

#include <array>

#include "autograd/tape.h"

namespace sextant {

Variable reshape(Variable x, const Shape& shape);                    // a view; x must be contiguous
Variable transpose(Variable x, int dim_a, int dim_b);                // a view
Variable slice(Variable x, int dim, int64_t start, int64_t length);  // a view
Variable contiguous(Variable x);                                     // a copy when x is not
Variable convert(Variable x, DType dtype);  // x itself when it has the dtype; the gradient is converted back
Variable concatenate(Variable a, Variable b, int dim);
Variable broadcast_to(Variable x, const Shape& shape);  // by NumPy's rules; copies

// qkv [B, T, 3C] -> q, k, v, each a view [B, T, H, D] with C = H D. Their gradients are written straight into the
// gradient of qkv.
std::array<Variable, 3> split_qkv(Variable qkv, int64_t heads);

// y[n] = table[ids[n]]: table [V, C], y [..., C] with the shape given for the ids.
Variable embedding(Variable table, std::span<const int32_t> ids, const Shape& ids_shape);
Variable embedding_composed(Variable table, std::span<const int32_t> ids, const Shape& ids_shape);  // one-hot product

// y[i, ...] = x[rows[i], ...], any rows of the first dimension, also repeated.
Variable gather_rows(Variable x, std::span<const int64_t> rows);

}  // namespace sextant
