// The functions of core/simd/vector_math.h as loops over arrays, compiled for each instruction set: what tests and
// benchmarks call.
#pragma once

#include <stdint.h>

namespace sextant {

template <class T>
struct VectorMath {
  // y[i] = f(x[i]) for i < count
  using Function = void (*)(const T* x, T* y, int64_t count);
  Function exp, exp_nonpositive, exp2, log, gelu, gelu_gradient;
  T (*sum)(const T* x);  // of one vector of `lanes` numbers, likewise max
  T (*max)(const T* x);
  int lanes;
};

struct VectorMathTable {
  VectorMath<float> f32;
  VectorMath<double> f64;
};

namespace isa_plain {
const VectorMathTable& vector_math_table();
}
namespace isa_avx2 {
const VectorMathTable& vector_math_table();
}
namespace isa_avx512 {
const VectorMathTable& vector_math_table();
}

}  // namespace sextant
