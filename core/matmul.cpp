// Matrix products: how a product is cut into tasks, packed and shared out. The arithmetic itself is in
// core/simd/gemm.cpp. Every element is one chain of multiply-adds over its depth in increasing order, so no bit depends
// on threads, tasks or neighbours.
#include <algorithm>
#include <array>
#include <type_traits>

#include "core/blas.h"
#include "core/cpu.h"
#include "core/error.h"
#include "core/kernels.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "core/shape_format.h"
#include "core/simd/gemm.h"
#include "core/simd/rows.h"
#include "core/tree_sum.h"

namespace sextant {

namespace {

template <class T>
const GemmTable<T>& table() {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return isa_avx512::gemm_table(T{});
  if (isa() == Isa::avx2) return isa_avx2::gemm_table(T{});
#endif
  return isa_plain::gemm_table(T{});
}

template <class T>
const RowKernels<T>& row_kernels() {
  const auto& kernels = []() -> const RowTable& {
#if defined(__x86_64__)
    if (isa() == Isa::avx512) return isa_avx512::row_table();
    if (isa() == Isa::avx2) return isa_avx2::row_table();
#endif
    return isa_plain::row_table();
  }();
  if constexpr (std::is_same_v<T, float>) {
    return kernels.f32;
  } else {
    return kernels.f64;
  }
}

thread_local Scratch panel_scratch;   // packed B, of whoever called the product
thread_local Scratch result_scratch;  // sums over leaves by group, of whoever called
thread_local Scratch tile_scratch;    // what one task needs

// A matrix in memory, element (i, j) at data[i * row + j * column].
template <class T>
struct Matrix {
  T* data;
  int64_t row, column;
};

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr int64_t packed_bytes = int64_t{4} << 20;  // of B at a time: what stays in the second- and third-level caches
// Bytes of a packed column: of so much depth at a time, task_columns of them leave room for A in the second-level
// cache.
constexpr int64_t packed_slice = 3072;
constexpr int64_t task_rows = 96;  // a multiple of every row tile
constexpr int64_t task_columns = 256;
// Of a weight gradient: 288 KiB a tile, and a tree of 4 leaves holds 3 of them, one of 16 leaves 5. With dy's 96
// columns of a leaf of 256 rows that is 0.9 or 1.5 MiB; x streams by, 768 KiB a leaf.
constexpr int64_t leaf_tile_rows = 96;
constexpr int64_t leaf_tile_bytes = 3072;  // of a row
// Rows that lie far apart share few sets of the first-level cache. So many numbers between them make it pay to copy
// them together: those of dy for each tile anew, those of x once for all tiles, which pays sooner: at 256 for x only.
constexpr int64_t dy_apart = 257, x_apart = 256;
constexpr int64_t sum_tasks = 4;  // a sum over leaves is cut into about so many tasks at least, where it has the leaves
constexpr int64_t wide_tasks = 8;       // with fewer chunks of rows than this, columns are cut finer
constexpr int64_t gradient_tasks = 16;  // with fewer tiles of a weight gradient than this, they are cut by columns, too
constexpr int64_t parallel_work =
    32768;  // multiply-adds or copies below which a second thread costs more than it brings

// How B reaches the inner loops.
enum class Way {
  direct,      // its rows are contiguous, and short or used too few times to copy them
  transposed,  // its columns are, and there is one chunk of rows: copied piece by piece by who uses it
  packed,      // copied once into panels, which all chunks of rows use
  by_blas,
};

// The one place that decides, by measurement. GFLOP/s in f32 on one core with AVX-512, multiply-add peak 172 to 178;
// OpenBLAS 0.3.21 with its Cooperlake kernels on the same tasks; least CPU time, alternating, on a machine busy with
// other programs:
//
//   x W^T                       own  OpenBLAS     x B                         own  OpenBLAS
//   [256, 64] x [64, 192]       160        98     [256, 64] x [64, 192]       172       171
//   [256, 256] x [256, 64]      164       107     [256, 256] x [256, 64]      173       123
//   [64, 16] x [16, 64]          97        58     [64, 16] x [16, 64]         135       128
//   [2048, 256] x [256, 768]    143       104     [2048, 256] x [256, 768]    148       119
//   [256, 768] x [768, 3072]    111        88     [256, 768] x [768, 3072]    111        86
//   [256, 768] x [768, 16384]   118        87     [256, 768] x [768, 16384]   117        85
//   [1, 768] x [768, 3072]       10        12     [1, 768] x [768, 3072]       14        15
//   [8, 768] x [768, 3072]       59        77     [8, 768] x [768, 3072]       55        52
//
// OpenBLAS is ahead only for one to a few rows, as in generation, where it would give a row other bits than the full
// pass has. So our own kernels multiply everywhere, and OpenBLAS where SEXTANT_PRODUCTS=blas asks for it.
template <class T>
Way way_of(int64_t rows, int64_t columns, int64_t depth, const Matrix<const T>& a, const Matrix<const T>& b) {
  const bool expressible = blas::takes(rows, depth, a.row, a.column) && blas::takes(depth, columns, b.row, b.column);
  if (blas::products() == blas::Products::blas && expressible) return Way::by_blas;
  if (b.column == 1) {
    const int64_t bytes = depth * b.row * static_cast<int64_t>(sizeof(T));
    return rows >= 128 && bytes > (int64_t{1} << 18) ? Way::packed : Way::direct;
  }
  return b.row == 1 && rows <= task_rows ? Way::transposed : Way::packed;
}

template <class T>
void run(Way way, const Product<T>& product, int64_t b_column) {
  if (way == Way::by_blas) {
    blas::product(product, b_column);
  } else if (way == Way::transposed) {
    table<T>().product_transposed(product, b_column);
  } else {
    table<T>().product(product);
  }
}

template <class T>
void pack_panels(int64_t depth, int64_t columns, Matrix<const T> b, T* panels) {
  const GemmTable<T>& gemm = table<T>();
  const int64_t panel_work = std::max<int64_t>(1, gemm.panel_columns * depth);
  const int64_t grain = std::max<int64_t>(1, parallel_work / panel_work) * gemm.panel_columns;
  parallel_ranges(columns, grain, [&](int64_t begin, int64_t end) {
    gemm.pack(depth, end - begin, b.data + begin * b.column, b.row, b.column, panels + begin * depth);
  });
}

// C [rows, columns] = init + A [rows, depth] B [depth, columns], C with contiguous rows. finish(row, column, rows,
// columns) is called for every part of C that is done, by who made it, while it is in cache.
template <class T, class Finish>
void multiply(int64_t rows, int64_t columns, int64_t depth, Matrix<const T> a, Matrix<const T> b, const T* init,
              int64_t init_row, Matrix<T> c, Finish&& finish) {
  const Way way = way_of(rows, columns, depth, a, b);
  const bool pack = way == Way::packed;
  const int64_t panel = table<T>().panel_columns, number_bytes = static_cast<int64_t>(sizeof(T));
  const int64_t slice = pack ? std::min(depth, packed_slice / number_bytes) : depth;
  const int64_t panels_at_once =
      std::max<int64_t>(1, packed_bytes / (std::max<int64_t>(slice, 1) * number_bytes * panel));
  const int64_t block = pack ? panels_at_once * panel : columns;
  const int64_t row_chunks = (rows + task_rows - 1) / task_rows;
  const int64_t chunk_columns = row_chunks < wide_tasks ? panel : round_up(task_columns, panel);
  T* panels = pack ? panel_scratch.get<T>(std::min(block, round_up(columns, panel)) * slice) : nullptr;

  const auto part = [&](int64_t start, int64_t width, int64_t at, int64_t length) {
    const Matrix<const T> from{b.data + start * b.column + at * b.row, b.row, b.column};
    if (pack) pack_panels(length, width, from, panels);
    const int64_t column_chunks = (width + chunk_columns - 1) / chunk_columns;
    const auto task = [&](int64_t chunk) {
      const int64_t row = chunk % row_chunks * task_rows, column = chunk / row_chunks * chunk_columns;
      Product<T> product{};
      product.rows = std::min(task_rows, rows - row);
      product.columns = std::min(chunk_columns, width - column);
      product.depth = length;
      product.a = a.data + row * a.row + at * a.column;
      product.a_row = a.row;
      product.a_column = a.column;
      product.b = pack ? panels + column * length : from.data + column * b.column;
      product.b_row = pack ? panel : b.row;
      product.b_panel = pack ? panel * length : panel;
      product.c = c.data + row * c.row + start + column;
      product.c_row = c.row;
      if (at > 0) {
        product.init = product.c;
        product.init_row = product.c_row;
      } else if (init != nullptr) {
        product.init = init + row * init_row + start + column;
        product.init_row = init_row;
      }
      run(way, product, b.column);
      if (at + length == depth) finish(row, start + column, product.rows, product.columns);
    };
    const int64_t tasks = row_chunks * column_chunks;
    if (rows * width * length < parallel_work) {
      for (int64_t chunk = 0; chunk < tasks; ++chunk) task(chunk);
    } else {
      parallel_chunks(tasks, task);
    }
  };
  for (int64_t start = 0; start < columns; start += block) {
    int64_t at = 0;
    do {
      const int64_t length = std::min(slice, depth - at);
      part(start, std::min(block, columns - start), at, length);
      at += length;
    } while (at < depth);
  }
}

const auto nothing = [](int64_t, int64_t, int64_t, int64_t) {};

template <class T>
Matrix<T> matrix(const Tensor& x) {
  return {x.data<std::remove_const_t<T>>(), x.stride(-2), x.stride(-1)};
}

void require_dtypes(const char* what, const Tensor& a, const Tensor& b, const Tensor& c) {
  require(a.dtype() == b.dtype() && a.dtype() == c.dtype(), "{}: dtypes {}, {} and {} differ", what, name_of(a.dtype()),
          name_of(b.dtype()), name_of(c.dtype()));
}

// C (+)= A B for one matrix of a batch, C with any strides.
template <class T>
void multiply_any(int64_t rows, int64_t columns, int64_t depth, Matrix<const T> a, Matrix<const T> b, Matrix<T> c,
                  bool accumulate) {
  if (c.column == 1 || columns == 1) {
    multiply<T>(rows, columns, depth, a, b, accumulate ? c.data : nullptr, c.row, c, nothing);
  } else if (c.row == 1 || rows == 1) {  // C^T = B^T A^T
    multiply<T>(columns, rows, depth, {b.data, b.column, b.row}, {a.data, a.column, a.row},
                accumulate ? c.data : nullptr, c.column, {c.data, c.column, c.row}, nothing);
  } else {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        multiply<T>(1, 1, depth, {a.data + row * a.row, a.row, a.column}, {b.data + column * b.column, b.row, 1},
                    accumulate ? c.data + row * c.row + column * c.column : nullptr, 1,
                    {c.data + row * c.row + column * c.column, 1, 1}, nothing);
      }
    }
  }
}

// out [rows, columns] = dy^T x, dense, of one leaf: dy [depth, rows] with contiguous rows, x [depth, columns] as
// Product has its B; serial. Rows of dy that lie far apart are copied together first, into `copy` [depth, rows]; where
// they lie close that costs more than it brings.
template <class T>
void leaf_product(int64_t rows, int64_t columns, int64_t depth, Matrix<const T> dy, const T* x, int64_t x_row,
                  int64_t x_panel, T* copy, T* out) {
  const GemmTable<T>& gemm = table<T>();
  Product<T> product{rows, columns, depth, dy.data, dy.column, dy.row, x, x_row, x_panel, nullptr, 0, out, columns};
  if (way_of<T>(rows, columns, depth, {dy.data, dy.column, dy.row}, {x, x_row, 1}) == Way::by_blas) {
    blas::product(product, 1);
    return;
  }
  if (dy.row >= dy_apart) {
    gemm.copy_rows(depth, rows, dy.data, dy.row, copy, rows);
    product.a = copy;
    product.a_column = rows;
  }
  gemm.product(product);
}

// What a sum over rows is cut into: `leaves` sums, in `groups` that are each a whole subtree.
struct Leaves {
  int64_t leaves, rows_of_leaf, groups;
  TreePiece group(int64_t index) const { return tree_piece(leaves, groups, index); }
};

Leaves cut_leaves(const char* what, int64_t rows, int64_t leaves, int64_t tasks) {
  require(leaves >= 1 && rows % leaves == 0, "{}: {} rows cannot be split into {} equal leaves", what, rows, leaves);
  return {leaves, rows / leaves, tree_pieces(leaves, (sum_tasks + tasks - 1) / std::max<int64_t>(tasks, 1))};
}

// What a weight gradient [rows, columns] from x with rows `x_row` numbers apart copies of x.
struct PackedX {
  bool pack;
  int64_t block, row;  // columns at a time; numbers that a row of them takes, as panels
};

template <class T>
PackedX packed_x(int64_t rows, int64_t columns, int64_t x_row) {
  const int64_t block = std::min<int64_t>(columns, leaf_tile_bytes / static_cast<int64_t>(sizeof(T)));
  return {x_row >= x_apart && rows > leaf_tile_rows && blas::products() == blas::Products::own, block,
          round_up(block, table<T>().panel_columns)};
}

// How many tiles a block of columns is cut into beside the others: only so many that a tile's share of copying dy stays
// small.
int64_t gradient_column_tiles(int64_t width, int64_t others) {
  const int64_t wanted = (gradient_tasks + others - 1) / std::max<int64_t>(others, 1);
  return std::clamp<int64_t>(width / task_columns, 1, wanted);
}

// x [N, width] leaf by leaf, each as panels of all its rows: leaf i from packed + i rows_of_leaf packed_row on.
template <class T>
void pack_leaves(const Leaves& cut, int64_t width, Matrix<const T> x, T* packed, int64_t packed_row) {
  const GemmTable<T>& gemm = table<T>();
  const int64_t panels = (width + gemm.panel_columns - 1) / gemm.panel_columns;
  const int64_t panel_work = std::max<int64_t>(1, gemm.panel_columns * cut.rows_of_leaf);
  parallel_ranges(
      cut.leaves * panels, std::max<int64_t>(1, parallel_work / panel_work), [&](int64_t begin, int64_t end) {
        for (int64_t index = begin; index < end; ++index) {
          const int64_t first = index / panels * cut.rows_of_leaf, column = index % panels * gemm.panel_columns;
          gemm.pack(cut.rows_of_leaf, std::min(gemm.panel_columns, width - column), x.data + first * x.row + column,
                    x.row, 1, packed + first * packed_row + column * cut.rows_of_leaf);
        }
      });
}

// to (+)= the sum of the groups' sums [groups, size], which are used up.
template <class T>
void finish_groups(int64_t groups, int64_t size, T* sums, T* to, bool accumulate) {
  parallel_ranges(size, parallel_work, [&](int64_t begin, int64_t end) {
    tree_sum_rows<T>(groups, end - begin, sums + begin, size);
    for (int64_t i = begin; i < end; ++i) to[i] = sums[i] + (accumulate ? to[i] : T(0));
  });
}

}  // namespace

namespace kernels {

void matmul(const Tensor& a, const Tensor& b, const Sink& sink) {
  const Tensor& c = sink.tensor;
  require_dtypes("matmul", a, b, c);
  const int rank = c.rank();
  bool fits = rank >= 2 && a.rank() == rank && b.rank() == rank && a.size(-1) == b.size(-2) &&
              a.size(-2) == c.size(-2) && b.size(-1) == c.size(-1);
  int64_t batch = 1;
  for (int dim = 0; fits && dim < rank - 2; ++dim) {
    fits = a.size(dim) == c.size(dim) && b.size(dim) == c.size(dim);
    batch *= c.size(dim);
  }
  require(fits, "matmul: {} x {} does not give {}; it must be [.., M, K] x [.., K, N] = [.., M, N]", a.shape(),
          b.shape(), c.shape());

  dispatch(c.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t rows = c.size(-2), columns = c.size(-1), depth = a.size(-1);
    const auto one = [&](int64_t index) {
      Matrix<const T> a_one = matrix<const T>(a), b_one = matrix<const T>(b);
      Matrix<T> c_one = matrix<T>(c);
      for (int dim = rank - 3; dim >= 0; --dim) {
        const int64_t at = index % c.size(dim);
        index /= c.size(dim);
        a_one.data += at * a.stride(dim);
        b_one.data += at * b.stride(dim);
        c_one.data += at * c.stride(dim);
      }
      multiply_any<T>(rows, columns, depth, a_one, b_one, c_one, sink.accumulate);
    };
    // Many matrices are shared out whole; a few are each shared out by rows and columns.
    if (batch >= wide_tasks) {
      const int64_t work = std::max<int64_t>(1, rows * columns * depth);
      parallel_ranges(batch, std::max<int64_t>(1, parallel_work / work), [&](int64_t begin, int64_t end) {
        for (int64_t index = begin; index < end; ++index) one(index);
      });
    } else {
      for (int64_t index = 0; index < batch; ++index) one(index);
    }
  });
}

// y = x W^T + bias; the chain of each element starts at its bias.
void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y, const Tensor& activated) {
  require_dtypes("linear", x, weight, y);
  require(x.rank() == 2 && weight.rank() == 2 && x.size(1) == weight.size(1),
          "linear: x {} and weight {} must be [N, K] and [M, K]", x.shape(), weight.shape());
  require_shape(y, {x.size(0), weight.size(0)}, "linear: y");
  require(y.size(1) <= 1 || y.stride(1) == 1, "linear: the rows of y must be contiguous");
  if (bias.defined()) {
    require_dtypes("linear", x, bias, y);
    require_shape(bias, {weight.size(0)}, "linear: bias");
    require(bias.contiguous(), "linear: the bias must be contiguous");
  }
  if (activated.defined()) {
    require_dtypes("linear", x, activated, y);
    require_shape(activated, y.shape(), "linear: activated");
    require(activated.size(1) <= 1 || activated.stride(1) == 1, "linear: the rows of activated must be contiguous");
  }
  dispatch(y.dtype(), [&](auto type) {
    using T = decltype(type);
    const Matrix<const T> w = matrix<const T>(weight);
    const Matrix<T> out = matrix<T>(y);
    const auto gelu_rows = row_kernels<T>().gelu;
    const auto activate = [&](int64_t row, int64_t column, int64_t rows, int64_t columns) {
      if (!activated.defined()) return;
      for (int64_t i = row; i < row + rows; ++i) {
        gelu_rows(out.data + i * out.row + column, activated.data<T>() + i * activated.stride(0) + column, columns);
      }
    };
    multiply<T>(x.size(0), weight.size(0), x.size(1), matrix<const T>(x), {w.data, w.column, w.row},
                bias.defined() ? bias.data<T>() : nullptr, 0, out, activate);
  });
}

// dx (+)= dy W
void linear_backward_input(const Tensor& dy, const Tensor& weight, const Sink& dx) {
  require(dy.rank() == 2 && weight.rank() == 2 && dy.size(1) == weight.size(0),
          "linear_backward_input: dy {} and weight {} must be [N, M] and [M, K]", dy.shape(), weight.shape());
  require_shape(dx.tensor, {dy.size(0), weight.size(1)}, "linear_backward_input: dx");
  matmul(dy, weight, dx);
}

// dW (+)= sum over leaves of dy_leaf^T x_leaf, by blocks of columns. A task makes one tile of dW from all rows of its
// group of leaves: partial sums stay in cache, and dW is written once.
void linear_backward_weight(const Tensor& dy, const Tensor& x, int64_t leaves, const Sink& dweight) {
  require_dtypes("linear_backward_weight", dy, x, dweight.tensor);
  require(dy.rank() == 2 && x.rank() == 2 && dy.size(0) == x.size(0),
          "linear_backward_weight: dy {} and x {} must be [N, M] and [N, K]", dy.shape(), x.shape());
  require_shape(dweight.tensor, {dy.size(1), x.size(1)}, "linear_backward_weight: dweight");
  require(dweight.tensor.contiguous(), "linear_backward_weight: dweight must be contiguous");
  require(dy.size(1) <= 1 || dy.stride(1) == 1, "linear_backward_weight: the rows of dy must be contiguous");
  require(x.size(1) <= 1 || x.stride(1) == 1, "linear_backward_weight: the rows of x must be contiguous");
  dispatch(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t rows = dy.size(1), columns = x.size(1), panel = table<T>().panel_columns;
    const int64_t row_tiles = (rows + leaf_tile_rows - 1) / leaf_tile_rows;
    const Leaves cut = cut_leaves("linear_backward_weight", x.size(0), leaves, row_tiles);
    const Matrix<const T> from_dy{dy.data<T>(), dy.stride(0), 1}, from_x{x.data<T>(), x.stride(0), 1};
    const auto [pack, block, packed_row] = packed_x<T>(rows, columns, from_x.row);
    T* packed = pack ? panel_scratch.get<T>(x.size(0) * packed_row) : nullptr;
    T* weight = dweight.tensor.data<T>();
    T* sums = cut.groups == 1 ? weight : result_scratch.get<T>(cut.groups * rows * columns);
    for (int64_t start = 0; start < columns; start += block) {
      const int64_t block_width = std::min(block, columns - start);
      if (pack) pack_leaves<T>(cut, block_width, {from_x.data + start, from_x.row, 1}, packed, packed_row);
      const int64_t column_tiles = gradient_column_tiles(block_width, row_tiles * cut.groups);
      const int64_t tile_columns = round_up((block_width + column_tiles - 1) / column_tiles, panel);
      parallel_chunks(column_tiles * row_tiles * cut.groups, [&](int64_t chunk) {
        const int64_t column = chunk % column_tiles * tile_columns,
                      row = chunk / column_tiles % row_tiles * leaf_tile_rows;
        const int64_t width = std::min(tile_columns, block_width - column),
                      height = std::min(leaf_tile_rows, rows - row);
        if (width <= 0) return;  // rounded up to panels, the tiles before may hold all
        const int64_t group = chunk / column_tiles / row_tiles, copied = cut.rows_of_leaf * height;
        const TreePiece piece = cut.group(group);
        T* copy = tile_scratch.get<T>(copied + tree_slots(piece.leaves) * height * width);
        T* slots = copy + copied;
        const auto leaf = [&](int64_t index, T* out) {
          const int64_t first = index * cut.rows_of_leaf;
          const T* leaf_x = pack ? packed + first * packed_row + column * cut.rows_of_leaf
                                 : from_x.data + first * from_x.row + start + column;
          leaf_product<T>(height, width, cut.rows_of_leaf, {from_dy.data + first * from_dy.row + row, from_dy.row, 1},
                          leaf_x, pack ? panel : from_x.row, pack ? panel * cut.rows_of_leaf : panel, copy, out);
        };
        tree_sum(piece.first, piece.leaves, height * width, slots, leaf, table<T>().add);
        const bool accumulate = dweight.accumulate && cut.groups == 1;
        for (int64_t i = 0; i < height; ++i) {
          T* to = sums + (group * rows + row + i) * columns + start + column;
          if (accumulate) {
            table<T>().add(width, slots + i * width, to);
          } else {
            table<T>().copy_rows(1, width, slots + i * width, width, to, width);
          }
        }
      });
    }
    if (cut.groups > 1) finish_groups(cut.groups, rows * columns, sums, weight, dweight.accumulate);
  });
}

int64_t linear_backward_weight_scratch(int64_t rows, int64_t outputs, int64_t inputs, DType dtype) {
  return dispatch(dtype, [&](auto type) {
    const PackedX packed = packed_x<decltype(type)>(outputs, inputs, inputs);
    return packed.pack ? rows * packed.row * static_cast<int64_t>(sizeof(type)) : 0;
  });
}

// dbias (+)= sum over leaves of the sum over the leaf's rows, which is in double and rounded once.
void column_sum(const Tensor& dy, int64_t leaves, const Sink& dbias) {
  require_dtypes("column_sum", dy, dy, dbias.tensor);
  require(dy.rank() == 2 && (dy.size(1) <= 1 || dy.stride(1) == 1),
          "column_sum: dy {} must be [N, M] with contiguous rows", dy.shape());
  require_shape(dbias.tensor, {dy.size(1)}, "column_sum: dbias");
  require(dbias.tensor.contiguous(), "column_sum: dbias must be contiguous");
  dispatch(dy.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t columns = dy.size(1), column_chunks = (columns + task_columns - 1) / task_columns;
    const Leaves cut = cut_leaves("column_sum", dy.size(0), leaves, column_chunks);
    const Matrix<const T> from = matrix<const T>(dy);
    T* sums = result_scratch.get<T>(cut.groups * columns);
    const auto task = [&](int64_t chunk) {
      const int64_t group = chunk / column_chunks, column = chunk % column_chunks * task_columns;
      const int64_t width = std::min(task_columns, columns - column);
      const TreePiece piece = cut.group(group);
      T* slots = tile_scratch.get<T>(tree_slots(piece.leaves) * width);
      const auto leaf = [&](int64_t index, T* out) {
        std::array<double, task_columns> sum;
        const int64_t first = index * cut.rows_of_leaf;
        table<T>().sum_rows(cut.rows_of_leaf, width, from.data + first * from.row + column, from.row, sum.data());
        for (int64_t i = 0; i < width; ++i) out[i] = static_cast<T>(sum[static_cast<size_t>(i)]);
      };
      tree_sum(piece.first, piece.leaves, width, slots, leaf, table<T>().add);
      std::copy_n(slots, width, sums + group * columns + column);
    };
    if (dy.elements() < parallel_work) {
      for (int64_t chunk = 0; chunk < column_chunks * cut.groups; ++chunk) task(chunk);
    } else {
      parallel_chunks(column_chunks * cut.groups, task);
    }
    finish_groups(cut.groups, columns, sums, dbias.tensor.data<T>(), dbias.accumulate);
  });
}

}  // namespace kernels

}  // namespace sextant
