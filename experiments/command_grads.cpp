// sextant grads: loss, logits and every gradient of a checkpoint's model on a given batch, for comparison with other
// programs.
#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "core/file.h"
#include "core/safetensors.h"
#include "experiments/command.h"
#include "nn/checkpoint.h"

namespace sextant {

namespace {

struct TokenBatch {
  std::vector<int32_t> inputs, targets;  // [sequences, length]
  int64_t sequences = 0, length = 0;
};

std::vector<int32_t> parse_line(std::string_view line, int64_t vocabulary, const std::string& where) {
  std::vector<int32_t> ids;
  const char* at = line.data();
  const char* const end = at + line.size();
  const auto skip_blanks = [&] {
    while (at != end && (*at == ' ' || *at == '\t' || *at == '\r' || *at == ',')) ++at;
  };
  for (skip_blanks(); at != end; skip_blanks()) {
    int64_t id = 0;
    const auto [stop, error] = std::from_chars(at, end, id);
    const char* word_end = std::find_if(at, end, [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == ','; });
    require(error == std::errc() && stop == word_end, "{}: '{}' is not a token id", where,
            std::string_view(at, word_end).substr(0, 40));
    require(id >= 0 && id < vocabulary, "{}: token id {} is outside the vocabulary 0..{}", where, id, vocabulary - 1);
    ids.push_back(static_cast<int32_t>(id));
    at = word_end;
  }
  return ids;
}

// One sequence of T + 1 ids a line; empty lines count for nothing.
TokenBatch read_tokens(const std::string& path, int64_t vocabulary) {
  const std::string text = read_text(path);
  TokenBatch batch;
  int64_t number = 0, first_line = 0;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string where = fmt::format("{}:{}", path, number + 1);
    const std::vector<int32_t> ids = parse_line(std::string_view(text).substr(begin, end - begin), vocabulary, where);
    begin = end + 1;
    if (ids.empty()) continue;
    require(ids.size() >= 2, "{}: a sequence needs at least 2 token ids, an input and its target", where);
    const int64_t length = static_cast<int64_t>(ids.size()) - 1;
    if (batch.sequences == 0) batch.length = length, first_line = number + 1;
    require(length == batch.length, "{}: {} token ids, but line {} has {}; all sequences must be equally long", where,
            length + 1, first_line, batch.length + 1);
    batch.inputs.insert(batch.inputs.end(), ids.begin(), ids.end() - 1);
    batch.targets.insert(batch.targets.end(), ids.begin() + 1, ids.end());
    ++batch.sequences;
  }
  require(batch.sequences > 0, "{}: no token ids; one sequence a line is expected", path);
  return batch;
}

int run(const Arguments& arguments) {
  const std::string checkpoint = checkpoint_path(arguments.positional(0));
  require(arguments.given("tokens"), "--tokens FILE is missing: token ids, one sequence a line");
  require(arguments.given("out"), "--out FILE.safetensors is missing");
  const std::string& dtype = arguments.text("dtype");
  require(dtype == "f32" || dtype == "f64" || dtype.empty(), "--dtype: '{}' is neither f32 nor f64", dtype);
  const std::unique_ptr<Transformer> model =
      dtype.empty() ? load_model(checkpoint) : load_model(checkpoint, dtype == "f64" ? DType::f64 : DType::f32);
  const TokenBatch batch = read_tokens(arguments.text("tokens"), model->config().vocab);
  model->set_composed(arguments.flag("composed"));

  // Once for the logits, once for the loss, whose fused head keeps no logits.
  Tape tape, logits_tape;
  const NoGrad nothing_recorded(logits_tape);
  const Variable logits = model->logits(logits_tape, batch.inputs, batch.sequences, batch.length);
  const Variable loss = model->loss(tape, batch.inputs, batch.targets, batch.sequences, batch.length);
  tape.backward(loss);

  std::vector<NamedTensor> tensors = {{"loss", loss.value().reshape({})}, {"logits", logits.value()}};
  for (Parameter* parameter : model->parameters()) {
    if (!parameter->has_gradient) parameter->gradient.zero();  // no path to the loss
    tensors.push_back({"grad." + parameter->name, parameter->gradient});
  }
  write_safetensors(arguments.text("out"), tensors, {{"config", model->config().json()}});
  const double nats = loss.value().item();
  arguments.say("loss {:.9f} nats/token over {} sequences of {} tokens; {} gradients written to {}\n", nats,
                batch.sequences, batch.length, tensors.size() - 2, arguments.text("out"));
  arguments.print_json(
      {{"loss", nats}, {"sequences", batch.sequences}, {"length", batch.length}, {"out", arguments.text("out")}});
  return 0;
}

const RegisterCommand registered(
    {.name = "grads",
     .summary = "loss, logits and the gradient of every parameter on a given batch",
     .positionals = {{"CKPT", "a run folder or a checkpoint file"}},
     .options = {{"tokens", "FILE", "",
                  "text: one sequence of T+1 token ids a line; the first T are the input, the last T the targets"},
                 {"out", "FILE", "", "the safetensors file: loss [], logits [B,T,V], grad.NAME for each parameter"},
                 {"dtype", "TYPE", "", "f32 or f64 (default: the checkpoint's)"},
                 flag_option("composed", "the composed twins of all fused operations")},
     .run = run,
     .details = "The loss is the mean cross-entropy in nats over all targets."});

}  // namespace

}  // namespace sextant
