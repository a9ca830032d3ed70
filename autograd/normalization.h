// Layer norm, alone and fused with the residual sum before it.
#pragma once

#include <array>

#include "autograd/tape.h"

namespace sextant {

// y = (x - mean) / sqrt(variance + epsilon) gain + bias over the last dimension; x [.., C], gain, bias [C].
Variable layer_norm(Variable x, Variable gain, Variable bias, double epsilon = 1e-5);
Variable layer_norm_composed(Variable x, Variable gain, Variable bias, double epsilon = 1e-5);

// {x + residual, layer_norm(x + residual)}
std::array<Variable, 2> add_layer_norm(Variable x, Variable residual, Variable gain, Variable bias,
                                       double epsilon = 1e-5);

}  // namespace sextant
