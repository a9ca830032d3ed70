// What `audit` and the tests feed every registered strategy: each of its example SPECs around a small attention, with
// all that a position layer reads as an input (the layer's input, q, k, v and every learned value). A new strategy is
// audited by registering it.
#include "positional/strategy_audit.h"

#include <cmath>

#include "autograd/attention.h"
#include "autograd/elementwise.h"
#include "autograd/reductions.h"

namespace sextant {

AttentionArguments attention_arguments(Position& position, const PositionCall& call, Features features) {
  AttentionArguments arguments;
  arguments.scale = position.logit_scale(call.total) / std::sqrt(static_cast<double>(features.q.size(3)));
  position.transform(call, features, nullptr);
  arguments.bias = position.lag_bias(call, call.length, nullptr);
  if (const Variable log_gate = position.log_gate(call, nullptr); log_gate.defined())
    arguments.gate = cumulative_sum(log_gate, 1);
  arguments.transport = position.tile_transport(call, features, nullptr);
  arguments.q = features.q;
  arguments.k = features.k;
  arguments.v = features.v;
  return arguments;
}

namespace {

// A position layer with everything it stands on.
struct Stand {
  Arena weights;
  PositionTables tables;
  std::unique_ptr<Position> position;
  std::vector<int32_t> tokens;

  Stand(const std::string& spec, int64_t batch, int64_t length, DType dtype) {
    PositionSettings settings;
    settings.heads = heads;
    settings.head_dim = head_dim;
    settings.width = width;
    settings.vocabulary = vocabulary;
    settings.context = 6;
    settings.dtype = dtype;
    settings.seed = 11;
    settings.weights = &weights;
    settings.tables = &tables;
    settings.prefix = "audit.position.";
    position = std::make_unique<Position>(spec, settings);
    for (int64_t i = 0; i < batch * length; ++i) tokens.push_back(static_cast<int32_t>((3 * i + 1) % vocabulary));
  }

  static constexpr int64_t heads = 2, head_dim = 8, width = 5, vocabulary = 7;
};

// As the model's self-attention does it, from inputs x, q, k, v and the parameters.
Variable attend(Stand& stand, Tape& tape, std::span<const Variable> inputs, bool composed) {
  const std::vector<Parameter*> parameters = stand.position->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) tape.bind(*parameters[i], inputs[4 + i]);
  const int64_t batch = inputs[0].size(0), length = inputs[0].size(1);
  const PositionCall call{&tape, inputs[0], stand.tokens, batch, length, 0, length, composed, nullptr};
  Position& position = *stand.position;
  const AttentionArguments arguments = attention_arguments(position, call, {inputs[1], inputs[2], inputs[3]});
  const bool plain = composed && arguments.transport == nullptr;
  const Variable output = position.restore(call, plain ? attention_composed(arguments) : attention(arguments), nullptr);
  // A softmax does not see a constant bias: added directly, it counts too.
  return arguments.bias.defined() ? add(output, scale(sum(arguments.bias), 0.1)) : output;
}

AuditCase strategy_case(Arena& arena, const std::string& spec, int64_t batch, int64_t length) {
  const auto stand = std::make_shared<Stand>(spec, batch, length, DType::f64),
             stand_f32 = std::make_shared<Stand>(spec, batch, length, DType::f32);
  const Shape features{batch, length, Stand::heads, Stand::head_dim};
  AuditCase result;
  result.label = spec + (length == 1 ? ", one token" : length > 64 ? ", more than a tile" : "");
  result.large = length > 64;
  result.inputs = {sample(arena, {batch, length, Stand::width}, 1.0, 1), sample(arena, features, 1.0, 2),
                   sample(arena, features, 1.0, 3), sample(arena, features, 1.0, 4)};
  result.input_names = {"x", "q", "k", "v"};
  uint64_t seed = 5;
  for (const Parameter* parameter : stand->position->parameters()) {
    const Tensor value = sample(arena, parameter->value.shape(), 0.3, seed++);
    for (int64_t i = 0; i < value.elements(); ++i) value.set_flat(i, value.flat(i) + parameter->value.flat(i));
    result.inputs.push_back(value);
    result.input_names.push_back(parameter->name);
  }
  result.function = [stand](Tape& tape, std::span<const Variable> x) { return attend(*stand, tape, x, false); };
  result.composed = [stand](Tape& tape, std::span<const Variable> x) { return attend(*stand, tape, x, true); };
  result.function_f32 = [stand_f32](Tape& tape, std::span<const Variable> x) {
    return attend(*stand_f32, tape, x, false);
  };
  return result;
}

}  // namespace

std::vector<AuditCase> strategy_audit_cases(const StrategyInfo& info, Arena& arena) {
  std::vector<AuditCase> cases;
  for (const std::string& spec : info.examples) {
    cases.push_back(strategy_case(arena, spec, 2, 7));
    cases.push_back(strategy_case(arena, spec, 1, 1));
    cases.push_back(strategy_case(arena, spec, 1, 70));
  }
  return cases;
}

}  // namespace sextant
