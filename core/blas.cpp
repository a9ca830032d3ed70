// OpenBLAS: finding it, choosing its kernels, checking them, calling them.
#include "core/blas.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "core/cpu.h"
#include "core/error.h"

namespace sextant::blas {

namespace {

// The C interface of BLAS (row-major = 101, plain = 111, transposed = 112), declared here so that no header of it is
// needed.
constexpr int row_major = 101, plain = 111, transposed = 112;
template <class T>
using Gemm = void (*)(int order, int a_form, int b_form, int rows, int columns, int depth, T alpha, const T* a,
                      int a_leading, const T* b, int b_leading, T beta, T* c, int c_leading);

struct Library {
  void* handle = nullptr;
  Gemm<float> sgemm = nullptr;
  Gemm<double> dgemm = nullptr;
  std::string core, config;
};

constexpr const char* library_names[] = {"libopenblas.so.0", "libopenblas.so"};
constexpr const char* core_variable = "OPENBLAS_CORETYPE";
constexpr const char* threads_variable = "OPENBLAS_NUM_THREADS";

// Sets a variable while the library loads, and puts back what was there: programs we start must not inherit our choice.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    if (value != nullptr) setenv(name, value, 1);
  }
  ~ScopedVariable() {
    if (before_) {
      setenv(name_, before_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

template <class Function>
Function symbol(void* handle, const char* name) {
  return reinterpret_cast<Function>(dlsym(handle, name));
}

// `core` nullptr: as the library and the user's environment choose.
Library load(const char* name, const char* core) {
  const ScopedVariable core_scope(core_variable, core), threads_scope(threads_variable, "1");
  Library library;
  library.handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library.handle == nullptr) return library;
  library.sgemm = symbol<Gemm<float>>(library.handle, "cblas_sgemm");
  library.dgemm = symbol<Gemm<double>>(library.handle, "cblas_dgemm");
  if (const auto corename = symbol<const char* (*)()>(library.handle, "openblas_get_corename"))
    library.core = corename();
  if (const auto config = symbol<const char* (*)()>(library.handle, "openblas_get_config")) library.config = config();
  if (const auto set_threads = symbol<void (*)(int)>(library.handle, "openblas_set_num_threads")) set_threads(1);
  return library;
}

// One product of the self-check against plain loops in double, within the rounding error of the chains.
template <class T>
bool product_is_right(Gemm<T> gemm, int rows, int columns, int depth, bool transpose_a, bool transpose_b, T beta) {
  std::vector<T> a(static_cast<size_t>(rows * depth)), b(static_cast<size_t>(depth * columns)),
      c(static_cast<size_t>(rows * columns));
  uint32_t state = 12345;
  const auto next = [&] {
    state = state * 1664525u + 1013904223u;
    return static_cast<T>(static_cast<double>(state >> 8) / (1 << 23) - 1.0);
  };
  std::generate(a.begin(), a.end(), next);
  std::generate(b.begin(), b.end(), next);
  std::generate(c.begin(), c.end(), next);
  const std::vector<T> before = c;
  gemm(row_major, transpose_a ? transposed : plain, transpose_b ? transposed : plain, rows, columns, depth, T(1),
       a.data(), transpose_a ? rows : depth, b.data(), transpose_b ? depth : columns, beta, c.data(), columns);
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) {
      const size_t at = static_cast<size_t>(i * columns + j);
      double sum = static_cast<double>(beta * before[at]), size = std::abs(sum);
      for (int p = 0; p < depth; ++p) {
        const double term = static_cast<double>(a[static_cast<size_t>(transpose_a ? p * rows + i : i * depth + p)]) *
                            static_cast<double>(b[static_cast<size_t>(transpose_b ? j * depth + p : p * columns + j)]);
        sum += term;
        size += std::abs(term);
      }
      const double bound = (depth + 2) * static_cast<double>(std::numeric_limits<T>::epsilon()) * size;
      if (!(std::abs(static_cast<double>(c[at]) - sum) <= bound)) return false;
    }
  }
  return true;
}

template <class T>
bool products_are_right(Gemm<T> gemm) {
  constexpr int sizes[][3] = {{1, 1, 1},      {7, 5, 3},      {33, 17, 65}, {64, 64, 64},
                              {129, 67, 131}, {50, 257, 400}, {1, 300, 97}};
  for (const auto& size : sizes) {
    for (int form = 0; form < 8; ++form) {
      if (!product_is_right<T>(gemm, size[0], size[1], size[2], form & 1, form & 2, form & 4 ? T(1) : T(0)))
        return false;
    }
  }
  return true;
}

// What a child process found out about one choice of kernels.
struct Trial {
  bool loaded, right;
  char core[32];
};

// In a child, because a wrong kernel may kill the process (an instruction the CPU has not) or hang it, and because the
// choice is made once a process. Nothing when the child died.
std::optional<Trial> try_core(const char* name, const char* core) {
  int ends[2];
  if (pipe(ends) != 0) return std::nullopt;
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const int sink = open("/dev/null", O_WRONLY);
    if (sink >= 0) dup2(sink, STDERR_FILENO);  // the library complains there about kernels that it does not know
    Trial trial{};
    const Library library = load(name, core);
    trial.loaded = library.sgemm != nullptr && library.dgemm != nullptr;
    trial.right = trial.loaded && products_are_right(library.sgemm) && products_are_right(library.dgemm);
    library.core.copy(trial.core, sizeof trial.core - 1);
    const bool written = write(ends[1], &trial, sizeof trial) == static_cast<ssize_t>(sizeof trial);
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  Trial trial{};
  const bool complete = child > 0 && read(ends[0], &trial, sizeof trial) == static_cast<ssize_t>(sizeof trial);
  close(ends[0]);
  if (child > 0) waitpid(child, nullptr, 0);
  return complete ? std::optional<Trial>(trial) : std::nullopt;
}

// The instruction set a core's kernels need.
Isa isa_of(std::string_view core) {
  const auto is_one_of = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(),
                       [&](const char* each) { return strcasecmp(each, std::string(core).c_str()) == 0; });
  };
  if (is_one_of({"SapphireRapids", "Cooperlake", "SkylakeX"})) return Isa::avx512;
  if (is_one_of({"Haswell", "Zen", "Excavator"})) return Isa::avx2;
  return Isa::plain;
}

// Best first; nullptr is the library's own choice.
std::vector<const char*> candidates(std::string_view core_itself) {
  const Isa best = available_isas().back();
  std::vector<const char*> cores;
  if (isa_of(core_itself) >= best) cores.push_back(nullptr);
  if (best >= Isa::avx512) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bf16")) cores.insert(cores.end(), {"SAPPHIRERAPIDS", "COOPERLAKE"});
#endif
    cores.push_back("SKYLAKEX");
  }
  if (best >= Isa::avx2) cores.push_back("HASWELL");
  if (isa_of(core_itself) < best) cores.push_back(nullptr);
  return cores;
}

Library& loaded() {
  static Library library;
  return library;
}

// Loads the library with kernels that passed, and completes the record.
bool take(BlasChoice& record, const char* core) {
  loaded() = load(record.library.c_str(), core);
  record.available = loaded().sgemm != nullptr && loaded().dgemm != nullptr;
  record.config = loaded().config;
  record.core_used = loaded().core;
  return record.available;
}

BlasChoice choose() {
  BlasChoice record;
  const char* wanted = std::getenv(core_variable);
  std::optional<Trial> itself;
  for (const char* name : library_names) {
    itself = try_core(name, nullptr);
    if (itself && !itself->loaded) continue;
    record.library = name;
    break;
  }
  if (record.library == "none") {
    record.reason = "no OpenBLAS found; all products run on the program's own kernels";
    return record;
  }
  record.core_itself = itself ? itself->core : "unknown";
  if (wanted != nullptr) {
    record.reason = fmt::format("{}={} was set by the user", core_variable, wanted);
    if (!itself || !itself->right) {
      record.reason += ", but these kernels fail the self-check; all products run on the program's own kernels";
    } else {
      take(record, nullptr);
    }
    return record;
  }
  std::string failed;
  for (const char* core : candidates(record.core_itself)) {
    const std::optional<Trial> trial = core == nullptr ? itself : try_core(record.library.c_str(), core);
    if (core != nullptr && trial && strcasecmp(trial->core, core) != 0)
      continue;  // the library does not know this core
    if (!trial || !trial->right) {
      failed +=
          fmt::format("; {} {}", core == nullptr ? record.core_itself : core, trial ? "computes wrong" : "crashes");
      continue;
    }
    if (!take(record, core)) break;
    record.reason = core == nullptr ? "the library's own choice"
                                    : fmt::format("the library chose {} by itself, this CPU has {}", record.core_itself,
                                                  name_of(available_isas().back()));
    record.reason += failed;
    return record;
  }
  record.reason = "no kernels of the library pass the self-check" + failed;
  return record;
}

std::atomic<Products>& chosen() {
  static std::atomic<Products> value{[] {
    const char* wanted = std::getenv("SEXTANT_PRODUCTS");
    const std::string_view name = wanted == nullptr ? "" : wanted;
    require(name.empty() || name == "own" || name == "blas",
            "environment variable SEXTANT_PRODUCTS is '{}', it must be one of: own, blas", name);
    return name == "blas" && choice().available ? Products::blas : Products::own;
  }()};
  return value;
}

// How BLAS names a matrix: its form, and the distance of its rows (or columns, when transposed).
struct Form {
  int form, leading;
};

bool rows_are_contiguous(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  return (column_stride == 1 || columns <= 1) && (row_stride >= std::max<int64_t>(1, columns) || rows <= 1);
}

Form form_of(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  if (rows_are_contiguous(rows, columns, row_stride, column_stride)) {
    return {plain, static_cast<int>(std::max({row_stride, columns, int64_t{1}}))};
  }
  return {transposed, static_cast<int>(std::max({column_stride, rows, int64_t{1}}))};
}

template <class T>
void call(Gemm<T> gemm, const Product<T>& p, int64_t b_column) {
  if (p.rows == 0 || p.columns == 0) return;
  if (p.init != nullptr && p.init != p.c) {
    for (int64_t i = 0; i < p.rows; ++i) std::copy_n(p.init + i * p.init_row, p.columns, p.c + i * p.c_row);
  }
  const Form a = form_of(p.rows, p.depth, p.a_row, p.a_column), b = form_of(p.depth, p.columns, p.b_row, b_column);
  const int c_leading = static_cast<int>(std::max(p.c_row, p.columns));
  gemm(row_major, a.form, b.form, static_cast<int>(p.rows), static_cast<int>(p.columns), static_cast<int>(p.depth),
       T(1), p.a, a.leading, p.b, b.leading, p.init == nullptr ? T(0) : T(1), p.c, c_leading);
}

}  // namespace

const BlasChoice& choice() {
  static const BlasChoice record = choose();
  return record;
}

Products products() {
  return chosen().load(std::memory_order_relaxed);
}

void set_products(Products wanted) {
  require(wanted == Products::own || choice().available, "products by blas: {}", choice().reason);
  chosen().store(wanted, std::memory_order_relaxed);
}

bool takes(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  return std::max({rows, columns, row_stride, column_stride}) <= INT_MAX &&
         (rows_are_contiguous(rows, columns, row_stride, column_stride) ||
          rows_are_contiguous(columns, rows, column_stride, row_stride));
}

void product(const Product<float>& product, int64_t b_column) {
  call(loaded().sgemm, product, b_column);
}
void product(const Product<double>& product, int64_t b_column) {
  call(loaded().dgemm, product, b_column);
}

}  // namespace sextant::blas
