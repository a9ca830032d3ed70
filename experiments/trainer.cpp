#include "experiments/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "experiments/interrupt.h"
#include "experiments/manifest.h"

namespace sextant {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::vector<std::string> metrics_columns = {"step", "tokens",    "seconds",          "loss",
                                                  "lr",   "grad_norm", "tokens_per_second"};
const std::vector<std::string> validation_columns = {"step", "tokens", "loss", "standard_error"};
constexpr const char* options_key = "trainer";  // in the checkpoint's metadata
constexpr const char* data_hash_key = "data_sha256";
constexpr int64_t validation_windows = 32;

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string metrics_path(const TrainOptions& options) {
  return options.out + "/metrics.csv";
}
std::string validation_path(const TrainOptions& options) {
  return options.out + "/validation.csv";
}
std::string checkpoint_file(const TrainOptions& options) {
  return options.out + "/checkpoint.safetensors";
}

// The `seconds` of the last line of metrics.csv, 0 when it has none.
double last_seconds(const std::string& path) {
  const std::string text = read_text(path);
  const size_t last = text.rfind('\n', text.size() - std::min<size_t>(2, text.size()));
  if (last == std::string::npos) return 0;
  const size_t comma = text.find(',', text.find(',', last) + 1);
  return comma == std::string::npos ? 0 : std::strtod(text.c_str() + comma + 1, nullptr);
}

const std::string& metadata_value(const TrainingState& state, const std::string& path, const char* key) {
  const auto found = state.extra.find(key);
  require(found != state.extra.end(), "{}: the metadata has no key '{}': it was not written by `sextant train`", path,
          key);
  return found->second;
}

json parse_options(const std::string& text, const std::string& path) {
  const json options = json::parse(text, nullptr, false);
  require(!options.is_discarded(), "{}: the metadata key '{}' is not JSON", path, options_key);
  return options;
}

void add_to(const Tensor& sum, const Tensor& x) {
  dispatch(sum.dtype(), [&](auto type) {
    using T = decltype(type);
    T* const out = sum.data<T>();
    const T* const in = x.data<T>();
    for (int64_t i = 0; i < sum.elements(); ++i) out[i] += in[i];
  });
}

}  // namespace

std::unique_ptr<Trainer> Trainer::start(const TrainOptions& options, const std::string& command_line) {
  options.check();
  return std::unique_ptr<Trainer>(new Trainer(options, command_line, false));
}

std::unique_ptr<Trainer> Trainer::resume(const TrainOptions& options, const std::string& command_line) {
  return std::unique_ptr<Trainer>(new Trainer(options, command_line, true));
}

TrainOptions Trainer::stored_options(const std::string& folder) {
  const std::string path = folder + "/checkpoint.safetensors";
  require(fs::exists(path), "{}: no checkpoint to resume from; start the run with --out instead of --resume", path);
  const SafetensorsFile file = SafetensorsFile::open(path);
  const auto found = file.metadata().find(options_key);
  require(found != file.metadata().end(), "{}: the metadata has no key '{}': it was not written by `sextant train`",
          path, options_key);
  TrainOptions options = train_options_from_json(parse_options(found->second, path), path);
  read_housekeeping(folder, options);
  options.out = folder;
  return options;
}

Trainer::Trainer(const TrainOptions& options, const std::string& command_line, bool resuming) : options_(options) {
  corpus_ = open_corpus(options_.data);
  if (!resuming) model_ = std::make_unique<Transformer>(options_.model(corpus_->vocabulary()));
  batches_ = std::make_unique<Batches>(*corpus_, Split::train, options_.batch, options_.context, options_.seed);
  batches_->fill(0, batch_);
  const json environment = environment_json();
  lock_.emplace(options_.out);
  if (resuming) {
    load();
    note_resumption(options_.out, steps_done_, command_line, environment);
  } else {
    require(!fs::exists(checkpoint_file(options_)),
            "--out {}: there is a run already; use --resume {} to go on with it, or another --out", options_.out,
            options_.out);
    optimizer_ = std::make_unique<AdamW>(model_->parameters(), AdamWOptions{.weight_decay = options_.weight_decay});
    write_manifest(options_.out, options_, *model_, *corpus_, command_line, environment);
    metrics_ = CsvAppender::create(metrics_path(options_), metrics_columns);
    if (options_.eval_every > 0) validation_ = CsvAppender::create(validation_path(options_), validation_columns);
  }
  model_->set_composed(options_.composed);
  parameters_ = model_->parameters();
  if (!resuming) save();
}

Trainer::~Trainer() = default;

void Trainer::load() {
  const std::string path = checkpoint_file(options_);
  model_ = load_model(path);
  optimizer_ = std::make_unique<AdamW>(model_->parameters(), AdamWOptions{.weight_decay = options_.weight_decay});
  const TrainingState state = load_training_state(path, *optimizer_);
  const std::string& hash = metadata_value(state, path, data_hash_key);
  require(hash == corpus_->sha256(), "{}: trained on data with SHA-256 {}, but {} now has {}", path, hash,
          options_.data, corpus_->sha256());
  steps_done_ = state.step;
  metrics_ = CsvAppender::resume(metrics_path(options_), metrics_columns, steps_done_);
  if (options_.eval_every > 0 || fs::exists(validation_path(options_)))
    validation_ = CsvAppender::resume(validation_path(options_), validation_columns, steps_done_);
  seconds_ = last_seconds(metrics_path(options_));
}

StepResult Trainer::step() {
  StepResult result;
  batches_->fill(steps_done_, batch_);
  result.loss = forward_backward();
  const double parts = static_cast<double>(options_.accumulate);
  result.gradient_norm = gradient_norm(parameters_) / parts;
  require_finite(result.loss, result.gradient_norm);
  const double clipped =
      options_.clip > 0 && result.gradient_norm > options_.clip ? options_.clip / result.gradient_norm : 1.0;
  result.lr = options_.schedule().at(steps_done_);
  optimizer_->step(result.lr, clipped / parts);
  tape_.reset();
  ++steps_done_;
  return result;
}

// The mean loss of one of the batch's `accumulate` parts, on a fresh tape.
Variable Trainer::part_loss(int64_t part) {
  const int64_t sequences = options_.batch / options_.accumulate;
  const size_t tokens = static_cast<size_t>(sequences * options_.context);
  tape_.reset();
  const auto piece = [&](const std::vector<int32_t>& all) {
    return std::span(all).subspan(static_cast<size_t>(part) * tokens, tokens);
  };
  return model_->loss(tape_, piece(batch_.inputs), piece(batch_.targets), sequences, options_.context);
}

// The mean loss of the batch. Afterwards the parameters hold `accumulate` times its gradient.
double Trainer::forward_backward() {
  double sum = 0;
  for (int64_t part = 0; part < options_.accumulate; ++part) {
    const Variable loss = part_loss(part);
    sum += loss.value().item();
    require_finite(sum, 0);
    tape_.backward(loss);
    if (options_.accumulate > 1) merge_gradients(part);
  }
  return sum / static_cast<double>(options_.accumulate);
}

// Adds the gradients of the parts along the tree of core/tree_sum.h, a binary counter of partial sums: the batch's own
// tree where a part is a power of two of sequences. After the last part everything is in the parameters' gradients.
void Trainer::merge_gradients(int64_t part) {
  const bool last = part + 1 == options_.accumulate;
  const auto add_waiting = [&](size_t level) {
    for (size_t p = 0; p < parameters_.size(); ++p)
      if (parameters_[p]->has_gradient) add_to(parameters_[p]->gradient, waiting_[level][p]);
  };
  size_t level = 0;
  for (; (part >> level) % 2 == 1; ++level) add_waiting(level);
  if (last) {
    for (size_t higher = level + 1; (part >> higher) > 0; ++higher)
      if ((part >> higher) % 2 == 1) add_waiting(higher);
    return;
  }
  if (waiting_.size() == level) {
    waiting_.emplace_back();
    for (const Parameter* parameter : parameters_)
      waiting_[level].push_back(empty(partial_sums_, parameter->value.shape(), parameter->value.dtype()));
  }
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (!parameters_[p]->has_gradient) continue;
    waiting_[level][p].copy_from(parameters_[p]->gradient);
    parameters_[p]->has_gradient = false;
  }
}

void Trainer::require_finite(double loss, double norm) {
  if (std::isfinite(loss) && std::isfinite(norm)) return;
  std::string culprit = tape_.first_nonfinite();
  if (std::isfinite(loss)) {
    const auto found = std::ranges::find_if(
        parameters_, [](const Parameter* p) { return p->has_gradient && !all_finite(p->gradient); });
    culprit = found == parameters_.end() ? "the norm of all gradients" : "the gradient of " + (*found)->name;
  }
  const double value = std::isfinite(loss) ? norm : loss;
  throw Error(
      Status::check_failed,
      fmt::format("step {}: the {} is {}, first in {}; {} keeps the last good weights; a lower --lr or --clip may help",
                  steps_done_ + 1, std::isfinite(loss) ? "gradient norm" : "loss",
                  std::isnan(value) ? "NaN" : fmt::format("{}", value), culprit, checkpoint_file(options_)));
}

TrainResult Trainer::train(Progress& progress) {
  TrainResult result;
  {
    const Interrupt interrupt;
    int64_t saved = steps_done_;
    while (steps_done_ < options_.steps && Interrupt::signal() == 0) {
      const Clock::time_point start = Clock::now();
      const StepResult made = step();
      log(made, seconds_since(start));
      result.loss = made.loss;
      if (progress.due(steps_done_, options_.steps))
        progress.update(
            steps_done_, options_.steps,
            fmt::format("step {}/{}  loss {:.4f}  lr {:.2e}  {} tokens/s", steps_done_, options_.steps, made.loss,
                        made.lr, count_text(static_cast<double>(options_.tokens_per_step()) / seconds_since(start))));
      if (due(options_.eval_every)) validate(progress);
      if (due(options_.save_every)) save(), saved = steps_done_;
    }
    progress.finish();
    if (saved != steps_done_) save();
    result.signal = Interrupt::signal();
  }
  result.step = steps_done_;
  result.tokens = steps_done_ * options_.tokens_per_step();
  result.seconds = seconds_;
  result.finished = steps_done_ == options_.steps;
  return result;
}

TrainResult Trainer::run(Progress& progress) {
  TrainResult result = train(progress);
  if (!result.finished) return result;
  const Split split = held_out_split(*corpus_);
  if (corpus_->size(split) <= options_.context) {
    progress.line(fmt::format("no evaluation: the {} split has only {} tokens", name_of(split), corpus_->size(split)));
    return result;
  }
  std::vector<int64_t> lengths = default_lengths(*corpus_, split, options_.context);
  lengths.resize(std::min<size_t>(lengths.size(), 3));
  tape_.reset();
  result.evaluation = evaluate(*model_, *corpus_, {.lengths = lengths, .windows = 16, .split = split}, progress);
  write_atomically(options_.out + "/eval.json", to_json(*result.evaluation).dump(2) + "\n");
  return result;
}

void Trainer::log(const StepResult& result, double seconds) {
  seconds_ += seconds;
  const int64_t tokens = options_.tokens_per_step();
  metrics_->row(steps_done_, steps_done_ * tokens, seconds_, result.loss, result.lr, result.gradient_norm,
                static_cast<double>(tokens) / seconds);
}

void Trainer::validate(Progress& progress) {
  const Split split = held_out_split(*corpus_);
  Progress silent(nullptr);
  const Evaluation evaluation = evaluate(
      *model_, *corpus_,
      {.lengths = {options_.context}, .windows = validation_windows, .split = split, .sectors = false}, silent);
  const LengthResult& held_out = evaluation.lengths.front();
  validation_->row(steps_done_, steps_done_ * options_.tokens_per_step(), held_out.nats, held_out.standard_error);
  progress.line(fmt::format("step {}  held-out loss {:.4f} +- {:.4f} nats/token", steps_done_, held_out.nats,
                            held_out.standard_error));
}

// Weights whose next loss is not finite are not worth keeping: they must not replace good ones.
void Trainer::require_good_weights() {
  for (const Parameter* parameter : parameters_)
    if (!all_finite(parameter->value))
      throw Error(
          Status::check_failed,
          fmt::format("step {}: {} is not finite any more; {} keeps the last good weights; a lower --lr may help",
                      steps_done_, parameter->name, checkpoint_file(options_)));
  batches_->fill(steps_done_, batch_);
  require_finite(part_loss(0).value().item(), 0);
  tape_.reset();
}

void Trainer::save() {
  require_good_weights();
  metrics_->sync();
  if (validation_) validation_->sync();
  TrainingState state{.step = steps_done_, .tokens = steps_done_ * options_.tokens_per_step(), .extra = {}};
  state.extra[options_key] = to_json(options_).dump();
  state.extra[data_hash_key] = corpus_->sha256();
  // Numbers are a function of (seed, stream, step): the next step is all the state there is.
  state.extra["rng"] = json{{"algorithm", "Philox4x32-10"}, {"seed", options_.seed}}.dump();
  state.extra["data_position"] = json{{"next_step", steps_done_}, {"sequences_a_step", options_.batch}}.dump();
  save_checkpoint(checkpoint_file(options_), *model_, optimizer_.get(), state);
  if (options_.keep > 0 && steps_done_ > 0) keep_older_checkpoint();
}

// Under a name with its step, as a second link to the same file; the oldest ones go.
void Trainer::keep_older_checkpoint() {
  const auto name = [&](int64_t step) { return fmt::format("{}/checkpoint-{:09}.safetensors", options_.out, step); };
  std::error_code error;
  fs::remove(name(steps_done_), error);
  fs::create_hard_link(checkpoint_file(options_), name(steps_done_), error);
  if (error) fs::copy_file(checkpoint_file(options_), name(steps_done_), fs::copy_options::overwrite_existing, error);
  if (error) fail_environment("cannot write {}: {}", name(steps_done_), error.message());
  std::vector<fs::path> kept;
  for (const auto& entry : fs::directory_iterator(options_.out))
    if (entry.path().filename().string().starts_with("checkpoint-")) kept.push_back(entry.path());
  std::ranges::sort(kept);
  for (size_t i = 0; i + static_cast<size_t>(options_.keep) < kept.size(); ++i) fs::remove(kept[i], error);
}

}  // namespace sextant
