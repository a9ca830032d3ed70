// Which machine this is: the instruction set the inner loops use, the CPU's name for the manifest, and the measured
// peak of its fused multiply-add units, against which speed is quoted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace sextant {

// The sets core/simd/ is compiled for, worst first. Off x86-64 there is only `plain`.
enum class Isa : uint8_t { plain, avx2, avx512 };

const char* name_of(Isa isa);  // "plain", "avx2", "avx512"

// What this build and this CPU can both do, worst first.
std::vector<Isa> available_isas();

// The set in use: the best available, or the one the environment variable SEXTANT_ISA names. Throws Error when that
// variable names none, or one that is not available.
Isa isa();

// For tests: use this set from now on. Not while kernels run. Throws Error when it is not available.
void set_isa(Isa isa);

std::string cpu_model();  // as the system names it, "unknown" when it does not

// Multiply-adds (two operations each) from registers to registers on `threads` threads at once, in GFLOP/s, with the
// set in use. Takes about 50 ms.
double fma_peak_gflops(int threads, DType dtype);

}  // namespace sextant
