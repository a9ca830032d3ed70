// Which machine this is: instruction set, name, peak.
#include "core/cpu.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>

#include "core/error.h"
#include "core/parallel.h"
#include "core/simd/peak.h"

namespace sextant {

namespace {

bool available(Isa wanted) {
#if defined(__x86_64__)
  switch (wanted) {
    case Isa::plain:
      return true;
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    case Isa::avx512:
      return available(Isa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  }
  return false;
#else
  return wanted == Isa::plain;
#endif
}

std::string allowed_names() {
  std::string names;
  for (Isa each : available_isas()) names += (names.empty() ? "" : ", ") + std::string(name_of(each));
  return names;
}

Isa choose() {
  const std::vector<Isa> all = available_isas();
  const char* wanted = std::getenv("SEXTANT_ISA");
  if (wanted == nullptr || *wanted == '\0') return all.back();
  for (Isa each : all) {
    if (std::string(wanted) == name_of(each)) return each;
  }
  fail("environment variable SEXTANT_ISA is '{}', on this CPU it must be one of: {}", wanted, allowed_names());
}

// Behind a function, so that the environment is read at first use, and a wrong value throws where it can be caught.
std::atomic<Isa>& chosen() {
  static std::atomic<Isa> value{choose()};
  return value;
}

const PeakTable& peak_table() {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return isa_avx512::peak_table();
  if (isa() == Isa::avx2) return isa_avx2::peak_table();
#endif
  return isa_plain::peak_table();
}

}  // namespace

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return "avx512";
    case Isa::avx2:
      return "avx2";
    case Isa::plain:
      break;
  }
  return "plain";
}

std::vector<Isa> available_isas() {
  std::vector<Isa> all;
  for (Isa each : {Isa::plain, Isa::avx2, Isa::avx512}) {
    if (available(each)) all.push_back(each);
  }
  return all;
}

Isa isa() {
  return chosen().load(std::memory_order_relaxed);
}

void set_isa(Isa wanted) {
  require(available(wanted), "this CPU cannot run the instruction set {}, it must be one of: {}", name_of(wanted),
          allowed_names());
  chosen().store(wanted, std::memory_order_relaxed);
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

double fma_peak_gflops(int threads, DType dtype) {
  require(threads >= 1 && threads <= 1024, "threads is {}, must be between 1 and 1024", threads);
  using Clock = std::chrono::steady_clock;
  const auto run = dtype == DType::f32 ? peak_table().f32 : peak_table().f64;
  double total = 0.0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
  {
    // Short rounds and the best of them: a round that the system interrupted says nothing about the units.
    double best = 0.0;
    const Clock::time_point end = Clock::now() + std::chrono::milliseconds(50);
    for (Clock::time_point start = Clock::now(); start < end;) {
      const double operations = run(100000);
      const Clock::time_point stop = Clock::now();
      best = std::max(best, operations / std::chrono::duration<double>(stop - start).count());
      start = stop;
    }
    total += best;
  }
  return total * 1e-9;
}

}  // namespace sextant
