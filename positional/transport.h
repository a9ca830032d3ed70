// Accumulated transport: the kinds of steps behind the one strategy `transport` (position-space.md section 7).
#pragma once

#include <memory>

#include "positional/strategy.h"

namespace sextant {

// With M_t = R(-theta_t), pair by pair: kind=random and kind=learned. `deviation` is the standard deviation of theta at
// the start, in radians; random steps are a function of the token, or of the position as a control.
enum class AngleSource { learned, token, position };
std::unique_ptr<Term> make_rotation_transport(const PositionSettings& settings, AngleSource source, bool values,
                                              double deviation);

// M_t = I - 2 w_t w_t^T                                                      positional/householder.cpp
std::unique_ptr<Term> make_householder_transport(const PositionSettings& settings, bool values);

// M_t = I - beta_t w_t w_t^T                                                 positional/path.cpp
std::unique_ptr<Term> make_path_transport(const PositionSettings& settings);

}  // namespace sextant
