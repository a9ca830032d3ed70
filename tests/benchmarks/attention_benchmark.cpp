// Fused attention, forward and backward, in GFLOP/s beside the measured peak. Flops are those of the causal
// half: 2 products of 2 D flops for each (query, key) pair in the forward, 2.5 times that in the backward. Arguments:
// B, T, S, H, D, terms (1 bias, 2 gate), threads.
#include <benchmark/benchmark.h>

#include <cmath>

#include "core/attention.h"
#include "core/cpu.h"
#include "core/parallel.h"

namespace sextant {
namespace {

struct Setting {
  Arena arena, scratch;
  AttentionInputs inputs;
  AttentionGradients gradients;
  Tensor out, lse, dout;
  double flops;  // of the forward

  explicit Setting(const benchmark::State& state) {
    const int64_t B = state.range(0), T = state.range(1), S = state.range(2), H = state.range(3), D = state.range(4);
    set_threads(static_cast<int>(state.range(6)));
    const Tensor qkv = empty(arena, {B, S, 3, H, D}), dqkv = empty(arena, {B, S, 3, H, D});
    for (int64_t n = 0; n < qkv.elements(); ++n) qkv.data<float>()[n] = std::sin(static_cast<float>(n % 10007));
    inputs.q = qkv.select(2, 0).slice(1, S - T, T);
    inputs.k = qkv.select(2, 1);
    inputs.v = qkv.select(2, 2);
    inputs.scale = 1.0 / std::sqrt(static_cast<double>(D));
    out = empty(arena, {B, T, H, D});
    lse = empty(arena, {B, H, T});
    dout = full(arena, {B, T, H, D}, 0.5);
    gradients.q.tensor = dqkv.select(2, 0).slice(1, S - T, T);
    gradients.k.tensor = dqkv.select(2, 1);
    gradients.v.tensor = dqkv.select(2, 2);
    if ((state.range(5) & 1) != 0) {
      inputs.bias = full(arena, {H, S}, -0.25);
      gradients.bias.tensor = empty(arena, {H, S});
    }
    if ((state.range(5) & 2) != 0) {
      inputs.gate = full(arena, {B, S, H}, -1.0, DType::f64);
      gradients.gate.tensor = empty(arena, {B, S, H}, DType::f64);
    }
    flops = 4.0 * static_cast<double>(D * B * H) * static_cast<double>(T) *
            (static_cast<double>(S - T) + 0.5 * static_cast<double>(T + 1));
  }
};

// GFLOP per second, and beside it the peak of as many threads, measured in the same moment.
void report(benchmark::State& state, double flops) {
  state.counters["GFLOP"] = benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["peak"] = fma_peak_gflops(threads(), DType::f32);
  state.SetLabel(name_of(isa()));
}

void forward(benchmark::State& state) {
  const Setting setting(state);
  for (auto _ : state) kernels::attention(setting.inputs, setting.out, setting.lse);
  report(state, setting.flops);
}

void backward(benchmark::State& state) {
  Setting setting(state);
  kernels::attention(setting.inputs, setting.out, setting.lse);
  for (auto _ : state) {
    kernels::attention_backward(setting.inputs, setting.out, setting.lse, setting.dout, setting.gradients,
                                setting.scratch);
  }
  report(state, 2.5 * setting.flops);
}

void shapes(benchmark::internal::Benchmark* benchmark) {
  for (int64_t threads : {1, 2}) {
    benchmark->Args({16, 256, 256, 4, 16, 0, threads});
    benchmark->Args({16, 256, 256, 4, 16, 1, threads});
    benchmark->Args({16, 256, 256, 4, 16, 2, threads});
    benchmark->Args({4, 512, 512, 8, 32, 0, threads});
    benchmark->Args({1, 1024, 1024, 8, 64, 0, threads});
  }
  benchmark->UseRealTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK(forward)->Apply(shapes);
BENCHMARK(backward)->Apply(shapes);

// A chunk of a long evaluation, and one token of generation with a cache of 32,000.
BENCHMARK(forward)
    ->Args({1, 1024, 65536, 4, 16, 0, 1})
    ->Args({1, 1024, 65536, 4, 16, 1, 1})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(forward)
    ->Args({1, 1, 32000, 4, 16, 1, 1})
    ->Args({1, 1, 32000, 4, 64, 1, 1})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sextant

BENCHMARK_MAIN();
