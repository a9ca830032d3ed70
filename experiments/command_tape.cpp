// sextant tape: what one training step records and what flows back, for reading.
#include <algorithm>

#include "autograd/formula.h"
#include "core/error.h"
#include "experiments/command.h"
#include "experiments/page.h"
#include "experiments/random_tokens.h"
#include "nn/transformer.h"

namespace sextant {

namespace {

std::string joined(const std::vector<int>& numbers) {
  return fmt::format("{}", fmt::join(numbers, " "));
}

std::string norm_text(const Tape::Row& row) {
  return row.gradient_norm < 0 ? "-" : fmt::format("{:.4g}", row.gradient_norm);
}

// Data downwards; what carries a gradient is drawn in full, the rest in grey.
std::string dot_text(const std::vector<Tape::Row>& rows) {
  std::string text = "digraph tape {\n  node [shape=box, fontname=\"sans-serif\", fontsize=10];\n";
  for (const Tape::Row& row : rows) {
    const Formula* formula = formula_of(row.name);
    text += fmt::format("  n{} [label=\"{} {}\\n{}{}\\n|gradient| {}\"{}{}];\n", row.index, row.index, row.name,
                        row.shape, formula == nullptr ? "" : "\\n" + formula->forward, norm_text(row),
                        row.inputs.empty() ? ", style=rounded" : "", row.gradient_norm < 0 ? ", color=grey" : "");
    for (const int input : row.inputs) text += fmt::format("  n{} -> n{};\n", input, row.index);
  }
  return text + "}\n";
}

// Each operation on the tape once, in order of first use, with the numbers of its nodes.
std::vector<std::pair<std::string, std::vector<int>>> operations_on(const std::vector<Tape::Row>& rows) {
  std::vector<std::pair<std::string, std::vector<int>>> operations;
  for (const Tape::Row& row : rows) {
    if (row.inputs.empty()) continue;  // a leaf
    auto found = std::ranges::find_if(operations, [&](const auto& one) { return one.first == row.name; });
    if (found == operations.end()) found = operations.insert(operations.end(), {row.name, {}});
    found->second.push_back(row.index);
  }
  return operations;
}

std::vector<std::string> write_page(const std::string& path, const std::vector<Tape::Row>& rows,
                                    const std::string& command_line, double loss) {
  Page page(path, "One training step on the tape");
  page.paragraph(fmt::format(
      "{} nodes, in the order in which they were recorded (the forward); the backward visits them from the last to the "
      "first. Loss {:.6f} nats a token. A node's gradient is the derivative of the loss by its value; where several "
      "nodes read it, their contributions add up. Saved are bytes that an operation keeps for its backward besides its "
      "inputs and its output.",
      rows.size(), loss));
  page.code("sextant " + command_line);
  Table table{{"node", "operation", "shape", "bytes", "saved", "reads", "read by", "|gradient|"}, {}};
  for (const Tape::Row& row : rows)
    table.rows.push_back({std::to_string(row.index), row.name, row.shape, std::to_string(row.bytes),
                          std::to_string(row.saved_bytes), joined(row.inputs), joined(row.readers), norm_text(row)});
  page.table(table, "nodes");
  for (const auto& [name, nodes] : operations_on(rows)) {
    page.heading(name);
    const Formula* formula = formula_of(name);
    if (formula == nullptr) {
      page.paragraph(fmt::format("No formula is registered. Nodes {}.", joined(nodes)));
      continue;
    }
    page.code(fmt::format("{}\n{}", formula->forward, formula->backward));
    page.paragraph(fmt::format("{}. Nodes {}.", formula->place(), joined(nodes)));
  }
  return page.write();
}

nlohmann::json to_json(const Tape::Row& row) {
  const Formula* formula = formula_of(row.name);
  return {{"index", row.index},
          {"name", row.name},
          {"formula", formula == nullptr ? nlohmann::json() : nlohmann::json(formula->forward)},
          {"backward", formula == nullptr ? nlohmann::json() : nlohmann::json(formula->backward)},
          {"source", formula == nullptr ? nlohmann::json() : nlohmann::json(formula->place())},
          {"shape", row.shape},
          {"inputs", row.inputs},
          {"read_by", row.readers},
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
  if (arguments.given("html"))
    for (const std::string& path :
         write_page(arguments.text("html"), rows, arguments.command_line(), loss.value().item()))
      if (!arguments.flag("dot")) arguments.say("wrote {}\n", path);
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
                 {"html", "FILE", "",
                  "writes one self-contained page: the nodes, and each operation's formula, backward and place in the "
                  "source"},
                 flag_option("dot", "as a graph for Graphviz: sextant tape --dot | dot -Tsvg > tape.svg")},
     .run = run});

}  // namespace

}  // namespace sextant
