// Elementwise operations, with NumPy broadcasting between the two arguments of the binary ones. All for f32 and f64.
// Shapes that do not broadcast throw Error naming both.
#pragma once

#include "autograd/tape.h"

namespace sextant {

Variable add(Variable a, Variable b);
Variable subtract(Variable a, Variable b);
Variable multiply(Variable a, Variable b);
Variable divide(Variable a, Variable b);
Variable scale(Variable x, double factor);  // factor x
Variable shift(Variable x, double offset);  // x + offset

Variable negate(Variable x);
Variable reciprocal(Variable x);
Variable square(Variable x);
Variable sqrt(Variable x);
Variable exp(Variable x);
Variable log(Variable x);
Variable sin(Variable x);
Variable cos(Variable x);
Variable tanh(Variable x);
Variable asinh(Variable x);
Variable sigmoid(Variable x);        // 1 / (1 + e^-x)
Variable log_sigmoid(Variable x);    // log sigmoid(x), without overflow
Variable softplus(Variable x);       // log(1 + e^x), without overflow
Variable gelu(Variable x);           // tanh form, fused
Variable gelu_composed(Variable x);  // the same from the operations above

}  // namespace sextant
