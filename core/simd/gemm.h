// The products' inner loops as core/matmul.cpp sees them: one table of functions for each instruction set.
#pragma once

#include <stdint.h>

namespace sextant {

// C [rows, columns] = init + A [rows, depth] B [depth, columns]. The chain of each element starts at init and goes over
// depth in order.
template <class T>
struct Product {
  int64_t rows, columns, depth;
  const T* a;  // a[i, p] at a[i * a_row + p * a_column]
  int64_t a_row, a_column;
  const T* b;  // panel q (columns from q * panel_columns on) starts at b + q * b_panel, its rows are b_row apart
  int64_t b_row, b_panel;
  const T* init;  // nullptr: zero; c itself: C += A B; a bias [columns] with init_row = 0
  int64_t init_row;
  T* c;
  int64_t c_row;
};

template <class T>
struct GemmTable {
  int64_t panel_columns;  // B is walked, and packed, in panels of this many columns
  void (*product)(const Product<T>& product);
  // The same for a B whose columns are contiguous, b_column apart (b_row and b_panel are not read): transposed piece by
  // piece in the first-level cache. For few rows, where packing all of B would not be paid back.
  void (*product_transposed)(const Product<T>& product, int64_t b_column);
  // Copies B [depth, columns], b[p, j] at b[p * b_row + j * b_column], into panels: [ceil(columns /
  // panel_columns)][depth][panel_columns]. What lies beyond the last column is left as it is.
  void (*pack)(int64_t depth, int64_t columns, const T* b, int64_t b_row, int64_t b_column, T* panels);
  // destination = source [rows, columns], both with contiguous rows.
  void (*copy_rows)(int64_t rows, int64_t columns, const T* source, int64_t source_row, T* destination,
                    int64_t destination_row);
  void (*add)(int64_t count, const T* from, T* into);  // into[i] += from[i]; they do not overlap
  // sum[j] = sum over rows of x[i, j], in double, x with contiguous rows x_row apart
  void (*sum_rows)(int64_t rows, int64_t columns, const T* x, int64_t x_row, double* sum);
};

namespace isa_plain {
const GemmTable<float>& gemm_table(float);
const GemmTable<double>& gemm_table(double);
}  // namespace isa_plain
namespace isa_avx2 {
const GemmTable<float>& gemm_table(float);
const GemmTable<double>& gemm_table(double);
}  // namespace isa_avx2
namespace isa_avx512 {
const GemmTable<float>& gemm_table(float);
const GemmTable<double>& gemm_table(double);
}  // namespace isa_avx512

}  // namespace sextant
