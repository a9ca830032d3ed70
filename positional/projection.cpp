#include "positional/projection.h"

#include "autograd/products.h"
#include "core/random.h"

namespace sextant {

Projection::Projection(const PositionSettings& settings, const std::string& term, const std::string& weight_name,
                       const std::string& bias_name, int64_t outputs, double deviation)
    : weight(make_parameter(settings, term, weight_name, {outputs, settings.width})),
      bias(make_parameter(settings, term, bias_name, {outputs})) {
  weight.decay = true;
  fill_normal(weight.value, Random(settings.seed, "init/" + weight.name), 0.0, deviation);
}

Variable Projection::operator()(const PositionCall& call) {
  const auto map = call.composed ? linear_composed : linear;
  return map(call.input, call.tape->parameter(weight), call.tape->parameter(bias));
}

}  // namespace sextant
