#include "autograd/attention.h"

#include <limits>

#include "autograd/elementwise.h"
#include "autograd/formula.h"
#include "autograd/gradient_check.h"
#include "autograd/products.h"
#include "autograd/reductions.h"
#include "autograd/shaping.h"
#include "autograd/softmax.h"
#include "core/error.h"
#include "core/shape_format.h"
#include "core/tile_transport.h"

namespace sextant {

namespace {

void check(const AttentionArguments& a) {
  const Shape& q = a.q.shape();
  require(q.rank() == 4 && a.k.shape().rank() == 4 && a.k.shape() == a.v.shape() && a.k.size(0) == q[0] &&
              a.k.size(1) >= q[1] && a.k.size(2) == q[2] && a.k.size(3) == q[3],
          "attention of q {}, k {}, v {}, must be [B, T, H, D], [B, S, H, D], [B, S, H, D] with S >= T", q, a.k.shape(),
          a.v.shape());
  if (a.bias.defined())
    require(a.bias.shape().rank() == 2 && a.bias.size(0) == q[2] && a.bias.size(1) >= a.k.size(1),
            "attention: lag bias {}, must be [{}, {} or more]", a.bias.shape(), q[2], a.k.size(1));
  if (a.gate.defined())
    require(a.gate.shape() == Shape{q[0], a.k.size(1), q[2]} && a.gate.dtype() == DType::f64,
            "attention: gate {} of {}, must be {} of f64", a.gate.shape(), name_of(a.gate.dtype()),
            Shape{q[0], a.k.size(1), q[2]});
}

Sink wanted(Variable x) {
  return x.defined() && x.needs_gradient() ? x.sink() : Sink{};
}

}  // namespace

AttentionInputs values_of(const AttentionArguments& a) {
  const auto value = [](Variable x) { return x.defined() ? x.value() : Tensor{}; };
  return {a.q.value(), a.k.value(), a.v.value(), value(a.bias), value(a.gate), a.scale, a.transport};
}

FORMULA("attention", "S_ij = c <q_i, k_j> + b(i - j) + F_i - F_j for j <= i,  P = softmax(S),  o = P v",
        "dv = P^T do,  dP = do v^T,  dS = P (dP - <do, o>),  dq = c dS k,  dk = c dS^T q,  db(d) = sum over i - j = d "
        "of dS,  dF_j = -sum over i of dS_ij (the rows of dS sum to 0)");
Variable attention(const AttentionArguments& arguments) {
  check(arguments);
  Tape& tape = arguments.q.tape();
  const Shape& shape = arguments.q.shape();
  const AttentionInputs inputs = values_of(arguments);
  const Tensor out = tape.empty(shape, arguments.q.dtype());
  const Tensor lse = tape.empty({shape[0], shape[2], shape[1]}, arguments.q.dtype());
  kernels::attention(inputs, out, lse);
  const Variable result =
      tape.record("attention", {arguments.q, arguments.k, arguments.v, arguments.bias, arguments.gate}, out,
                  [arguments, inputs, out, lse](const Tensor& dout) {
                    Tape& own = arguments.q.tape();
                    const AttentionGradients gradients{wanted(arguments.q), wanted(arguments.k), wanted(arguments.v),
                                                       wanted(arguments.bias), wanted(arguments.gate)};
                    kernels::attention_backward(inputs, out, lse, dout, gradients, own.arena());
                    if (arguments.transport != nullptr) arguments.transport->finish_backward();
                  },
                  {lse});
  // Pairs (i, j) of one head; each costs 2 D for q k^T and 2 D for p v, and 2.5 times that backward.
  const double pairs = static_cast<double>(shape[1]) *
                       (static_cast<double>(arguments.k.size(1)) - 0.5 * static_cast<double>(shape[1] - 1));
  const double flops = 4.0 * static_cast<double>(shape[0] * shape[2] * shape[3]) * pairs;
  tape.add_flops(flops, 2.5 * flops);
  return result;
}

namespace {

// bias_h(i - j) laid out as [H, T, S] by gathering along the lags; scores of the future are masked afterwards.
Variable spread_lags(Variable bias, int64_t queries, int64_t keys) {
  const Variable by_lag = transpose(bias, 0, 1);  // [lags, H]
  std::vector<int64_t> lags;
  lags.reserve(static_cast<size_t>(queries * keys));
  for (int64_t i = keys - queries; i < keys; ++i)
    for (int64_t j = 0; j < keys; ++j) lags.push_back(std::max<int64_t>(0, i - j));
  const Variable gathered = gather_rows(contiguous(by_lag), lags);  // [T S, H]
  return reshape(contiguous(transpose(gathered, 0, 1)), {bias.size(0), queries, keys});
}

}  // namespace

// scores [B, H, T, S] = scale q k^T + bias + F_i - F_j, -inf where j > i; out = softmax(scores) v
Variable attention_composed(const AttentionArguments& arguments) {
  check(arguments);
  require(arguments.transport == nullptr, "composed attention takes no tile transport: compose the strategy instead");
  Tape& tape = arguments.q.tape();
  const int64_t queries = arguments.q.size(1), keys = arguments.k.size(1);
  const Variable q = contiguous(transpose(arguments.q, 1, 2)), k = contiguous(transpose(arguments.k, 1, 2)),
                 v = contiguous(transpose(arguments.v, 1, 2));  // [B, H, ., D]
  Variable scores = scale(matmul(q, transpose(k, 2, 3)), arguments.scale);
  if (arguments.bias.defined()) scores = add(scores, spread_lags(arguments.bias, queries, keys));
  if (arguments.gate.defined()) {
    const Variable gate = transpose(arguments.gate, 1, 2);  // [B, H, S]
    const int64_t batch = gate.size(0), heads = gate.size(1);
    const Variable at_key = reshape(contiguous(gate), {batch, heads, 1, keys});
    const Variable at_query = reshape(contiguous(slice(gate, 2, keys - queries, queries)), {batch, heads, queries, 1});
    scores = add(scores, convert(subtract(at_query, at_key), scores.dtype()));
  }
  const Tensor mask = tape.zeros({queries, keys}, scores.dtype());
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = i + keys - queries + 1; j < keys; ++j)
      mask.set_flat(i * keys + j, -std::numeric_limits<double>::infinity());
  const Variable weights = softmax(add(scores, tape.constant(mask, "causal mask")));
  return transpose(matmul(weights, v), 1, 2);
}

namespace {
using Inputs = std::span<const Variable>;
}

AUDIT(attention, "attention") {
  const auto arguments = [](Inputs x) {
    AttentionArguments a{x[0], x[1], x[2], {}, {}, 0.7, nullptr};
    for (size_t i = 3; i < x.size(); ++i) (x[i].shape().rank() == 2 ? a.bias : a.gate) = x[i];
    return a;
  };
  const auto f = [arguments](Tape&, Inputs x) { return attention(arguments(x)); };
  const auto composed = [arguments](Tape&, Inputs x) { return attention_composed(arguments(x)); };
  const auto qkv = [&](int64_t batch, int64_t queries, int64_t keys, int64_t heads, int64_t dim) {
    return std::vector<Tensor>{sample(arena, {batch, queries, heads, dim}),
                               sample(arena, {batch, keys, heads, dim}, 1, 8),
                               sample(arena, {batch, keys, heads, dim}, 1, 9)};
  };
  const auto with = [](std::vector<Tensor> inputs, std::initializer_list<Tensor> more) {
    inputs.insert(inputs.end(), more);
    return inputs;
  };
  std::vector<AuditCase> cases{
      {"ordinary", qkv(2, 5, 5, 2, 8), f, composed},
      {"one token", qkv(1, 1, 1, 1, 8), f, composed},
      {"lag bias", with(qkv(2, 6, 6, 2, 8), {sample(arena, {2, 6}, 1, 10)}), f, composed},
      {"gate", with(qkv(2, 6, 6, 2, 8), {sample(arena, {2, 6, 2}, 1, 11)}), f, composed},
      {"bias and gate", with(qkv(1, 7, 7, 2, 8), {sample(arena, {2, 9}, 1, 10), sample(arena, {1, 7, 2}, 1, 11)}), f,
       composed},
      {"queries are the last", qkv(1, 2, 7, 2, 8), f, composed},
      {"more than a tile",
       with(qkv(1, 70, 70, 1, 8), {sample(arena, {1, 70}, 1, 10), sample(arena, {1, 70, 1}, 1, 11)}), f, composed},
      {"many", with(qkv(2, 150, 150, 2, 16), {sample(arena, {2, 150}, 1, 10), sample(arena, {2, 150, 2}, 1, 11)}), f,
       composed, true, true}};
  for (AuditCase& audit : cases) {
    audit.input_names = {"q", "k", "v", "bias", "gate"};
    if (audit.label == "gate") audit.input_names[3] = "gate";
    for (size_t i = 3; i < audit.inputs.size(); ++i)
      if (audit.inputs[i].rank() == 3) audit.inputs_f64.push_back(static_cast<int>(i));
  }
  return cases;
}

}  // namespace sextant
