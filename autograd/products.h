// Matrix products.
#pragma once

#include <array>

#include "autograd/tape.h"

namespace sextant {

// [.., M, K] x [.., K, N] -> [.., M, N]; the dimensions before the matrices must be equal.
Variable matmul(Variable a, Variable b);

// y = x W^T + bias: x [.., K], weight [M, K], bias [M] or undefined, y [.., M].
Variable linear(Variable x, Variable weight, Variable bias);
Variable linear_composed(Variable x, Variable weight, Variable bias);

// gelu(x W^T + bias), one operation.
Variable linear_gelu(Variable x, Variable weight, Variable bias);
Variable linear_gelu_composed(Variable x, Variable weight, Variable bias);

}  // namespace sextant
