// A learned linear map of the layer's input, as the strategies use it whose steps depend on the tokens: angle
// increments, reflection vectors, gates.
#pragma once

#include <string>

#include "autograd/tape.h"
#include "positional/strategy.h"

namespace sextant {

class Projection {
 public:
  // y = weight x + bias with weight [outputs, C], bias [outputs], named prefix + TERM + "." + NAME. The weight starts
  // as N(0, deviation^2), the bias as 0; both in settings.weights. Seeds depend on the full name alone.
  Projection(const PositionSettings& settings, const std::string& term, const std::string& weight,
             const std::string& bias, int64_t outputs, double deviation);

  // [B, T, outputs], recorded on the call's tape; from elementary operations when the call asks for composed ones.
  Variable operator()(const PositionCall& call);

  Parameter weight, bias;
};

}  // namespace sextant
