// Speed of the row and elementwise kernels at the shapes of a small Transformer, in nanoseconds an element, with the
// bytes each must move.
#include <benchmark/benchmark.h>

#include <vector>

#include "core/kernels.h"
#include "core/parallel.h"
#include "core/random.h"
#include "core/simd/vector_math_table.h"

namespace sextant {
namespace {

Tensor normal(Arena& arena, const Shape& shape, uint64_t seed) {
  const Tensor x = empty(arena, shape);
  fill_normal(x, Random(seed, "benchmark"), 0, 1);
  return x;
}

std::vector<int32_t> tokens(int64_t rows, int64_t vocabulary) {
  std::vector<int32_t> ids;
  for (int64_t n = 0; n < rows; ++n)
    ids.push_back(
        static_cast<int32_t>(Random(9, "ids").below(static_cast<uint64_t>(n), static_cast<uint64_t>(vocabulary))));
  return ids;
}

void report(benchmark::State& state, int64_t elements, int64_t bytes_an_element) {
  state.SetBytesProcessed(state.iterations() * elements * bytes_an_element);
  state.counters["ns/element"] =
      benchmark::Counter(static_cast<double>(elements) * 1e-9,
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// Arguments of all: rows, columns, threads.
struct Shapes {
  explicit Shapes(benchmark::State& state) : rows(state.range(0)), columns(state.range(1)) {
    set_threads(static_cast<int>(state.range(2)));
  }
  int64_t rows, columns;
};

void gelu(benchmark::State& state) {
  const Shapes of(state);
  Arena arena;
  const Tensor x = normal(arena, {of.rows, of.columns}, 1), y = zeros(arena, x.shape());
  for (auto _ : state) kernels::gelu(x, y);
  report(state, x.elements(), 8);
}

void gelu_backward(benchmark::State& state) {
  const Shapes of(state);
  Arena arena;
  const Tensor x = normal(arena, {of.rows, of.columns}, 1), dy = normal(arena, x.shape(), 2),
               dx = zeros(arena, x.shape());
  for (auto _ : state) kernels::gelu_backward(x, dy, {dx});
  report(state, x.elements(), 12);
}

void layer_norm(benchmark::State& state) {
  const Shapes of(state);
  Arena arena;
  const Tensor x = normal(arena, {of.rows, of.columns}, 1), residual = normal(arena, x.shape(), 2),
               sum = zeros(arena, x.shape());
  const Tensor y = zeros(arena, x.shape()), gain = normal(arena, {of.columns}, 3),
               bias = normal(arena, {of.columns}, 4);
  const Tensor mean = zeros(arena, {of.rows}), rstd = zeros(arena, {of.rows});
  for (auto _ : state) kernels::layer_norm(x, residual, gain, bias, 1e-5, sum, y, mean, rstd);
  report(state, x.elements(), 16);
}

void layer_norm_backward(benchmark::State& state) {
  const Shapes of(state);
  const int64_t leaves = 16;
  Arena arena;
  const Tensor x = normal(arena, {of.rows, of.columns}, 1), dy = normal(arena, x.shape(), 2),
               direct = normal(arena, x.shape(), 3);
  const Tensor dx = zeros(arena, x.shape()), gain = normal(arena, {of.columns}, 4), mean = zeros(arena, {of.rows});
  const Tensor rstd = full(arena, {of.rows}, 1), dgain = zeros(arena, {of.columns}), dbias = zeros(arena, {of.columns});
  const Tensor scratch = zeros(arena, {leaves, 2, of.columns}, DType::f64);
  for (auto _ : state)
    kernels::layer_norm_backward(x, gain, mean, rstd, dy, direct, leaves, {dx}, {dgain, true}, {dbias, true}, scratch);
  report(state, x.elements(), 16);
}

void cross_entropy(benchmark::State& state) {
  const Shapes of(state);
  Arena arena;
  const Tensor logits = normal(arena, {of.rows, of.columns}, 1), loss = zeros(arena, {of.rows}, DType::f64),
               lse = zeros(arena, {of.rows});
  const std::vector<int32_t> targets = tokens(of.rows, of.columns);
  for (auto _ : state) kernels::cross_entropy(logits, targets, loss, lse);
  report(state, logits.elements(), 4);
}

void cross_entropy_backward(benchmark::State& state) {
  const Shapes of(state);
  Arena arena;
  const Tensor logits = normal(arena, {of.rows, of.columns}, 1), lse = full(arena, {of.rows}, 6),
               dlogits = zeros(arena, logits.shape());
  const std::vector<int32_t> targets = tokens(of.rows, of.columns);
  for (auto _ : state) kernels::cross_entropy_backward(logits, targets, lse, 1, {dlogits});
  report(state, logits.elements(), 8);
}

void embedding_backward(benchmark::State& state) {
  const Shapes of(state);
  Arena arena;
  const Tensor dy = normal(arena, {of.rows, of.columns}, 1), dtable = zeros(arena, {256, of.columns});
  const std::vector<int32_t> ids = tokens(of.rows, 256);
  for (auto _ : state) kernels::embedding_backward(dy, ids, 16, {dtable, true}, arena);
  report(state, dy.elements(), 4);
}

void adam(benchmark::State& state) {
  const Shapes of(state);
  Arena arena;
  const Tensor w = normal(arena, {of.rows, of.columns}, 1), g = normal(arena, w.shape(), 2),
               m = zeros(arena, w.shape()), v = zeros(arena, w.shape());
  for (auto _ : state) kernels::adam(w, g, m, v, {1e-6, 0.9, 0.95, 1e-8, 0.1, 1, 0.5, 0.5});
  report(state, w.elements(), 28);
}

void squared_norm(benchmark::State& state) {
  const Shapes of(state);
  Arena arena;
  const Tensor x = normal(arena, {of.rows, of.columns}, 1);
  for (auto _ : state) benchmark::DoNotOptimize(kernels::squared_norm(x));
  report(state, x.elements(), 4);
}

#define SHAPES(name, ...) \
  BENCHMARK(name)->ArgNames({"rows", "columns", "threads"})->ArgsProduct({__VA_ARGS__, {1, 2}})->UseRealTime()
SHAPES(gelu, {4096}, {256});
SHAPES(gelu_backward, {4096}, {256});
SHAPES(layer_norm, {256, 4096}, {64, 256, 768});
SHAPES(layer_norm_backward, {256, 4096}, {64, 256, 768});
SHAPES(cross_entropy, {4096}, {256});
SHAPES(cross_entropy, {64}, {50257});
SHAPES(cross_entropy_backward, {4096}, {256});
SHAPES(embedding_backward, {4096}, {64});
SHAPES(adam, {2578}, {64});  // 165 thousand parameters
SHAPES(squared_norm, {2578}, {64});

#if defined(__x86_64__)
// Numbers in the first-level cache, one thread: the arithmetic alone.
void function(benchmark::State& state, VectorMath<float>::Function f) {
  Arena arena;
  const Tensor x = normal(arena, {4096}, 1), y = zeros(arena, x.shape());
  for (auto _ : state) f(x.data<float>(), y.data<float>(), x.elements());
  report(state, x.elements(), 8);
}
const bool functions_registered = [] {
  if (!__builtin_cpu_supports("avx512dq")) return false;
  const VectorMath<float>& f = isa_avx512::vector_math_table().f32;
  benchmark::RegisterBenchmark("avx512/exp", function, f.exp);
  benchmark::RegisterBenchmark("avx512/exp_nonpositive", function, f.exp_nonpositive);
  benchmark::RegisterBenchmark("avx512/exp2", function, f.exp2);
  benchmark::RegisterBenchmark("avx512/log", function, f.log);
  benchmark::RegisterBenchmark("avx512/gelu", function, f.gelu);
  benchmark::RegisterBenchmark("avx512/gelu_gradient", function, f.gelu_gradient);
  return true;
}();
#endif

}  // namespace
}  // namespace sextant
BENCHMARK_MAIN();
