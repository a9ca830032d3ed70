// The inner loops of the row and elementwise kernels (core/rows.cpp), compiled for each instruction set. All arrays are
// dense and row-major; shapes as in core/kernels.h.
#pragma once

#include <stdint.h>

namespace sextant {

template <class T>
struct LayerNormRows {
  const T *x, *residual, *gain, *bias;  // residual may be null
  T *sum, *y, *mean, *rstd;             // sum is written when residual is there
  T epsilon;
  int64_t width;
};

template <class T>
struct LayerNormBackwardRows {
  const T *sum, *gain, *mean, *rstd, *dy, *direct;  // direct may be null
  T* dsum;
  bool accumulate;
  int64_t width;
};

template <class T>
struct AdamConstants {
  T beta1, one_minus_beta1, beta2, one_minus_beta2, gradient_scale;
  T rate;                 // lr / correction1
  T root_scale, epsilon;  // 1 / sqrt(correction2)
  T decay;                // lr * decay
};

// The tokens that chose one row of the embedding table, ascending.
struct TokenList {
  const int64_t* tokens;
  int64_t count;
};

template <class T>
struct RowKernels {
  void (*gelu)(const T* x, T* y, int64_t count);
  void (*gelu_backward)(const T* x, const T* dy, T* dx, bool accumulate, int64_t count);
  void (*layer_norm)(const LayerNormRows<T>& arrays, int64_t begin, int64_t end);
  // Rows [begin, end) are one leaf: its sums of dy xhat and of dy are written to dgain [width] and dbias [width],
  // unless these are null.
  void (*layer_norm_backward)(const LayerNormBackwardRows<T>& arrays, int64_t begin, int64_t end, double* dgain,
                              double* dbias);
  void (*cross_entropy)(const T* logits, const int32_t* targets, double* loss, T* lse, int64_t vocabulary,
                        int64_t begin, int64_t end);
  void (*cross_entropy_backward)(const T* logits, const int32_t* targets, const T* lse, T scale, T* dlogits,
                                 bool accumulate, int64_t vocabulary, int64_t begin, int64_t end);
  // One row of the table's gradient: row (+)= the sum of dy over the tokens, by leaves of rows_of_leaf tokens along the
  // tree over all `leaves`.
  void (*embedding_backward)(const T* dy, TokenList list, int64_t rows_of_leaf, int64_t leaves, T* row, bool accumulate,
                             int64_t width);
  void (*adam)(T* weight, const T* gradient, T* m, T* v, const AdamConstants<T>& constants, int64_t count);
  double (*squared_norm)(const T* x, int64_t count);
};

struct RowTable {
  RowKernels<float> f32;
  RowKernels<double> f64;
};

namespace isa_plain {
const RowTable& row_table();
}
namespace isa_avx2 {
const RowTable& row_table();
}
namespace isa_avx512 {
const RowTable& row_table();
}

}  // namespace sextant
