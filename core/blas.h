// OpenBLAS, loaded when it is first asked for: a second implementation of the products, selected by
// SEXTANT_PRODUCTS=blas.
//
// It is loaded by hand (dlopen), not linked, because it chooses its kernels once, when it is loaded: Debian 12's 0.3.21
// does not know recent CPUs and falls back to SSE3 kernels on them, ten times slower (upstream issue 4267), and the
// variable that overrides the choice, OPENBLAS_CORETYPE, must be set before. Some kernels of older builds are wrong or
// crash on some CPUs, so each is first tried in a child process.
#pragma once

#include <cstdint>
#include <string>

#include "core/simd/gemm.h"

namespace sextant::blas {

// What was chosen and why, for the manifest.
struct BlasChoice {
  bool available = false;
  std::string library = "none";  // the name it was loaded by
  std::string config;            // version and options, as the library states them
  std::string core_itself;       // the kernels it chooses when left alone
  std::string core_used;         // the kernels in use
  std::string reason;            // one line
};

// Loads the library on the first call (a fraction of a second), with one thread: products run inside our own partition.
// That none is found, or none that computes right, is not an error; the record says so.
const BlasChoice& choice();

enum class Products : uint8_t { own, blas };

// The implementation in use: our own kernels (core/simd/gemm.cpp) unless the environment variable SEXTANT_PRODUCTS says
// `blas` and a library is available. Throws Error when the variable is neither `own` nor `blas`.
Products products();
void set_products(Products products);  // not while kernels run; throws Error when no library is available

// Whether BLAS can read a matrix [rows, columns] with these strides.
bool takes(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride);

// The same as GemmTable::product, for a B that is not packed and whose columns are b_column apart. The library is
// available and takes the operands.
void product(const Product<float>& product, int64_t b_column);
void product(const Product<double>& product, int64_t b_column);

}  // namespace sextant::blas
