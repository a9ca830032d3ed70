// The functions of core/simd/vector_math.h as loops over arrays.
#include "core/simd/vector_math_table.h"

#include "core/simd/vector_math.h"

namespace sextant::SEXTANT_ISA {

namespace {

template <class T, V<T> (*f)(V<T>)>
void map(const T* x, T* y, int64_t count) {
  int64_t i = 0;
  for (; i + lanes<T> <= count; i += lanes<T>) store(y + i, f(load(x + i)));
  if (i < count) store_part(y + i, f(load_part(x + i, static_cast<int>(count - i))), static_cast<int>(count - i));
}

template <class T>
T sum(const T* x) {
  return sum_of_lanes<T>(load(x));
}

template <class T>
T max(const T* x) {
  return max_of_lanes<T>(load(x));
}

template <class T>
constexpr VectorMath<T> functions = {map<T, exp<T>>,  map<T, exp_nonpositive<T>>, map<T, exp2<T>>, map<T, log<T>>,
                                     map<T, gelu<T>>, map<T, gelu_gradient<T>>,   sum<T>,          max<T>,
                                     lanes<T>};
const VectorMathTable table = {functions<float>, functions<double>};

}  // namespace

const VectorMathTable& vector_math_table() {
  return table;
}

}  // namespace sextant::SEXTANT_ISA
