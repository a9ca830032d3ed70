#include "autograd/shaping.h"

#include <cmath>

#include "autograd/elementwise.h"
#include "autograd/formula.h"
#include "autograd/gradient_check.h"
#include "autograd/products.h"
#include "autograd/reductions.h"
#include "core/error.h"
#include "core/shape_format.h"

namespace sextant {

FORMULA("reshape", "y = x in another shape", "dx = dy in the shape of x");
Variable reshape(Variable x, const Shape& shape) {
  return x.tape().record("reshape", {x}, x.value().reshape(shape),
                         [x](const Tensor& dy) { x.accumulate(contiguous(x.tape().arena(), dy).reshape(x.shape())); });
}

FORMULA("transpose", "y = x with two dimensions exchanged", "dx = dy with the same two exchanged");
Variable transpose(Variable x, int dim_a, int dim_b) {
  return x.tape().record("transpose", {x}, x.value().transpose(dim_a, dim_b),
                         [x, dim_a, dim_b](const Tensor& dy) { x.accumulate(dy.transpose(dim_a, dim_b)); });
}

FORMULA("slice", "y = a window of x", "dx = dy in the window, zero outside");
Variable slice(Variable x, int dim, int64_t start, int64_t length) {
  return x.tape().record("slice", {x}, x.value().slice(dim, start, length), [x, dim, start, length](const Tensor& dy) {
    const Tensor dx = x.tape().zeros(x.shape(), x.dtype());
    dx.slice(dim, start, length).copy_from(dy);
    x.accumulate(dx);
  });
}

FORMULA("contiguous", "y = x, copied row by row", "dx = dy");
Variable contiguous(Variable x) {
  if (x.value().contiguous()) return x;
  return x.tape().record("contiguous", {x}, contiguous(x.tape().arena(), x.value()),
                         [x](const Tensor& dy) { x.accumulate(dy); });
}

FORMULA("convert", "y = x rounded to another dtype", "dx = dy, as if nothing had been rounded");
Variable convert(Variable x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return x.tape().record("convert", {x}, converted(x.tape().arena(), x.value(), dtype),
                         [x](const Tensor& dy) { x.accumulate(converted(x.tape().arena(), dy, x.dtype())); });
}

FORMULA("concatenate", "y = a, then b along a dimension", "da = the first part of dy,  db = the rest");
Variable concatenate(Variable a, Variable b, int dim) {
  if (dim < 0) dim += a.value().rank();
  require(a.value().rank() == b.value().rank() && dim >= 0 && dim < a.value().rank(),
          "concatenate of shapes {} and {} along dimension {}", a.shape(), b.shape(), dim);
  Shape shape = a.shape(), expected = b.shape();
  expected.set(dim, a.size(dim));
  require(expected == a.shape() && a.dtype() == b.dtype(),
          "concatenate of shapes {} and {} along dimension {}: other sizes or dtypes differ", a.shape(), b.shape(),
          dim);
  const int64_t first = a.size(dim), second = b.size(dim);
  shape.set(dim, first + second);
  const Tensor y = a.tape().empty(shape, a.dtype());
  y.slice(dim, 0, first).copy_from(a.value());
  y.slice(dim, first, second).copy_from(b.value());
  return a.tape().record("concatenate", {a, b}, y, [a, b, dim, first, second](const Tensor& dy) {
    a.accumulate(dy.slice(dim, 0, first));
    b.accumulate(dy.slice(dim, first, second));
  });
}

Variable broadcast_to(Variable x, const Shape& shape) {
  const Variable base = x.tape().constant(x.tape().zeros(shape, x.dtype()), "zeros");
  return add(base, x);
}

namespace {

// Part 0, 1 or 2 (q, k, v) of a contiguous [B, T, 3C] tensor as [B, T, H, D]. The head count travels in the part
// number, since the tape keeps nothing else for a window.
Tensor qkv_part(const Tensor& qkv, int64_t heads, int part) {
  const int64_t width = qkv.size(-1) / 3;
  return qkv.reshape({qkv.size(0), qkv.size(1), 3, heads, width / heads}).select(2, part);
}
Tensor qkv_window(const Tensor& whole, int code) {
  return qkv_part(whole, code / 3, code % 3);
}

}  // namespace

FORMULA("split_qkv", "q, k, v = the three windows of qkv", "dqkv = dq, dk, dv, written straight into its windows");
std::array<Variable, 3> split_qkv(Variable qkv, int64_t heads) {
  require(qkv.value().rank() == 3 && heads > 0 && qkv.size(2) % (3 * heads) == 0,
          "split_qkv of shape {} into {} heads, must be [B, T, 3 * heads * D]", qkv.shape(), heads);
  const Tensor whole = qkv.value();
  const std::array<Tensor, 3> parts{qkv_part(whole, heads, 0), qkv_part(whole, heads, 1), qkv_part(whole, heads, 2)};
  if (qkv.needs_gradient() &&
      qkv.tape().parameter_of(qkv) != nullptr) {  // a bare parameter's gradient is not laid open to windows
    const auto outputs =
        qkv.tape().record_many<3>("split_qkv", {qkv}, parts, [qkv, heads](std::span<const Tensor> dparts) {
          const Tensor dx = qkv.tape().empty(qkv.shape(), qkv.dtype());
          for (int part = 0; part < 3; ++part) qkv_part(dx, heads, part).copy_from(dparts[static_cast<size_t>(part)]);
          qkv.accumulate(dx);
        });
    return outputs;
  }
  const auto outputs = qkv.tape().record_many<3>("split_qkv", {qkv}, parts, [](std::span<const Tensor>) {});
  for (int part = 0; part < 3; ++part)
    qkv.tape().alias_gradient(outputs[static_cast<size_t>(part)], qkv, qkv_window, static_cast<int>(heads) * 3 + part);
  return outputs;
}

FORMULA("embedding", "y[n] = table[ids[n]]", "dtable[v] = sum over n with ids[n] = v of dy[n]");
Variable embedding(Variable table, std::span<const int32_t> ids, const Shape& ids_shape) {
  require(ids_shape.elements() == static_cast<int64_t>(ids.size()), "embedding of {} ids as shape {}", ids.size(),
          ids_shape);
  Tape& tape = table.tape();
  const int64_t count = ids_shape.elements(), width = table.size(1);
  Shape shape = ids_shape;
  shape.append(width);
  const Tensor y = tape.empty(shape, table.dtype());
  kernels::embedding(table.value(), ids, y.reshape({count, width}));
  // The caller's ids may change before the backward.
  auto* kept = static_cast<int32_t*>(tape.arena().allocate(ids.size_bytes()));
  if (!ids.empty()) std::memcpy(kept, ids.data(), ids.size_bytes());
  const std::span<const int32_t> own(kept, ids.size());
  const Variable rows = tape.record("embedding", {table}, y, [table, own, count, width](const Tensor& dy) {
    Arena& arena = table.tape().arena();
    const int64_t leaves = table.tape().leaves_for(count);
    kernels::embedding_backward(contiguous(arena, dy).reshape({count, width}), own, leaves, table.sink(), arena);
  });
  tape.depends_on_batch(rows);
  return rows;
}

Variable embedding_composed(Variable table, std::span<const int32_t> ids, const Shape& ids_shape) {
  Tape& tape = table.tape();
  const Tensor onehot = tape.zeros({static_cast<int64_t>(ids.size()), table.size(0)}, table.dtype());
  for (size_t n = 0; n < ids.size(); ++n) {
    require(ids[n] >= 0 && ids[n] < table.size(0), "token {} at position {}, must be below the vocabulary of {}",
            ids[n], n, table.size(0));
    onehot.set_flat(static_cast<int64_t>(n) * table.size(0) + ids[n], 1.0);
  }
  Shape shape = ids_shape;
  shape.append(table.size(1));
  return reshape(matmul(tape.constant(onehot, "onehot"), table), shape);
}

FORMULA("gather_rows", "y[n] = x[rows[n]]", "dx[r] = sum over n with rows[n] = r of dy[n]");
Variable gather_rows(Variable x, std::span<const int64_t> rows) {
  require(x.value().rank() >= 1, "gather_rows of a scalar");
  Tape& tape = x.tape();
  Shape shape = x.shape();
  shape.set(0, static_cast<int64_t>(rows.size()));
  const Tensor y = tape.empty(shape, x.dtype());
  for (size_t i = 0; i < rows.size(); ++i) {
    require(rows[i] >= 0 && rows[i] < x.size(0), "gather_rows: row {} of a tensor of shape {}", rows[i], x.shape());
    y.select(0, static_cast<int64_t>(i)).copy_from(x.value().select(0, rows[i]));
  }
  auto* kept = static_cast<int64_t*>(tape.arena().allocate(rows.size_bytes()));
  std::copy(rows.begin(), rows.end(), kept);
  const std::span<const int64_t> own(kept, rows.size());
  const Variable gathered = tape.record("gather_rows", {x}, y, [x, own](const Tensor& dy) {
    const Tensor dx = x.tape().zeros(x.shape(), x.dtype());
    for (size_t i = 0; i < own.size(); ++i) {
      const Tensor target = dx.select(0, own[i]), row = dy.select(0, static_cast<int64_t>(i));
      for (int64_t e = 0, count = row.elements(); e < count; ++e) target.set_flat(e, target.flat(e) + row.flat(e));
    }
    x.accumulate(dx);
  });
  tape.depends_on_batch(gathered);
  return gathered;
}

namespace {
using Inputs = std::span<const Variable>;
}

AUDIT(reshape, "shaping") {
  const auto f = [](Tape&, Inputs x) { return square(reshape(x[0], {3, 4})); };
  return {{"ordinary", {sample(arena, {2, 6})}, f, {}},
          {"one element", {sample(arena, {1})}, [](Tape&, Inputs x) { return reshape(x[0], {}); }, {}},
          {"empty",
           {sample(arena, {0, 2})},
           [](Tape&, Inputs x) {
             return reshape(x[0], {2, 0});
           },
           {}}};
}
AUDIT(transpose, "shaping") {
  const auto f = [](Tape&, Inputs x) { return square(transpose(x[0], 0, -1)); };
  return {{"ordinary", {sample(arena, {2, 3, 4})}, f, {}}, {"one element", {sample(arena, {1, 1})}, f, {}}};
}
AUDIT(slice, "shaping") {
  const auto f = [](Tape&, Inputs x) {
    return add(slice(x[0], 1, 1, 2), slice(x[0], 1, 0, 2));
  };  // overlapping: used twice
  return {{"ordinary", {sample(arena, {2, 4})}, f, {}},
          {"empty", {sample(arena, {2, 4})}, [](Tape&, Inputs x) { return slice(x[0], 0, 1, 0); }, {}}};
}
AUDIT(contiguous, "shaping") {
  return {{"ordinary", {sample(arena, {2, 4})}, [](Tape&, Inputs x) { return contiguous(transpose(x[0], 0, 1)); }, {}}};
}
AUDIT(convert, "shaping") {
  // Rounding to f32 is a staircase, on which small differences mean nothing. Multiples of 2^-10, and steps of 2^-10
  // from one to the next, are f32 numbers: between these, nothing is rounded.
  const Tensor x = sample(arena, {2, 4});
  for (int64_t i = 0; i < x.elements(); ++i) x.set_flat(i, std::round(x.flat(i) * 0x1p10) * 0x1p-10);
  const auto f = [](Tape&, Inputs in) { return convert(convert(in[0], DType::f32), DType::f64); };
  AuditCase check{"to f32 and back", {x}, f, {}};
  check.step = 0x1p-10;
  AuditCase once{"to f32", {x}, [](Tape&, Inputs in) { return convert(in[0], DType::f32); }, {}};  // a wrong sign shows
  once.step = check.step;
  return {once, check};
}
AUDIT(concatenate, "shaping") {
  const auto f = [](Tape&, Inputs x) { return square(concatenate(x[0], x[1], 1)); };
  return {{"ordinary", {sample(arena, {2, 3}), sample(arena, {2, 4}, 1, 8)}, f, {}},
          {"empty", {sample(arena, {2, 0}), sample(arena, {2, 1})}, f, {}}};
}
AUDIT(broadcast_to, "shaping") {
  return {{"ordinary",
           {sample(arena, {3, 1})},
           [](Tape&, Inputs x) {
             return square(broadcast_to(x[0], {2, 3, 4}));
           },
           {}}};
}
AUDIT(split_qkv, "shaping") {
  const auto f = [](Tape&, Inputs x) {
    const auto [q, k, v] = split_qkv(scale(x[0], 1.0), 2);
    return add(multiply(q, k), multiply(v, v));
  };
  const auto only_v = [](Tape&, Inputs x) { return split_qkv(scale(x[0], 1.0), 2)[2]; };
  const auto bare = [](Tape&, Inputs x) { return multiply(split_qkv(x[0], 2)[0], split_qkv(x[0], 2)[2]); };
  return {{"ordinary", {sample(arena, {2, 3, 12})}, f, {}},
          {"one part only", {sample(arena, {1, 2, 6})}, only_v, {}},
          {"twice", {sample(arena, {1, 2, 6})}, bare, {}}};
}
AUDIT(embedding, "shaping") {
  static const std::vector<int32_t> ids{1, 0, 1, 4, 1, 1};
  const auto f = [](Tape&, Inputs x) { return square(embedding(x[0], ids, {2, 3})); };
  const auto composed = [](Tape&, Inputs x) { return square(embedding_composed(x[0], ids, {2, 3})); };
  const auto nothing = [](Tape&, Inputs x) { return embedding(x[0], {}, {0}); };
  return {{"ordinary", {sample(arena, {5, 3})}, f, composed}, {"no ids", {sample(arena, {5, 3})}, nothing, {}}};
}
AUDIT(gather_rows, "shaping") {
  static const std::vector<int64_t> rows{2, 0, 2};
  return {{"ordinary", {sample(arena, {3, 2})}, [](Tape&, Inputs x) { return square(gather_rows(x[0], rows)); }, {}}};
}

}  // namespace sextant
