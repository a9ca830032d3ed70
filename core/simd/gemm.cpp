// Products by register tiles: panels of columns, blocks of depth that stay in cache, tiles of rows.
#include "core/simd/gemm.h"

#include "core/simd/gemm_micro.h"

namespace sextant::SEXTANT_ISA {

namespace {

// With 32 registers 24 hold sums, with 16 registers 12: rows x vectors of a full tile.
#if defined(__AVX512F__)
constexpr int panel_vectors = 4, sums = 24;
#else
constexpr int panel_vectors = 2, sums = 12;
#endif
template <class T>
constexpr int64_t panel_width = panel_vectors* lanes<T>;

// So many rows of a panel of B are walked at a time that they stay in cache while all rows of A pass by: in the second
// level where A's rows are contiguous. Where its columns are, they have to stay in the first level, so that a line of A
// is there for all the row tiles it serves.
template <class T>
int64_t depth_block(const Product<T>& p) {
  return (p.a_row == 1 ? 32768 : 98304) / (panel_width<T> * static_cast<int64_t>(sizeof(T)));
}

// One panel of B (at most Vectors vectors wide) with a block of its depth.
template <class T>
struct Panel {
  int64_t depth;
  const T* a;
  int64_t a_row, a_column;
  const T* b;
  int64_t b_row;
  const T* init;
  int64_t init_row;
  T* c;
  int64_t c_row;
};

template <class T, int Rows, int Vectors, bool Partial>
void tile(const Panel<T>& panel, int64_t row, Tail<T> tail) {
  V<T> sum[Rows][Vectors];
  const T* init = panel.init + (panel.init == nullptr ? 0 : row * panel.init_row);
#pragma GCC unroll 32
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < Vectors; ++j) {
      const T* from = init + i * panel.init_row + j * lanes<T>;
      if (init == nullptr) {
        sum[i][j] = V<T>{};
      } else {
        sum[i][j] = Partial && j == Vectors - 1 ? load_first(from, tail) : load(from);
      }
    }
  }
  micro<T, Rows, Vectors, Partial>(panel.depth, panel.a + row * panel.a_row, panel.a_row, panel.a_column, panel.b,
                                   panel.b_row, tail, sum);
  T* c = panel.c + row * panel.c_row;
#pragma GCC unroll 32
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < Vectors; ++j) {
      T* to = c + i * panel.c_row + j * lanes<T>;
      if (Partial && j == Vectors - 1) {
        store_first(to, sum[i][j], tail);
      } else {
        store(to, sum[i][j]);
      }
    }
  }
}

constexpr int next_smaller(int rows) {  // 24, 16, 8, 4, 2, 1; 12, 8, 4, 2, 1; 6, 4, 2, 1
  int power = 1;
  while (2 * power < rows) power *= 2;
  return power;
}

// Tiles of Rows rows as far as they go, then smaller ones.
template <class T, int Rows, int Vectors, bool Partial>
void tiles(const Panel<T>& panel, int64_t row, int64_t rows, Tail<T> tail) {
  for (; row + Rows <= rows; row += Rows) tile<T, Rows, Vectors, Partial>(panel, row, tail);
  if constexpr (Rows > 1) {
    if (row < rows) tiles<T, next_smaller(Rows), Vectors, Partial>(panel, row, rows, tail);
  }
}

template <class T, int Vectors>
void walk(const Panel<T>& panel, int64_t rows, int64_t columns) {
  if constexpr (Vectors > 0) {
    if (columns <= (Vectors - 1) * lanes<T>) {
      walk<T, Vectors - 1>(panel, rows, columns);
    } else if (columns < Vectors * lanes<T>) {
      tiles<T, sums / Vectors, Vectors, true>(panel, 0, rows, Tail<T>(columns - (Vectors - 1) * lanes<T>));
    } else {
      tiles<T, sums / Vectors, Vectors, false>(panel, 0, rows, Tail<T>(lanes<T>));
    }
  }
}

// Panel by panel of columns, block by block of depth; block(column, columns, at, depth) gives that part of B as rows
// b_row apart.
template <class T, class Block>
SEXTANT_INLINE void walk_panels(const Product<T>& p, int64_t longest, int64_t b_row, Block&& block) {
  for (int64_t column = 0; column < p.columns; column += panel_width<T>) {
    const int64_t columns = p.columns - column < panel_width<T> ? p.columns - column : panel_width<T>;
    const T* init = p.init == nullptr ? nullptr : p.init + column;
    Panel<T> panel{0, p.a, p.a_row, p.a_column, nullptr, b_row, init, p.init_row, p.c + column, p.c_row};
    int64_t at = 0;
    do {
      panel.depth = p.depth - at < longest ? p.depth - at : longest;
      panel.b = block(column, columns, at, panel.depth);
      walk<T, panel_vectors>(panel, p.rows, columns);
      at += panel.depth;
      panel.a += panel.depth * p.a_column;
      panel.init = panel.c;
      panel.init_row = panel.c_row;
    } while (at < p.depth);
  }
}

template <class T>
void product(const Product<T>& p) {
  walk_panels<T>(p, depth_block(p), p.b_row, [&](int64_t column, int64_t, int64_t at, int64_t) {
    return p.b + column / panel_width<T> * p.b_panel + at * p.b_row;
  });
}

template <class T>
void product_transposed(const Product<T>& p, int64_t b_column) {
  // A third of the first-level cache, so that what was just written is read from there.
  constexpr int64_t longest = 16384 / (panel_width<T> * static_cast<int64_t>(sizeof(T)));
  alignas(64) T buffer[longest * panel_width<T>];
  walk_panels<T>(p, longest, panel_width<T>, [&](int64_t column, int64_t columns, int64_t at, int64_t depth) {
    transpose(columns, depth, p.b + column * b_column + at, b_column, buffer, panel_width<T>);
    return buffer;
  });
}

// (a0 b0 a1 b1 ..) and, High, the same from the upper halves.
template <bool High, class T>
SEXTANT_INLINE V<T> interleave(V<T> a, V<T> b) {
  constexpr int n = lanes<T>, o = High ? n / 2 : 0;
  if constexpr (n == 2) {
    return __builtin_shufflevector(a, b, o, o + 2);
  } else if constexpr (n == 4) {
    return __builtin_shufflevector(a, b, o, o + 4, o + 1, o + 5);
  } else if constexpr (n == 8) {
    return __builtin_shufflevector(a, b, o, o + 8, o + 1, o + 9, o + 2, o + 10, o + 3, o + 11);
  } else {
    return __builtin_shufflevector(a, b, o, o + 16, o + 1, o + 17, o + 2, o + 18, o + 3, o + 19, o + 4, o + 20, o + 5,
                                   o + 21, o + 6, o + 22, o + 7, o + 23);
  }
}

// A square of lanes x lanes in registers: log2(lanes) perfect shuffles of its rows.
template <class T>
SEXTANT_INLINE void transpose_square(const T* source, int64_t source_row, T* destination, int64_t destination_row) {
  constexpr int n = lanes<T>;
  V<T> x[n], y[n];
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) x[i] = load(source + i * source_row);
#pragma GCC unroll 4
  for (int stage = 1; stage < n; stage *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; ++i) {
      y[2 * i] = interleave<false, T>(x[i], x[i + n / 2]);
      y[2 * i + 1] = interleave<true, T>(x[i], x[i + n / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) x[i] = y[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) store(destination + i * destination_row, x[i]);
}

template <class T>
void copy_rows(int64_t rows, int64_t columns, const T* source, int64_t source_row, T* destination,
               int64_t destination_row) {
  constexpr int n = lanes<T>;
  for (int64_t i = 0; i < rows; ++i) {
    const T* from = source + i * source_row;
    T* to = destination + i * destination_row;
    int64_t j = 0;
    for (; j + 4 * n <= columns; j += 4 * n) {
      const V<T> a = load(from + j), b = load(from + j + n), c = load(from + j + 2 * n), d = load(from + j + 3 * n);
      store(to + j, a);
      store(to + j + n, b);
      store(to + j + 2 * n, c);
      store(to + j + 3 * n, d);
    }
    for (; j + n <= columns; j += n) store(to + j, load(from + j));
    if (j < columns) store_first(to + j, load_first(from + j, Tail<T>(columns - j)), Tail<T>(columns - j));
  }
}

template <class T>
void pack(int64_t depth, int64_t columns, const T* b, int64_t b_row, int64_t b_column, T* panels) {
  for (int64_t column = 0; column < columns; column += panel_width<T>) {
    const int64_t width = columns - column < panel_width<T> ? columns - column : panel_width<T>;
    const T* from = b + column * b_column;
    T* panel = panels + column * depth;
    if (b_row == 1) {
      transpose(width, depth, from, b_column, panel, panel_width<T>);
    } else if (b_column == 1) {
      copy_rows(depth, width, from, b_row, panel, panel_width<T>);
    } else {
      for (int64_t p = 0; p < depth; ++p) {
        for (int64_t j = 0; j < width; ++j) panel[p * panel_width<T> + j] = from[p * b_row + j * b_column];
      }
    }
  }
}

template <class T>
void add(int64_t count, const T* __restrict from, T* __restrict into) {
  for (int64_t i = 0; i < count; ++i) into[i] += from[i];
}

template <class T>
void sum_rows(int64_t rows, int64_t columns, const T* __restrict x, int64_t x_row, double* __restrict sum) {
  for (int64_t j = 0; j < columns; ++j) sum[j] = 0;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) sum[j] += static_cast<double>(x[i * x_row + j]);
  }
}

template <class T>
constexpr GemmTable<T> table = {panel_width<T>, product<T>, product_transposed<T>, pack<T>, copy_rows<T>,
                                add<T>,         sum_rows<T>};

}  // namespace

template <class T>
void gemm(int64_t rows, int64_t columns, int64_t depth, const T* a, int64_t a_row, int64_t a_column, const T* b,
          int64_t b_row, T* c, int64_t c_row, bool accumulate) {
  product<T>(
      {rows, columns, depth, a, a_row, a_column, b, b_row, panel_width<T>, accumulate ? c : nullptr, c_row, c, c_row});
}
template void gemm(int64_t, int64_t, int64_t, const float*, int64_t, int64_t, const float*, int64_t, float*, int64_t,
                   bool);
template void gemm(int64_t, int64_t, int64_t, const double*, int64_t, int64_t, const double*, int64_t, double*, int64_t,
                   bool);

template <class T>
void transpose(int64_t rows, int64_t columns, const T* source, int64_t source_row, T* destination,
               int64_t destination_row) {
  constexpr int n = lanes<T>;
  int64_t row = 0;
  for (; row + n <= rows; row += n) {
    int64_t column = 0;
    for (; column + n <= columns; column += n) {
      transpose_square(source + row * source_row + column, source_row, destination + column * destination_row + row,
                       destination_row);
    }
    for (; column < columns; ++column) {
      for (int64_t i = row; i < row + n; ++i)
        destination[column * destination_row + i] = source[i * source_row + column];
    }
  }
  for (; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      destination[column * destination_row + row] = source[row * source_row + column];
    }
  }
}
template void transpose(int64_t, int64_t, const float*, int64_t, float*, int64_t);
template void transpose(int64_t, int64_t, const double*, int64_t, double*, int64_t);

const GemmTable<float>& gemm_table(float) {
  return table<float>;
}
const GemmTable<double>& gemm_table(double) {
  return table<double>;
}

}  // namespace sextant::SEXTANT_ISA
