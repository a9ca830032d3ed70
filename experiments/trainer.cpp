#include "experiments/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "core/cpu.h"
#include "core/error.h"
#include "core/host.h"
#include "core/sha256.h"
#include "experiments/interrupt.h"
#include "experiments/kept_checkpoints.h"
#include "experiments/manifest.h"
#include "experiments/memory.h"

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
constexpr std::array stop_signals = {SIGINT, SIGTERM};

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

// The weights as one SHA-256, to compare them between ranks.
std::string weights_hash(Transformer& model) {
  Sha256 hash;
  for (const Parameter* parameter : model.parameters())
    dispatch(parameter->value.dtype(), [&](auto type) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(parameter->value.data<decltype(type)>());
      hash.update({bytes, parameter->value.bytes()});
    });
  return hash.hex();
}

}  // namespace

std::unique_ptr<Trainer> Trainer::start(const TrainOptions& options, const std::string& command_line,
                                        Communicator& ranks) {
  together(ranks, [&] { options.check(); });
  return std::unique_ptr<Trainer>(new Trainer(options, command_line, false, ranks));
}

std::unique_ptr<Trainer> Trainer::resume(const TrainOptions& options, const std::string& command_line,
                                         Communicator& ranks) {
  return std::unique_ptr<Trainer>(new Trainer(options, command_line, true, ranks));
}

TrainOptions Trainer::stored_options(const std::string& folder) {
  const std::string path = folder + "/checkpoint.safetensors";
  const SafetensorsFile file = open_to_resume(path, folder);
  const auto found = file.metadata().find(options_key);
  require(found != file.metadata().end(), "{}: the metadata has no key '{}': it was not written by `sextant train`",
          path, options_key);
  TrainOptions options = train_options_from_json(parse_options(found->second, path), path);
  read_housekeeping(folder, options);
  options.out = folder;
  return options;
}

Trainer::Trainer(const TrainOptions& options, const std::string& command_line, bool resuming, Communicator& ranks)
    : options_(options), ranks_(ranks) {
  const Sharing sharing{ranks_.size(), ranks_on_this_host(ranks_)};
  together(ranks_, [&] { open(resuming, sharing); });  // a refused run leaves no folder behind
  const json environment = environment_json();
  on_first(ranks_, [&] { lock_.emplace(options_.out); });
  together(ranks_, [&] {
    if (resuming) {
      load(sharing);
    } else {
      require(!fs::exists(checkpoint_file(options_)) && kept_checkpoints(options_.out).empty(),
              "--out {}: there is a run already; use --resume {} to go on with it, or another --out", options_.out,
              options_.out);
    }
  });
  check_ranks();
  on_first(ranks_, [&] { start_files(resuming, command_line, environment); });
  const int64_t sequences = options_.batch / ranks_.size();
  if (ranks_.size() > 1 || options_.accumulate > 1) sum_.emplace(ranks_, sequences, options_.accumulate);
  if (!resuming) save();
}

// The data; and the model of a new run.
void Trainer::open(bool resuming, const Sharing& sharing) {
  const int64_t size = sharing.ranks;
  require((size & (size - 1)) == 0 && options_.batch % size == 0,
          "{} ranks: the batch of {} sequences is shared by a power of two of ranks that divides it", size,
          options_.batch);
  require(options_.accumulate <= options_.batch / size, "--accumulate {}: a rank has only {} sequences of the batch",
          options_.accumulate, options_.batch / size);
  corpus_ = open_corpus(options_.data);
  batches_ = std::make_unique<Batches>(*corpus_, Split::train, options_.batch, options_.context, options_.seed);
  batches_->fill(0, batch_);
  require_memory_for_model(options_.model(corpus_->vocabulary()), sharing);
  if (!resuming) take(std::make_unique<Transformer>(options_.model(corpus_->vocabulary())), sharing);
}

void Trainer::take(std::unique_ptr<Transformer> model, const Sharing& sharing) {
  model_ = std::move(model);
  optimizer_ = std::make_unique<AdamW>(model_->parameters(), AdamWOptions{.weight_decay = options_.weight_decay});
  model_->set_composed(options_.composed);
  parameters_ = model_->parameters();
  memory_need_ = training_need(*model_, options_, sharing);
  require_memory(memory_need_, *model_, options_, sharing);
}

// One rank of another build, or with other data, would spoil the sums without a sign.
void Trainer::check_ranks() {
  if (ranks_.size() == 1) return;
  TrainOptions decisive = options_;
  decisive.data = "";  // may lie elsewhere; its content counts
  require_agreement(ranks_, {{"program", fmt::format("{} {} {}", SEXTANT_VERSION, SEXTANT_BUILD_TYPE, compiler())},
                             {"program file (SHA-256)", program_hash()},
                             {"instruction set (SEXTANT_ISA)", name_of(isa())},
                             {"configuration", to_json(decisive).dump()},
                             {"training data (SHA-256)", corpus_->sha256()},
                             {"step", std::to_string(steps_done_)},
                             {"weights (SHA-256)", weights_hash(*model_)}});
}

// What rank 0 writes besides the checkpoint.
void Trainer::start_files(bool resuming, const std::string& command_line, const json& environment) {
  if (resuming) {
    metrics_ = CsvAppender::resume(metrics_path(options_), metrics_columns, steps_done_);
    if (options_.eval_every > 0 || fs::exists(validation_path(options_)))
      validation_ = CsvAppender::resume(validation_path(options_), validation_columns, steps_done_);
    seconds_ = last_seconds(metrics_path(options_));
    note_resumption(options_.out, steps_done_, command_line, environment);
  } else {
    write_manifest(options_.out, options_, *model_, *corpus_, command_line, environment);
    metrics_ = CsvAppender::create(metrics_path(options_), metrics_columns);
    if (options_.eval_every > 0) validation_ = CsvAppender::create(validation_path(options_), validation_columns);
  }
}

Trainer::~Trainer() = default;

void Trainer::load(const Sharing& sharing) {
  const std::string path = checkpoint_file(options_);
  take(load_model(path), sharing);
  const TrainingState state = load_training_state(path, *optimizer_);
  const std::string& hash = metadata_value(state, path, data_hash_key);
  require(hash == corpus_->sha256(), "{}: trained on data with SHA-256 {}, but {} now has {}", path, hash,
          options_.data, corpus_->sha256());
  steps_done_ = state.step;
}

StepResult Trainer::step() {
  StepResult result;
  batches_->fill(steps_done_, batch_);
  result.loss = forward_backward();
  result.gradient_norm = gradient_norm(parameters_);
  require_finite(result.loss, result.gradient_norm);
  const double clipped =
      options_.clip > 0 && result.gradient_norm > options_.clip ? options_.clip / result.gradient_norm : 1.0;
  result.lr = options_.schedule().at(steps_done_);
  optimizer_->step(result.lr, clipped);
  tape_.reset();
  ++steps_done_;
  return result;
}

// The mean loss of the batch; afterwards the parameters hold its gradient.
double Trainer::forward_backward() {
  const int64_t counted = counted_targets();
  double nats = 0;
  if (sum_) {
    for (const GradientSum::Part& part : sum_->parts()) part_backward(part, counted);
    nats = sum_->numbers()[0];
    for (const size_t i : {0, 1})
      if (sum_->numbers()[1 + i] > 0) signal_ = stop_signals[i];
  } else {
    nats = part_backward({.sequences = {0, options_.batch}, .merges = 0, .last = true}, counted);
  }
  return nats / static_cast<double>(std::max<int64_t>(1, counted));
}

int64_t Trainer::counted_targets() const {
  return std::ranges::count_if(batch_.targets, [](int32_t target) { return target >= 0; });
}

// The share of some of this rank's sequences in the mean loss of the batch, on a fresh tape.
Variable Trainer::part_loss(const TreePiece& sequences, BatchPart& share) {
  tape_.reset();
  const int64_t first = ranks_.rank() * (options_.batch / ranks_.size()) + sequences.first;
  const auto piece = [&](const std::vector<int32_t>& all) {
    return std::span(all).subspan(static_cast<size_t>(first * options_.context),
                                  static_cast<size_t>(sequences.leaves * options_.context));
  };
  return model_->loss(tape_, piece(batch_.inputs), piece(batch_.targets), sequences.leaves, options_.context, &share);
}

// Forward and backward of some of this rank's sequences, of a batch of `counted` targets; the sum of their losses,
// nats.
double Trainer::part_backward(const GradientSum::Part& part, int64_t counted) {
  BatchPart share{.counted = counted};
  const Variable loss = part_loss(part.sequences, share);
  if (!sum_) {
    require_finite(share.nats, 0);
    tape_.backward(loss);
    return share.nats;
  }
  std::array numbers{share.nats, 0.0, 0.0};
  for (const size_t i : {0, 1}) numbers[1 + i] = Interrupt::signal() == stop_signals[i] ? 1 : 0;
  sum_->begin(part, numbers);
  tape_.backward(loss, *sum_);
  return share.nats;
}

// A signal that stops the run: this process's own or, over ranks, one that any of them had got when the last step
// began.
int Trainer::stop_signal() {
  if (ranks_.size() == 1) signal_ = Interrupt::signal();
  return signal_;
}

void Trainer::require_finite(double loss, double norm) {
  if (std::isfinite(loss) && std::isfinite(norm)) return;
  std::string culprit;  // of the lowest rank that sees one; with --accumulate only in the last part
  for (const std::string& each : ranks_.gather(tape_.first_nonfinite()))
    if (culprit.empty()) culprit = each;
  if (std::isfinite(loss)) {
    const auto found = std::ranges::find_if(
        parameters_, [](const Parameter* p) { return p->has_gradient && !all_finite(p->gradient); });
    culprit = found == parameters_.end() ? "the norm of all gradients" : "the gradient of " + (*found)->name;
  }
  const double value = std::isfinite(loss) ? norm : loss;
  if (culprit.empty()) culprit = "an earlier part of the batch";
  throw AgreedError(
      Status::check_failed,
      fmt::format("step {}: the {} is {}, first in {}; {} keeps the last good weights; a lower --lr or --clip may help",
                  steps_done_ + 1, std::isfinite(loss) ? "gradient norm" : "loss",
                  std::isnan(value) ? "NaN" : fmt::format("{}", value), culprit, checkpoint_file(options_)));
}

TrainResult Trainer::train(Progress& progress) {
  TrainResult result;
  {
    const Interrupt interrupt;
    const Patience patience(static_cast<double>(options_.mpi_timeout), [] { return Interrupt::signal() != 0; });
    int64_t saved = steps_done_;
    while (steps_done_ < options_.steps && stop_signal() == 0) {
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
    result.signal = stop_signal();
  }
  result.step = steps_done_;
  result.tokens = steps_done_ * options_.tokens_per_step();
  result.seconds = seconds_;
  result.peak_bytes = std::max(peak_bytes_, peak_memory());
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
  result.evaluation =
      evaluate(*model_, *corpus_, {.lengths = lengths, .windows = 16, .split = split, .ranks = &ranks_, .tape = &tape_},
               progress);
  on_first(ranks_, [&] { write_atomically(options_.out + "/eval.json", to_json(*result.evaluation).dump(2) + "\n"); });
  return result;
}

void Trainer::log(const StepResult& result, double seconds) {
  seconds_ += seconds;
  if (!metrics_) return;  // not rank 0
  const int64_t tokens = options_.tokens_per_step();
  metrics_->row(steps_done_, steps_done_ * tokens, seconds_, result.loss, result.lr, result.gradient_norm,
                static_cast<double>(tokens) / seconds);
}

void Trainer::validate(Progress& progress) {
  const Split split = held_out_split(*corpus_);
  peak_bytes_ = std::max(peak_bytes_, peak_memory());  // an evaluation counts its own anew
  Progress silent(nullptr);
  const Evaluation evaluation = evaluate(*model_, *corpus_,
                                         {.lengths = {options_.context},
                                          .windows = validation_windows,
                                          .split = split,
                                          .sectors = false,
                                          .ranks = &ranks_,
                                          .tape = &tape_},
                                         silent);
  const LengthResult& held_out = evaluation.lengths.front();
  if (!validation_) return;
  validation_->row(steps_done_, steps_done_ * options_.tokens_per_step(), held_out.nats, held_out.standard_error);
  progress.line(fmt::format("step {}  held-out loss {:.4f} +- {:.4f} nats/token", steps_done_, held_out.nats,
                            held_out.standard_error));
}

void Trainer::save() {
  on_first(ranks_, [&] { write_checkpoint(); });
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
  BatchPart share{.counted = counted_targets()};
  part_loss(sum_ ? sum_->parts().front().sequences : TreePiece{0, options_.batch}, share);
  require_finite(share.nats, 0);
  tape_.reset();
}

void Trainer::write_checkpoint() {
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
  const std::vector<std::string> kept = kept_checkpoints(options_.out);
  for (size_t i = 0; i + static_cast<size_t>(options_.keep) < kept.size(); ++i) fs::remove(kept[i], error);
}

}  // namespace sextant
