// sextant tape: what one training step records and what flows back, for reading.
#include "core/error.h"
#include "core/random.h"
#include "experiments/command.h"
#include "nn/transformer.h"

namespace sextant {

namespace {

std::vector<int32_t> random_tokens(uint64_t seed, const char* stream, int64_t count, int64_t vocabulary) {
  const Random random(seed, stream);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(vocabulary))));
  return tokens;
}

std::string dot_text(const std::vector<Tape::Row>& rows) {
  std::string text = "digraph tape {\n  node [shape=box, fontname=\"sans-serif\", fontsize=10];\n";
  for (const Tape::Row& row : rows) {
    text += fmt::format("  n{} [label=\"{} {}\\n{}\"];\n", row.index, row.index, row.name, row.shape);
    for (const int input : row.inputs) text += fmt::format("  n{} -> n{};\n", input, row.index);
  }
  return text + "}\n";
}

nlohmann::json to_json(const Tape::Row& row) {
  return {{"index", row.index},
          {"name", row.name},
          {"shape", row.shape},
          {"inputs", row.inputs},
          {"bytes", row.bytes},
          {"saved_bytes", row.saved_bytes},
          {"gradient_norm", row.gradient_norm < 0 ? nlohmann::json() : nlohmann::json(row.gradient_norm)}};
}

int run(const Arguments& arguments) {
  const ModelConfig config{.vocab = arguments.integer("vocab", 1, 1 << 20),
                           .layers = arguments.integer("layers", 1, 1024),
                           .width = arguments.integer("width", 1, 1 << 16),
                           .heads = arguments.integer("heads", 1, 1 << 16),
                           .context = arguments.integer("context", 1, 1 << 20),
                           .position = arguments.text("position"),
                           .data = "",
                           .seed = arguments.seed()};
  const int64_t batch = arguments.integer("batch", 1, 1 << 16);
  Transformer model(config);
  model.set_composed(arguments.flag("composed"));
  const int64_t tokens = batch * config.context;
  const std::vector<int32_t> inputs = random_tokens(config.seed, "tape/inputs", tokens, config.vocab);
  const std::vector<int32_t> targets = random_tokens(config.seed, "tape/targets", tokens, config.vocab);
  Tape tape;
  const Variable loss = model.loss(tape, inputs, targets, batch, config.context);
  tape.backward(loss);
  const std::vector<Tape::Row> rows = tape.rows();
  if (arguments.flag("dot"))
    arguments.say("{}", dot_text(rows));
  else
    arguments.say("{}\nloss {:.6f} nats/token; {} operations and leaves, {} bytes in the step's arena\n", tape.text(),
                  loss.value().item(), rows.size(), tape.arena().used());
  nlohmann::json list = nlohmann::json::array();
  for (const Tape::Row& row : rows) list.push_back(to_json(row));
  arguments.print_json({{"loss", loss.value().item()}, {"bytes", tape.arena().used()}, {"rows", list}});
  return 0;
}

const RegisterCommand registered(
    {.name = "tape",
     .summary = "prints what one training step of a small model records, and the gradients that come back",
     .options = {{"position", "SPEC", "rope", "the position strategy"},
                 {"layers", "N", "1", "blocks"},
                 {"width", "C", "8", "width of the residual stream"},
                 {"heads", "H", "2", "attention heads"},
                 {"context", "T", "4", "tokens a sequence"},
                 {"batch", "B", "2", "sequences"},
                 {"vocab", "V", "16", "vocabulary"},
                 flag_option("composed", "the composed twins of all fused operations"),
                 flag_option("dot", "as a graph for Graphviz: sextant tape --dot | dot -Tsvg > tape.svg")},
     .run = run});

}  // namespace

}  // namespace sextant
