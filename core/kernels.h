// The catalogue of numerical kernels: free functions on tensors, each a forward or a backward. No allocation, no tape.
// They run in parallel over fixed chunks, give the same bits for any number of threads, and exist for f32 and f64.
// The inner loops are compiled for AVX-512, AVX2 and plain machines (core/simd/) and chosen once, at start.
//
// Shapes: N rows (tokens, B*T), C or K inputs, M outputs, V vocabulary. `leaves` is how many equal groups of rows (the
// sequences of the batch) a sum over rows is split into: each is summed by itself and rounded to the sum's dtype, then
// they are added along a fixed binary tree (core/tree_sum.h), so that the sum of a batch does not depend on how many
// threads, parts or machines shared it.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace sextant {

// Where a gradient goes: added to what is there, or written over it.
struct Sink {
  Tensor tensor;
  bool accumulate = false;
};

namespace kernels {

// ---- products (core/matmul.cpp) -----------------------------------------------------------------------------------

// c (+)= op(a) op(b), the last two dimensions being the matrices ([.., M, K] x [.., K, N] = [.., M, N]) and all
// dimensions before them a batch of equal size. Any strides, so a transposed operand is passed as a.transpose(-1, -2).
void matmul(const Tensor& a, const Tensor& b, const Sink& c);

// y = x W^T + bias, x [N, K], weight [M, K], bias [M] or undefined, y [N, M]. With `activated` defined ([N, M]) also
// activated = gelu(y), while y is in cache.
void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y, const Tensor& activated = {});
// dx (+)= dy W
void linear_backward_input(const Tensor& dy, const Tensor& weight, const Sink& dx);
// dW (+)= dy^T x, summed over rows by `leaves` (which divides N) along the tree
void linear_backward_weight(const Tensor& dy, const Tensor& x, int64_t leaves, const Sink& dweight);
// Bytes that it copies x [N, K] into for a dW [M, K]. They stay allocated for the next product.
int64_t linear_backward_weight_scratch(int64_t rows, int64_t outputs, int64_t inputs, DType dtype);
// dbias (+)= sum over rows of dy [N, M], by leaves along the tree
void column_sum(const Tensor& dy, int64_t leaves, const Sink& dbias);

// ---- row and elementwise kernels (core/rows.cpp) ------------------------------------------------------------------

// GELU, tanh form: y = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Contiguous, any shape.
void gelu(const Tensor& x, const Tensor& y);
void gelu_backward(const Tensor& x, const Tensor& dy, const Sink& dx);

// sum = x + residual (when residual is defined; otherwise sum is x and not written), y = (sum - mean) rstd gain + bias,
// over the last dimension. x, residual, sum, y [N, C]; gain, bias [C]; mean, rstd [N].
void layer_norm(const Tensor& x, const Tensor& residual, const Tensor& gain, const Tensor& bias, double epsilon,
                const Tensor& sum, const Tensor& y, const Tensor& mean, const Tensor& rstd);
// dsum = d(layer norm)/d(sum) applied to dy, plus `dsum_direct` [N, C] (the gradient that reached the sum by the
// residual stream) when defined. dgain and dbias are summed over rows by leaves; their tensors may be undefined.
// scratch: [leaves, 2, C] f64.
void layer_norm_backward(const Tensor& sum, const Tensor& gain, const Tensor& mean, const Tensor& rstd,
                         const Tensor& dy, const Tensor& dsum_direct, int64_t leaves, const Sink& dsum,
                         const Sink& dgain, const Sink& dbias, const Tensor& scratch);

// loss[n] = logsumexp(logits[n]) - logits[n, targets[n]] in nats, as f64 [N]; lse [N] of the logits' dtype is kept for
// the backward. A target of -1 is ignored: its loss is 0.
void cross_entropy(const Tensor& logits, std::span<const int32_t> targets, const Tensor& loss, const Tensor& lse);
// dlogits (+)= scale * (softmax(logits) - onehot(target)), zero where the target is -1
void cross_entropy_backward(const Tensor& logits, std::span<const int32_t> targets, const Tensor& lse, double scale,
                            const Sink& dlogits);

// y[n] = table[ids[n]], table [V, C], y [N, C]
void embedding(const Tensor& table, std::span<const int32_t> ids, const Tensor& y);
// dtable (+)= scatter of dy; each row of the table sums its tokens by leaves along the tree. scratch: [N] and [V+1] of
// int64 in an arena
void embedding_backward(const Tensor& dy, std::span<const int32_t> ids, int64_t leaves, const Sink& dtable,
                        Arena& scratch);

// One decoupled-decay Adam step, in one pass: m = b1 m + (1-b1) g', v = b2 v + (1-b2) g'^2, g' = gradient_scale g,
// w -= lr (m / (1-b1^t) / (sqrt(v / (1-b2^t)) + eps) + decay w). All contiguous and of one shape.
struct AdamStep {
  double lr, beta1, beta2, epsilon, decay, gradient_scale;
  double correction1, correction2;  // 1 - beta^t
};
void adam(const Tensor& weight, const Tensor& gradient, const Tensor& m, const Tensor& v, const AdamStep& step);

// Sum of squares in double, in a fixed order.
double squared_norm(const Tensor& x);

}  // namespace kernels
}  // namespace sextant
