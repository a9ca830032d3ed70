#include "autograd/elementwise.h"

#include <algorithm>
#include <cmath>

#include "autograd/formula.h"
#include "autograd/gradient_check.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/shape_format.h"

namespace sextant {

namespace {

constexpr int64_t grain = 16384;  // elements a chunk

template <class T>
bool all_contiguous(std::initializer_list<T> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& x) { return x.contiguous(); });
}

// y = f(x), dx = df(x, y, dy), element by element. The two functions stand side by side at the call.
template <class Forward, class Backward>
Variable unary(const char* name, Variable x, Forward f, Backward df) {
  const Tensor input = contiguous(x.tape().arena(), x.value());
  const Tensor y = x.tape().empty(x.shape(), x.dtype());
  const int64_t count = y.elements();
  dispatch(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* in = input.data<T>();
    T* out = y.data<T>();
    parallel_ranges(count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = f(in[i]);
    });
  });
  return x.tape().record(name, {x}, y, [x, input, y, count, df](const Tensor& dy) {
    const Tensor gradient = contiguous(x.tape().arena(), dy);
    const Tensor dx = x.tape().empty(y.shape(), y.dtype());
    dispatch(y.dtype(), [&](auto type) {
      using T = decltype(type);
      const T *in = input.data<T>(), *out = y.data<T>(), *upstream = gradient.data<T>();
      T* result = dx.data<T>();
      parallel_ranges(count, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) result[i] = df(in[i], out[i], upstream[i]);
      });
    });
    x.accumulate(dx);
  });
}

// NumPy's rule: shapes are aligned at the right, a size of 1 (or a missing one) stretches.
Shape broadcast_shape(const char* name, const Shape& a, const Shape& b) {
  Shape result;
  const int rank = std::max(a.rank(), b.rank());
  for (int dim = 0; dim < rank; ++dim) {
    const int from_a = dim - (rank - a.rank()), from_b = dim - (rank - b.rank());
    const int64_t size_a = from_a < 0 ? 1 : a[from_a], size_b = from_b < 0 ? 1 : b[from_b];
    require(size_a == size_b || size_a == 1 || size_b == 1, "{} of shapes {} and {}, which do not broadcast", name, a,
            b);
    result.append(size_a == 1 ? size_b : size_a);
  }
  return result;
}

// Walks a result shape and gives the matching offset into an operand that is broadcast to it.
struct BroadcastWalk {
  Shape shape;
  std::array<int64_t, Shape::max_rank> stride{};

  BroadcastWalk(const Tensor& x, const Shape& result) : shape(result) {
    const int missing = result.rank() - x.rank();
    for (int dim = missing; dim < result.rank(); ++dim)
      stride[static_cast<size_t>(dim)] = x.size(dim - missing) == 1 ? 0 : x.stride(dim - missing);
  }
  int64_t offset(int64_t flat) const {
    int64_t result = 0;
    for (int dim = shape.rank() - 1; dim >= 0; --dim) {
      result += flat % shape[dim] * stride[static_cast<size_t>(dim)];
      flat /= shape[dim];
    }
    return result;
  }
};

// Adds the terms f(i) over all result elements that were made from each element of x, in order, in double.
template <class T, class F>
void sum_to_operand(Variable x, const Shape& shape, F f) {
  Arena& arena = x.tape().arena();
  const Tensor sums = zeros(arena, x.shape(), DType::f64);
  double* sum = sums.data<double>();
  const BroadcastWalk walk(sums, shape);
  for (int64_t i = 0, count = shape.elements(); i < count; ++i) sum[walk.offset(i)] += static_cast<double>(f(i));
  x.accumulate(dtype_of<T> == DType::f64 ? sums : converted(arena, sums, x.dtype()));
}

// y = f(a, b); da = dfa(a, b, dy), db = dfb(a, b, dy), summed over what was broadcast.
template <class Forward, class BackwardA, class BackwardB>
Variable binary(const char* name, Variable a, Variable b, Forward f, BackwardA dfa, BackwardB dfb) {
  require(a.dtype() == b.dtype(), "{} of {} and {} tensors; convert one of them", name, name_of(a.dtype()),
          name_of(b.dtype()));
  Tape& tape = a.tape();
  const Shape shape = broadcast_shape(name, a.shape(), b.shape());
  const Tensor y = tape.empty(shape, a.dtype());
  const int64_t count = shape.elements();
  const Tensor va = a.value(), vb = b.value();
  const bool same = va.shape() == shape && vb.shape() == shape && all_contiguous({va, vb});
  dispatch(a.dtype(), [&](auto type) {
    using T = decltype(type);
    const T *pa = va.data<T>(), *pb = vb.data<T>();
    T* out = y.data<T>();
    const BroadcastWalk walk_a(va, shape), walk_b(vb, shape);
    parallel_ranges(count, grain, [&](int64_t begin, int64_t end) {
      if (same)
        for (int64_t i = begin; i < end; ++i) out[i] = f(pa[i], pb[i]);
      else
        for (int64_t i = begin; i < end; ++i) out[i] = f(pa[walk_a.offset(i)], pb[walk_b.offset(i)]);
    });
  });
  return tape.record(name, {a, b}, y, [a, b, shape, dfa, dfb](const Tensor& dy) {
    const Tensor upstream = contiguous(a.tape().arena(), dy), left = a.value(), right = b.value();
    dispatch(dy.dtype(), [&](auto type) {
      using T = decltype(type);
      const T *pa = left.data<T>(), *pb = right.data<T>(), *py = upstream.data<T>();
      const BroadcastWalk walk_a(left, shape), walk_b(right, shape);
      if (a.needs_gradient())
        sum_to_operand<T>(a, shape, [&](int64_t i) { return dfa(pa[walk_a.offset(i)], pb[walk_b.offset(i)], py[i]); });
      if (b.needs_gradient())
        sum_to_operand<T>(b, shape, [&](int64_t i) { return dfb(pa[walk_a.offset(i)], pb[walk_b.offset(i)], py[i]); });
    });
  });
}

// Of x, without overflow for large |x|.
template <class T>
T stable_sigmoid(T x) {
  const T e = std::exp(-std::abs(x));
  return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}
template <class T>
T stable_softplus(T x) {
  return std::max(x, T{0}) + std::log1p(std::exp(-std::abs(x)));
}

}  // namespace

FORMULA("add", "y = a + b", "da = dy,  db = dy (summed over what was broadcast)");
Variable add(Variable a, Variable b) {
  return binary(
      "add", a, b, [](auto x, auto y) { return x + y; }, [](auto, auto, auto d) { return d; },
      [](auto, auto, auto d) { return d; });
}
FORMULA("subtract", "y = a - b", "da = dy,  db = -dy (summed over what was broadcast)");
Variable subtract(Variable a, Variable b) {
  return binary(
      "subtract", a, b, [](auto x, auto y) { return x - y; }, [](auto, auto, auto d) { return d; },
      [](auto, auto, auto d) { return -d; });
}
FORMULA("multiply", "y = a b", "da = dy b,  db = dy a (summed over what was broadcast)");
Variable multiply(Variable a, Variable b) {
  return binary(
      "multiply", a, b, [](auto x, auto y) { return x * y; }, [](auto, auto y, auto d) { return d * y; },
      [](auto x, auto, auto d) { return d * x; });
}
FORMULA("divide", "y = a / b", "da = dy / b,  db = -dy a / b^2 (summed over what was broadcast)");
Variable divide(Variable a, Variable b) {
  return binary(
      "divide", a, b, [](auto x, auto y) { return x / y; }, [](auto, auto y, auto d) { return d / y; },
      [](auto x, auto y, auto d) { return -d * x / (y * y); });
}
FORMULA("scale", "y = c x", "dx = c dy");
Variable scale(Variable x, double factor) {
  return unary(
      "scale", x, [factor](auto v) { return static_cast<decltype(v)>(factor) * v; },
      [factor](auto v, auto, auto d) { return static_cast<decltype(v)>(factor) * d; });
}
FORMULA("shift", "y = x + c", "dx = dy");
Variable shift(Variable x, double offset) {
  return unary(
      "shift", x, [offset](auto v) { return v + static_cast<decltype(v)>(offset); },
      [](auto, auto, auto d) { return d; });
}
FORMULA("negate", "y = -x", "dx = -dy");
Variable negate(Variable x) {
  return unary(
      "negate", x, [](auto v) { return -v; }, [](auto, auto, auto d) { return -d; });
}
FORMULA("reciprocal", "y = 1 / x", "dx = -dy y^2");
Variable reciprocal(Variable x) {
  return unary(
      "reciprocal", x, [](auto v) { return 1 / v; }, [](auto, auto y, auto d) { return -d * y * y; });
}
FORMULA("square", "y = x^2", "dx = 2 x dy");
Variable square(Variable x) {
  return unary(
      "square", x, [](auto v) { return v * v; }, [](auto v, auto, auto d) { return 2 * v * d; });
}
FORMULA("sqrt", "y = sqrt(x)", "dx = dy / (2 y)");
Variable sqrt(Variable x) {
  return unary(
      "sqrt", x, [](auto v) { return std::sqrt(v); }, [](auto, auto y, auto d) { return d / (2 * y); });
}
FORMULA("exp", "y = e^x", "dx = dy y");
Variable exp(Variable x) {
  return unary(
      "exp", x, [](auto v) { return std::exp(v); }, [](auto, auto y, auto d) { return d * y; });
}
FORMULA("log", "y = log x", "dx = dy / x");
Variable log(Variable x) {
  return unary(
      "log", x, [](auto v) { return std::log(v); }, [](auto v, auto, auto d) { return d / v; });
}
FORMULA("sin", "y = sin x", "dx = dy cos x");
Variable sin(Variable x) {
  return unary(
      "sin", x, [](auto v) { return std::sin(v); }, [](auto v, auto, auto d) { return d * std::cos(v); });
}
FORMULA("cos", "y = cos x", "dx = -dy sin x");
Variable cos(Variable x) {
  return unary(
      "cos", x, [](auto v) { return std::cos(v); }, [](auto v, auto, auto d) { return -d * std::sin(v); });
}
FORMULA("tanh", "y = tanh x", "dx = dy (1 - y^2)");
Variable tanh(Variable x) {
  return unary(
      "tanh", x, [](auto v) { return std::tanh(v); }, [](auto, auto y, auto d) { return d * (1 - y * y); });
}
FORMULA("asinh", "y = asinh x", "dx = dy / sqrt(1 + x^2)");
Variable asinh(Variable x) {
  return unary(
      "asinh", x, [](auto v) { return std::asinh(v); },
      [](auto v, auto, auto d) { return d / std::hypot(decltype(v){1}, v); });
}
FORMULA("sigmoid", "y = 1 / (1 + e^-x)", "dx = dy y (1 - y)");
Variable sigmoid(Variable x) {
  // sigmoid' = y (1 - y), with 1 - y taken as sigmoid(-x), which keeps its digits when y is close to 1
  return unary(
      "sigmoid", x, [](auto v) { return stable_sigmoid(v); },
      [](auto v, auto y, auto d) { return d * y * stable_sigmoid(-v); });
}
FORMULA("log_sigmoid", "y = -log(1 + e^-x)", "dx = dy sigmoid(-x)");
Variable log_sigmoid(Variable x) {
  return unary(
      "log_sigmoid", x, [](auto v) { return -stable_softplus(-v); },
      [](auto v, auto, auto d) { return d * stable_sigmoid(-v); });
}
FORMULA("softplus", "y = log(1 + e^x)", "dx = dy sigmoid(x)");
Variable softplus(Variable x) {
  return unary(
      "softplus", x, [](auto v) { return stable_softplus(v); },
      [](auto v, auto, auto d) { return d * stable_sigmoid(v); });
}

FORMULA("gelu", "y = 0.5 x (1 + tanh u),  u = sqrt(2/pi) (x + 0.044715 x^3)",
        "dx = dy ( 0.5 (1 + tanh u) + 0.5 x (1 - tanh^2 u) u' )");
Variable gelu(Variable x) {
  const Tensor input = contiguous(x.tape().arena(), x.value());
  const Tensor y = x.tape().empty(x.shape(), x.dtype());
  kernels::gelu(input, y);
  return x.tape().record("gelu", {x}, y, [x, input](const Tensor& dy) {
    const Tensor dx = x.tape().empty(input.shape(), input.dtype());
    kernels::gelu_backward(input, contiguous(x.tape().arena(), dy), {dx, false});
    x.accumulate(dx);
  });
}

Variable gelu_composed(Variable x) {
  const Variable u = scale(add(x, scale(multiply(square(x), x), 0.044715)), std::sqrt(2.0 / M_PI));
  return scale(multiply(x, shift(tanh(u), 1.0)), 0.5);
}

namespace {

using UnaryOperation = Variable (*)(Variable);
std::vector<AuditCase> unary_cases(Arena& arena, UnaryOperation operation, UnaryOperation composed = nullptr,
                                   bool positive = false, double huge = 1e6) {
  const auto call = [operation](Tape&, std::span<const Variable> x) { return operation(x[0]); };
  TapeFunction twin;
  if (composed) twin = [composed](Tape&, std::span<const Variable> x) { return composed(x[0]); };
  const auto input = [&](const Shape& shape, double size) {
    return positive ? positive_sample(arena, shape, size) : sample(arena, shape, size);
  };
  std::vector<AuditCase> cases{
      {"ordinary", {input({3, 5}, 1.0)}, call, twin}, {"one element", {input({1}, 1.0)}, call, twin},
      {"empty", {input({0, 3}, 1.0)}, call, twin},    {"tiny", {input({4}, 1e-3)}, call, twin},
      {"large", {input({4}, huge)}, call, twin},      {"many", {input({61, 130}, 1.0)}, call, twin, true, true}};
  if (!positive) cases.push_back({"zero", {zeros(arena, {4}, DType::f64)}, call, twin});
  return cases;
}
using BinaryOperation = Variable (*)(Variable, Variable);
std::vector<AuditCase> binary_cases(Arena& arena, BinaryOperation operation, bool positive_second = false) {
  const auto call = [operation](Tape&, std::span<const Variable> x) { return operation(x[0], x[1]); };
  const auto second = [&](const Shape& shape, double size) {
    return positive_second ? positive_sample(arena, shape, size, 8) : sample(arena, shape, size, 8);
  };
  const auto shared = [operation](Tape&, std::span<const Variable> x) { return operation(x[0], x[0]); };
  return {{"ordinary", {sample(arena, {3, 5}), second({3, 5}, 1.0)}, call, {}},
          {"broadcast row", {sample(arena, {3, 5}), second({5}, 1.0)}, call, {}},
          {"broadcast both", {sample(arena, {3, 1, 2}), second({4, 1}, 1.0)}, call, {}},
          {"scalar", {sample(arena, {}), second({2, 2}, 1.0)}, call, {}},
          {"used twice", {positive_sample(arena, {3})}, shared, {}},
          {"empty", {sample(arena, {0}), second({1}, 1.0)}, call, {}},
          {"large and tiny", {sample(arena, {4}, 1e6), second({4}, 1e-3)}, call, {}},
          {"many", {sample(arena, {61, 130}), second({130}, 1.0)}, call, {}, true, true}};
}

}  // namespace

AUDIT(add, "elementwise") {
  return binary_cases(arena, add);
}
AUDIT(subtract, "elementwise") {
  return binary_cases(arena, subtract);
}
AUDIT(multiply, "elementwise") {
  return binary_cases(arena, multiply);
}
AUDIT(divide, "elementwise") {
  return binary_cases(arena, divide, true);
}
AUDIT(scale, "elementwise") {
  return unary_cases(arena, [](Variable x) { return scale(x, -1.7); });
}
AUDIT(shift, "elementwise") {
  return unary_cases(arena, [](Variable x) { return shift(x, 0.3); });
}
AUDIT(negate, "elementwise") {
  return unary_cases(arena, negate);
}
AUDIT(reciprocal, "elementwise") {
  return unary_cases(arena, reciprocal, nullptr, true);
}
AUDIT(square, "elementwise") {
  return unary_cases(arena, square);
}
AUDIT(sqrt, "elementwise") {
  return unary_cases(arena, sqrt, nullptr, true);
}
AUDIT(exp, "elementwise") {
  return unary_cases(arena, exp, nullptr, false, 20);
}
AUDIT(log, "elementwise") {
  return unary_cases(arena, log, nullptr, true);
}
AUDIT(sin, "elementwise") {
  return unary_cases(arena, sin, nullptr, false, 100);
}
AUDIT(cos, "elementwise") {
  return unary_cases(arena, cos, nullptr, false, 100);
}
AUDIT(tanh, "elementwise") {
  return unary_cases(arena, tanh, nullptr, false, 30);
}
AUDIT(asinh, "elementwise") {
  return unary_cases(arena, asinh);
}
AUDIT(sigmoid, "elementwise") {
  return unary_cases(arena, sigmoid, nullptr, false, 30);
}
AUDIT(log_sigmoid, "elementwise") {
  return unary_cases(arena, log_sigmoid, nullptr, false, 30);
}
AUDIT(softplus, "elementwise") {
  return unary_cases(arena, softplus, nullptr, false, 30);
}
AUDIT(gelu, "elementwise") {
  return unary_cases(arena, gelu, gelu_composed, false, 30);
}

}  // namespace sextant
