// Accumulated Householder reflections: prefix products of token-dependent reflections, what they do to features, and
// their gradient.
//
//   C_t = M_t M_{t-1} ... M_1,   M_t = I - 2 u_t u_t^T,   u_t = w_t / |w_t|
//   (M_t = I where |w_t| < 1e-12, which has no direction)
//
// The products are kept in double whatever the dtype of the rows. Every 128 tokens one is stored (an anchor) after a
// Newton-Schulz step has made it orthogonal again, so that C_t^T C_t = I to the rounding of double at any length.
// Between anchors products are made again when needed.
#pragma once

#include <span>

#include "core/kernels.h"
#include "core/tensor.h"

namespace sextant::kernels {

// The shape of the anchors for w [B, T, H, D]: [B, H, ceil(T / 128) + 1, D, D rounded up to 8], f64; the last one is
// the product after the last token.
Shape reflection_anchors_shape(const Shape& w);

// Fills the anchors, starting from the products `before` [B, H, D, D rounded up to 8] (undefined: the identity), which
// are those of the `first` tokens before these: products are made orthogonal again where a multiple of 128 tokens is
// passed, however many come at a time.
void accumulate_reflections(const Tensor& w, const Tensor& before, int64_t first, const Tensor& anchors,
                            Arena& scratch);

// y_t = C_t^T x_t, or C_t x_t with `back`, for up to 3 features of w's shape (last dimensions contiguous).
struct Reflected {
  Tensor x;
  Sink y;
};
void reflect(const Tensor& w, const Tensor& anchors, std::span<const Reflected> features, bool back, Arena& scratch);

// dx and dw of the above; a Sink with an undefined tensor is not wanted.
struct ReflectedGradient {
  Tensor x, dy;
  Sink dx;
};
void reflect_backward(const Tensor& w, const Tensor& anchors, std::span<const ReflectedGradient> features, bool back,
                      const Sink& dw, Arena& scratch);

}  // namespace sextant::kernels
