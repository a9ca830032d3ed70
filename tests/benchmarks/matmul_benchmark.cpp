// Products at the shapes of this project's models, in GFLOP/s and as a share of the multiply-add peak measured in the
// same moment:
//   cmake -B build -DSEXTANT_BENCHMARKS=ON && cmake --build build && build/tests/benchmarks/matmul_benchmark
//   --benchmark_filter=linear
#include <benchmark/benchmark.h>

#include <string>
#include <tuple>

#include "core/blas.h"
#include "core/cpu.h"
#include "core/kernels.h"
#include "core/parallel.h"

namespace sextant {
namespace {

void report(benchmark::State& state, DType dtype, double multiply_adds) {
  const double peak = fma_peak_gflops(threads(), dtype);
  state.counters["FLOP"] = benchmark::Counter(2 * multiply_adds, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["peak_FLOP/s"] = peak * 1e9;
  state.SetLabel(std::string(name_of(isa())) + " " + name_of(dtype) + " " + std::to_string(threads()) + " threads" +
                 (blas::products() == blas::Products::blas ? " OpenBLAS" : ""));
}

enum class Pass { product, product_transposed, linear, backward_input, backward_weight };

// Ranges: rows, inputs (depth), outputs, dtype, by BLAS.
void multiply(benchmark::State& state, Pass pass, int thread_count) {
  const int64_t rows = state.range(0), inputs = state.range(1), outputs = state.range(2);
  const DType dtype = state.range(3) == 32 ? DType::f32 : DType::f64;
  const int threads_before = threads();
  set_threads(thread_count);
  blas::set_products(state.range(4) == 1 && blas::choice().available ? blas::Products::blas : blas::Products::own);
  Arena arena;
  const Tensor x = full(arena, {rows, inputs}, 0.5, dtype), weight = full(arena, {outputs, inputs}, 0.25, dtype),
               y = zeros(arena, {rows, outputs}, dtype), bias = zeros(arena, {outputs}, dtype),
               matrix = full(arena, {inputs, outputs}, 0.25, dtype);
  const int64_t leaves = rows % 256 == 0 ? rows / 256 : 1;
  for (auto _ : state) {
    switch (pass) {
      case Pass::product:
        kernels::matmul(x, matrix, {y});
        break;
      case Pass::product_transposed:
        kernels::matmul(x, weight.transpose(0, 1), {y});
        break;
      case Pass::linear:
        kernels::linear(x, weight, bias, y);
        break;
      case Pass::backward_input:
        kernels::linear_backward_input(y, weight, {x});
        break;
      case Pass::backward_weight:
        kernels::linear_backward_weight(y, x, leaves, {weight});
        break;
    }
    benchmark::ClobberMemory();
  }
  report(state, dtype, static_cast<double>(rows * inputs * outputs));
  blas::set_products(blas::Products::own);
  set_threads(threads_before);
}

void shapes(benchmark::internal::Benchmark* registered) {
  registered->UseRealTime()->ArgNames({"rows", "inputs", "outputs", "dtype", "blas"});
  for (int by_blas : {0, 1}) {
    for (int dtype : {32, 64}) {
      for (auto [rows, inputs, outputs] : {std::tuple<int, int, int>{64, 16, 64},
                                           {64, 64, 16},
                                           {256, 64, 192},
                                           {256, 64, 256},
                                           {256, 256, 64},
                                           {4096, 64, 192},
                                           {4096, 256, 1024},
                                           {256, 768, 3072},
                                           {1024, 768, 3072},
                                           {1024, 3072, 768},
                                           {4096, 768, 3072},
                                           {1, 768, 3072}}) {
        registered->Args({rows, inputs, outputs, dtype, by_blas});
      }
    }
    registered->Args({1024, 768, 50257, 32, by_blas});
  }
}

const int all_threads = threads();
BENCHMARK_CAPTURE(multiply, product, Pass::product, 1)->Apply(shapes);
BENCHMARK_CAPTURE(multiply, product_transposed, Pass::product_transposed, 1)->Apply(shapes);
BENCHMARK_CAPTURE(multiply, linear, Pass::linear, 1)->Apply(shapes);
BENCHMARK_CAPTURE(multiply, linear_all_threads, Pass::linear, all_threads)->Apply(shapes);
BENCHMARK_CAPTURE(multiply, backward_input, Pass::backward_input, 1)->Apply(shapes);
BENCHMARK_CAPTURE(multiply, backward_weight, Pass::backward_weight, 1)->Apply(shapes);

}  // namespace
}  // namespace sextant

BENCHMARK_MAIN();
