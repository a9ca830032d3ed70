#include "experiments/audit_against.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "core/error.h"
#include "core/safetensors.h"
#include "nn/checkpoint.h"

namespace sextant {

namespace {

struct Tokens {
  std::vector<int32_t> inputs, targets;
  int64_t batch = 0, length = 0;
};

Tokens tokens_of(const SafetensorsFile& file, int64_t vocabulary) {
  require(file.has("tokens"), "{}: no tensor 'tokens' [B, T+1] of integers, on which the gradients were computed",
          file.path());
  const std::string& dtype = file.dtype("tokens");
  const std::vector<int64_t>& sizes = file.sizes("tokens");
  require((dtype == "I64" || dtype == "I32") && sizes.size() == 2 && sizes[0] >= 1 && sizes[1] >= 2,
          "{}: tensor 'tokens' must be I64 or I32 of shape [B, T+1] with at least 2 ids a sequence, it is {} with {} "
          "dimensions",
          file.path(), dtype, sizes.size());
  const std::span<const std::byte> bytes = file.bytes("tokens");
  Tokens tokens;
  tokens.batch = sizes[0];
  tokens.length = sizes[1] - 1;
  for (int64_t i = 0; i < sizes[0] * sizes[1]; ++i) {
    int64_t id = 0;
    int32_t narrow = 0;
    if (dtype == "I64") {
      std::memcpy(&id, bytes.data() + i * 8, 8);
    } else {
      std::memcpy(&narrow, bytes.data() + i * 4, 4);
      id = narrow;
    }
    require(id >= 0 && id < vocabulary, "{}: tensor 'tokens', entry {}: id {} is outside the vocabulary 0..{}",
            file.path(), i, id, vocabulary - 1);
    const int64_t column = i % sizes[1];
    if (column < tokens.length) tokens.inputs.push_back(static_cast<int32_t>(id));
    if (column > 0) tokens.targets.push_back(static_cast<int32_t>(id));
  }
  return tokens;
}

// The model whose weights the file holds by name, among other things.
std::unique_ptr<Transformer> model_in(SafetensorsFile& file, std::optional<DType> dtype) {
  require(file.metadata().contains("config"),
          "{}: no 'config' in the metadata; name a checkpoint or a file of `sextant grads` to compare with, or write "
          "the configuration there",
          file.path());
  ModelConfig config = ModelConfig::from_json(file.metadata("config"), file.path());
  if (dtype) config.dtype = *dtype;
  auto model = std::make_unique<Transformer>(config);
  const auto read = [&](const std::string& name, const Tensor& target) {
    require(file.has(name), "{}: tensor '{}' of shape {} is missing", file.path(), name, target.shape().text());
    const Tensor source = file.tensor(name);
    require(source.shape() == target.shape(), "{}: tensor '{}' has shape {}, its configuration says {}", file.path(),
            name, source.shape().text(), target.shape().text());
    target.copy_from(source);
  };
  for (const Parameter* parameter : model->parameters()) read(parameter->name, parameter->value);
  for (const PositionConstant& constant : model->constants()) read(constant.name, constant.value);
  return model;
}

using Named = std::map<std::string, Tensor>;

// loss, logits and grad.NAME, in `keep`.
Named computed(Transformer& model, const Tokens& tokens, Arena& keep) {
  Tape tape, logits_tape;
  const NoGrad nothing_recorded(logits_tape);
  const Variable logits = model.logits(logits_tape, tokens.inputs, tokens.batch, tokens.length);
  const Variable loss = model.loss(tape, tokens.inputs, tokens.targets, tokens.batch, tokens.length);
  tape.backward(loss);
  Named result{{"loss", converted(keep, loss.value().reshape({}), DType::f64)},
               {"logits", converted(keep, logits.value(), DType::f64)}};
  for (Parameter* parameter : model.parameters()) {
    if (!parameter->has_gradient) parameter->gradient.zero();  // no path to the loss
    result["grad." + parameter->name] = converted(keep, parameter->gradient, DType::f64);
  }
  return result;
}

Named results_in(SafetensorsFile& file, Arena& keep) {
  Named result;
  for (const std::string& name : file.names())
    if (name == "loss" || name == "logits" || name.starts_with("grad."))
      result[name] = converted(keep, file.tensor(name), DType::f64);
  require(std::ranges::any_of(result, [](const auto& one) { return one.first.starts_with("grad."); }),
          "{}: no tensor named grad.NAME in it", file.path());
  return result;
}

TensorDifference difference(const std::string& name, const Tensor& ours, const Tensor& theirs,
                            const std::string& path) {
  require(ours.shape() == theirs.shape(), "{}: tensor '{}' has shape {}, ours has {}", path, name,
          theirs.shape().text(), ours.shape().text());
  TensorDifference result{name, ours.shape(), 0, 0, 0, 0};
  double largest = 0, worst = -1;
  for (int64_t i = 0; i < ours.elements(); ++i) {
    const double a = ours.flat(i), b = theirs.flat(i), apart = std::isfinite(a - b) ? std::abs(a - b) : INFINITY;
    largest = std::max({largest, std::abs(a), std::abs(b)});
    if (apart <= worst) continue;
    worst = apart;
    result.index = i;
    result.ours = a;
    result.theirs = b;
  }
  result.error = worst > 0 ? (std::isfinite(worst) ? worst / largest : INFINITY) : 0;
  return result;
}

}  // namespace

GradientComparison compare_gradients(const std::string& path, const std::string& ours, std::optional<DType> dtype) {
  SafetensorsFile file = SafetensorsFile::open(path);
  Arena keep;
  const Named theirs = results_in(file, keep);
  GradientComparison result;
  result.theirs = path;
  Named mine;
  std::unique_ptr<Transformer> model;
  if (ours.empty()) {
    result.ours = "the model in the file";
    model = model_in(file, dtype);
  } else {
    result.ours = checkpoint_path(ours);
    SafetensorsFile other = SafetensorsFile::open(result.ours);
    const bool gradients =
        std::ranges::any_of(other.names(), [](const std::string& name) { return name.starts_with("grad."); });
    if (gradients)
      mine = results_in(other, keep);
    else
      model = load_model(result.ours, dtype);
  }
  if (model) {
    result.dtype = model->config().dtype;
    mine = computed(*model, tokens_of(file, model->config().vocab), keep);
  }
  for (const auto& [name, tensor] : theirs) {
    if (mine.contains(name))
      result.tensors.push_back(difference(name, mine[name], tensor, path));
    else
      result.only_theirs.push_back(name);
  }
  for (const auto& [name, tensor] : mine)
    if (!theirs.contains(name) && name.starts_with("grad.")) result.only_ours.push_back(name);
  std::ranges::stable_sort(result.tensors,
                           [](const TensorDifference& a, const TensorDifference& b) { return a.error > b.error; });
  return result;
}

}  // namespace sextant
