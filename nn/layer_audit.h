// Audit cases of layers: what a layer reads and every one of its parameters are inputs of the case.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "autograd/gradient_check.h"
#include "positional/strategy.h"

namespace sextant {

// A layer with the memory it stands on.
template <class Layer>
struct LayerStand {
  Arena weights;
  PositionTables tables;
  std::unique_ptr<Layer> layer;
};

// make(weights, tables, dtype) -> std::unique_ptr<Layer>; call(layer, tape, inputs, composed) -> Variable, where
// `inputs` starts with those given here; the layer's parameters, at random values around their first ones, are inputs
// after them.
template <class Layer, class Make, class Call>
AuditCase layer_case(Arena& arena, const std::string& label, const std::vector<Tensor>& inputs, Make make, Call call) {
  const auto stand_of = [&](DType dtype) {
    auto stand = std::make_shared<LayerStand<Layer>>();
    stand->layer = make(stand->weights, stand->tables, dtype);
    return stand;
  };
  const size_t before = inputs.size();
  const auto form = [&](const std::shared_ptr<LayerStand<Layer>>& stand, bool composed) -> TapeFunction {
    return [stand, composed, before, call](Tape& tape, std::span<const Variable> x) {
      size_t next = before;
      for (Parameter* parameter : stand->layer->parameters()) tape.bind(*parameter, x[next++]);
      return call(*stand->layer, tape, x, composed);
    };
  };
  const auto stand = stand_of(DType::f64);
  AuditCase result;
  result.label = label;
  result.inputs = inputs;
  for (size_t i = 0; i < before; ++i) result.input_names.push_back(before == 1 ? "x" : "x" + std::to_string(i));
  uint64_t seed = 20;
  for (const Parameter* parameter : stand->layer->parameters()) {
    const Tensor value = sample(arena, parameter->value.shape(), 0.2, seed++);
    for (int64_t i = 0; i < value.elements(); ++i) value.set_flat(i, value.flat(i) + parameter->value.flat(i));
    result.inputs.push_back(value);
    result.input_names.push_back(parameter->name);
  }
  result.function = form(stand, false);
  result.composed = form(stand, true);
  result.function_f32 = form(stand_of(DType::f32), false);
  return result;
}

}  // namespace sextant
