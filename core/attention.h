// Fused causal attention by tiles with a running softmax: the scores never exist in memory.
//
//   logit(i, j) = scale <q_i, k_j> + bias_h(i - j) + F_i - F_j     for j <= i (absolute positions), else -inf
//   out_i       = sum_j softmax_j(logit(i, .)) v_j                 [position-space.md section 0]
//
// What is in front of a query's own key has weight 0 there, not absence: tiles of 16 keys are multiplied whole, so a
// NaN or infinity in v (or, backward, in k) reaches earlier queries of the same 16 keys as well. While all is finite,
// it does not.
//
// With first_query = S - T the T queries are the last T of the S keys' positions (generation with a cache, streamed
// evaluation); training has T = S.
#pragma once

#include "core/kernels.h"
#include "core/tensor.h"

namespace sextant {

// What a strategy that is not separable in i and j (PaTH, anchored Jordan chains) does between tiles. Attention walks
// each query tile's key tiles from the diagonal leftwards and asks for the query rows, key rows or scores as that key
// tile sees them. All rows are dense, row-major [rows, D], of the dtype of q.
class TileTransport;  // core/tile_transport.h

struct AttentionInputs {
  Tensor q;     // [B, T, H, D], any strides with the last dimension contiguous
  Tensor k;     // [B, S, H, D]
  Tensor v;     // [B, S, H, D]
  Tensor bias;  // [H, >= S] or undefined: bias_h(lag), contiguous rows
  // [B, S, H] f64 or undefined: the prefix sums F, in f64 whatever the dtype. F_i - F_j is right to some ulps of the
  // dtype of q, or in f32 to 2^-48 of what F falls by between the first of j's 16 keys and i, whichever is more;
  // magnitudes above 1e38 count as 1e38 there.
  Tensor gate;
  double scale = 1.0;
  const TileTransport* transport = nullptr;
};

struct AttentionGradients {
  Sink q, k, v;  // as the inputs; a Sink with an undefined tensor is not wanted
  Sink bias;     // [H, >= S], of the dtype of q: sum over the batch and all i - j = lag, accumulated in double; lags
                 // beyond S get 0
  Sink gate;     // [B, S, H] f64
};

namespace kernels {

// out [B, T, H, D]; lse [B, H, T], the logsumexp of each query's logits in nats, which the backward needs; -inf for a
// row with nothing to attend to (all logits -inf), whose output is 0. A query's result has the same bits whatever other
// queries are computed with it and however many keys stand after it: generation with a cache equals the full pass.
// Throws Error when shapes or dtypes do not fit together.
void attention(const AttentionInputs& inputs, const Tensor& out, const Tensor& lse);

// Gradients by recomputation: P = exp(logit - lse), dS = P (dout v^T - <dout, out>), dq = scale dS k, dk = scale dS^T
// q, dv = P^T dout; dbias and dgate are sums of dS. P has a relative error of about |lse| 2^-24 in f32. Same bits for
// any number of threads. Scratch, given back: a (batch, head) is summed in 8 / H parts (1 for H > 4 or a transport) of
// about (2 D + 1) S numbers each, those of one (batch, head) a thread or of all where there are fewer than 8; and with
// a bias S doubles for every part.
void attention_backward(const AttentionInputs& inputs, const Tensor& out, const Tensor& lse, const Tensor& dout,
                        const AttentionGradients& gradients, Arena& scratch);

}  // namespace kernels
}  // namespace sextant
