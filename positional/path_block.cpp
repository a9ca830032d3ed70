#include "positional/path_block.h"

#include <algorithm>
#include <array>

#include "core/kernels.h"
#include "core/scratch.h"

namespace sextant {

const PathWork& path_work(int64_t n, int64_t dim, DType dtype) {
  thread_local Scratch scratch;
  thread_local PathWork work;
  if (work.n == n && work.dim == dim && work.dtype == dtype) return work;
  work.n = 0;  // until all is in its place: getting the memory may fail
  const std::array blocks{&work.inverse, &work.gram, &work.m,  &work.s,  &work.r, &work.z,
                          &work.ds,      &work.dz,   &work.dr, &work.dm, &work.x};
  const auto padded = [&](int64_t count) {
    return (static_cast<size_t>(count) * size_of(dtype) + Arena::alignment - 1) / Arena::alignment * Arena::alignment;
  };
  std::byte* next = scratch.get<std::byte>(static_cast<int64_t>(
      blocks.size() * padded(n * n) + work.rows.size() * padded(n * dim) + work.squares.size() * padded(dim * dim)));
  const auto place = [&](Tensor& x, int64_t rows, int64_t columns) {
    x = Tensor::wrap(next, {rows, columns}, dtype);
    next += padded(rows * columns);
  };
  for (Tensor* block : blocks) place(*block, n, n);
  for (Tensor& x : work.rows) place(x, n, dim);
  for (Tensor& x : work.squares) place(x, dim, dim);
  work.n = n;
  work.dim = dim;
  work.dtype = dtype;
  return work;
}

void multiply(const Tensor& a, const Tensor& b, const Tensor& c, bool accumulate) {
  kernels::matmul(a, b, {c, accumulate});
}

void copy_rows(const Tensor& from, const Tensor& to, bool accumulate) {
  dispatch(to.dtype(), [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < to.size(0); ++i) {
      const T* source = from.data<T>() + i * from.stride(0);
      T* target = to.data<T>() + i * to.stride(0);
      for (int64_t d = 0; d < to.size(1); ++d) target[d] = source[d] + (accumulate ? target[d] : T(0));
    }
  });
}

void keep_lower(const Tensor& x, int64_t offset, double factor) {
  dispatch(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t columns = x.size(1);
    for (int64_t i = 0; i < x.size(0); ++i) {
      T* row = x.data<T>() + i * x.stride(0);
      const int64_t kept = std::clamp<int64_t>(i + offset + 1, 0, columns);
      if (factor != 1.0)
        for (int64_t j = 0; j < kept; ++j) row[j] *= static_cast<T>(factor);
      std::fill(row + kept, row + columns, T(0));
    }
  });
}

void set_identity(const Tensor& x) {
  dispatch(x.dtype(), [&](auto type) {
    using T = decltype(type);
    std::fill_n(x.data<T>(), x.elements(), T(0));
    for (int64_t i = 0; i < x.size(0); ++i) x.data<T>()[i * x.size(1) + i] = T(1);
  });
}

// Forward substitution: inverse[i, :] = e_i - beta_i sum_{l < i} L[i, l] inverse[l, :].
void path_inverse(const Tensor& w, const Tensor& beta, const PathWork& work) {
  multiply(w, w.transpose(0, 1), work.gram);
  const int64_t size = w.size(0), step = beta.stride(0);
  dispatch(w.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* factors = beta.data<T>();
    T *inverse = work.inverse.data<T>(), *m = work.m.data<T>();
    for (int64_t i = 0; i < size; ++i) {
      T* row = inverse + i * size;
      std::fill(row, row + size, T(0));
      row[i] = T(1);
      for (int64_t l = 0; l < i; ++l) {
        const T factor = factors[i * step] * work.gram.data<T>()[i * size + l];
        const T* above = inverse + l * size;
        for (int64_t j = 0; j <= l; ++j) row[j] -= factor * above[j];
      }
      for (int64_t j = 0; j < size; ++j) m[i * size + j] = row[j] * factors[j * step];
    }
  });
}

// M = N^-1 B, N = I + B L, B = diag(beta), L = tril(W W^T, -1). With X = N^-T dM:
//   dN = -X M^T,   dbeta_b = X_bb + sum_c dN_bc L_bc,   dL = tril(B dN, -1),   dW = (dL + dL^T) W
void path_inverse_backward(const Tensor& w, const Tensor& beta, const PathWork& work, const Tensor& dw,
                           const Tensor& dbeta) {
  multiply(work.inverse.transpose(0, 1), work.dm, work.x);
  const Tensor& dn = work.ds;
  multiply(work.x, work.m.transpose(0, 1), dn);
  keep_lower(dn, -1, -1.0);
  const int64_t size = dn.size(0);
  dispatch(w.dtype(), [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < size; ++i) {
      T* row = dn.data<T>() + i * size;
      const T* gram = work.gram.data<T>() + i * size;
      T sum = work.x.data<T>()[i * size + i];
      const T factor = beta.data<T>()[i * beta.stride(0)];
      for (int64_t j = 0; j < i; ++j) {
        sum += row[j] * gram[j];
        row[j] *= factor;
      }
      dbeta.data<T>()[i * dbeta.stride(0)] += sum;
    }
  });
  multiply(dn, w, dw, true);
  multiply(dn.transpose(0, 1), w, dw, true);
}

void path_keys(const Tensor& w, const Tensor& k, const PathWork& work) {
  multiply(w, k.transpose(0, 1), work.r);
  keep_lower(work.r, -1, -1.0);
  multiply(work.m, work.r, work.z);
}

// Z = M R, R = -tril(W K^T, -1):  dM = dZ R^T,  dR = M^T dZ,  dW -= tril(dR, -1) K,  dK -= tril(dR, -1)^T W
void path_keys_backward(const Tensor& w, const Tensor& k, const PathWork& work, const Tensor& dk, const Tensor& dw) {
  multiply(work.dz, work.r.transpose(0, 1), work.dm);
  multiply(work.m.transpose(0, 1), work.dz, work.dr);
  keep_lower(work.dr, -1, -1.0);
  multiply(work.dr, k, dw, true);
  multiply(work.dr.transpose(0, 1), w, dk, true);
}

}  // namespace sextant
