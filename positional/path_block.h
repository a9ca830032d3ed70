// The algebra of one block of PaTH steps, H_t = I - beta_t w_t w_t^T, t = 1..n in the block, |w_t| = 1 (arXiv
// 2505.16381, section 3; the UT transform of Joffrain et al., 2006). With W the rows w_t and L = tril(W W^T, -1):
//
//   M = (I + diag(beta) L)^-1 diag(beta)        [n, n], lower triangular, entries of 4 at most, since H_t only shrinks
//   X = Q + tril(Q W^T) Y,  Y = -M W            rows from their own step back to the start:  x_i = H_1 ... H_i q_i
//   K~ = K + Z^T W,  Z = M R,                   rows from their own step on to the end:  k~_j = H_n ... H_{j+1} k_j
//       R = -tril(W K^T, -1)
//   A = tril(Q K^T) + tril(Q W^T) Z             scores:  A[i, j] = q_i^T H_i ... H_{j+1} k_j
//   E = I + W^T Y                               a row x from beyond the block:  x E = (H_1 ... H_n x^T)^T
//
// Everything is made of products of [n, n] and [n, D] matrices.
#pragma once

#include <array>

#include "core/tensor.h"

namespace sextant {

// Matrices for one block in the calling thread's own memory. The next call for other sizes, by the same thread, uses it
// anew.
struct PathWork {
  int64_t n = 0, dim = 0;
  DType dtype = DType::f32;
  Tensor inverse, gram, m, s, r, z, ds, dz, dr, dm, x;  // [n, n]
  std::array<Tensor, 8> rows;                           // [n, D]
  std::array<Tensor, 8> squares;                        // [D, D]
};
const PathWork& path_work(int64_t n, int64_t dim, DType dtype);

// c (+)= a b
void multiply(const Tensor& a, const Tensor& b, const Tensor& c, bool accumulate = false);

// to (+)= from, both [n, D] with contiguous rows
void copy_rows(const Tensor& from, const Tensor& to, bool accumulate = false);

// x[i, j] *= factor for j <= i + offset, = 0 beyond.
void keep_lower(const Tensor& x, int64_t offset, double factor = 1.0);

void set_identity(const Tensor& x);  // [D, D]

// inverse = (I + diag(beta) L)^-1, gram = W W^T and m = M; w [n, D], beta [n] (any stride).
void path_inverse(const Tensor& w, const Tensor& beta, const PathWork& work);
// From dm = dLoss/dM and what path_inverse left in `work`: dw [n, D] and dbeta [n] += . Uses up dm, ds and x.
void path_inverse_backward(const Tensor& w, const Tensor& beta, const PathWork& work, const Tensor& dw,
                           const Tensor& dbeta);

// r = R and z = Z, after path_inverse.
void path_keys(const Tensor& w, const Tensor& k, const PathWork& work);
// From dz = dLoss/dZ: dk and dw += , and dm = dLoss/dM.
void path_keys_backward(const Tensor& w, const Tensor& k, const PathWork& work, const Tensor& dk, const Tensor& dw);

}  // namespace sextant
