// sextant train: trains one model.
#include <filesystem>

#include "core/error.h"
#include "experiments/command.h"
#include "experiments/manifest.h"
#include "experiments/trainer.h"

namespace sextant {

namespace {

// Whatever stands on the command line replaces what is in `options`.
void apply(const Arguments& arguments, TrainOptions& options) {
  const auto size = [&](const char* name, int64_t& value) {
    if (arguments.given(name)) value = arguments.integer(name, 1, TrainOptions::most_size);
  };
  const auto steps = [&](const char* name, int64_t& value) {
    if (arguments.given(name)) value = arguments.integer(name, 0, TrainOptions::most_steps);
  };
  const auto number = [&](const char* name, double& value) {
    if (arguments.given(name)) value = arguments.number(name, 0);
  };
  if (arguments.given("data")) options.data = data_name(arguments.text("data"));
  if (arguments.given("position")) options.position = arguments.text("position");
  size("layers", options.layers);
  size("width", options.width);
  size("heads", options.heads);
  size("context", options.context);
  size("batch", options.batch);
  size("accumulate", options.accumulate);
  steps("steps", options.steps);
  steps("warmup", options.warmup);
  steps("eval-every", options.eval_every);
  steps("save-every", options.save_every);
  steps("keep", options.keep);
  if (arguments.given("mpi-timeout")) options.mpi_timeout = arguments.integer("mpi-timeout", 0, 1'000'000);
  number("lr", options.lr);
  number("weight-decay", options.weight_decay);
  number("clip", options.clip);
  if (arguments.given("seed")) options.seed = arguments.seed();
  if (arguments.flag("untied")) options.untied = true;
  if (arguments.flag("composed")) options.composed = true;
  if (arguments.given("dtype")) {
    const std::string& name = arguments.text("dtype");
    require(name == "f32" || name == "f64", "--dtype: '{}' is neither f32 nor f64", name);
    options.dtype = name == "f64" ? DType::f64 : DType::f32;
  }
  if (arguments.given("tokens")) {
    require(!arguments.given("steps"), "--tokens and --steps both set the length of the run: give one of them");
    const int64_t tokens = arguments.integer("tokens", 0, int64_t{1} << 60);
    options.steps = (tokens + options.tokens_per_step() - 1) / options.tokens_per_step();
  }
  // A short run warms up over less, unless asked otherwise.
  if (!arguments.given("warmup")) options.warmup = std::min(options.warmup, options.steps / 10);
}

// The options on a --resume command line may repeat what the run was started with, not change it.
void require_same(const TrainOptions& stored, const TrainOptions& asked, const std::string& folder) {
  const nlohmann::json was = to_json(stored), is = to_json(asked);
  for (const auto& [key, value] : was.items()) {
    if (key == "data") continue;  // compared by content, when it is open
    require(value == is.at(key),
            "--{} {}: the run in {} was started with {}; leave it out to resume, or start another run with --out", key,
            is.at(key).dump(), folder, value.dump());
  }
}

std::unique_ptr<Trainer> make_trainer(const Arguments& arguments) {
  TrainOptions options;
  if (!arguments.given("resume")) {
    apply(arguments, options);
    options.out = arguments.given("out") ? arguments.text("out") : default_run_folder(options);
    return Trainer::start(options, arguments.command_line(), world());
  }
  const std::string& folder = arguments.text("resume");
  require(!arguments.given("out") || std::filesystem::path(arguments.text("out")).lexically_normal() ==
                                         std::filesystem::path(folder).lexically_normal(),
          "--out {}: a resumed run stays in its folder {}", arguments.text("out"), folder);
  Communicator& ranks = world();
  together(ranks, [&] {
    const TrainOptions stored = Trainer::stored_options(folder);
    options = stored;
    apply(arguments, options);
    require_same(stored, options, folder);
  });
  return Trainer::resume(options, arguments.command_line(), ranks);
}

nlohmann::json result_json(const Trainer& trainer, const TrainResult& result) {
  nlohmann::json object = {{"out", trainer.options().out}, {"step", result.step},       {"tokens", result.tokens},
                           {"loss", result.loss},          {"seconds", result.seconds}, {"finished", result.finished}};
  object["memory"] = {{"estimated_bytes", trainer.memory_need().total()}, {"peak_bytes", result.peak_bytes}};
  if (result.evaluation) object["evaluation"] = to_json(*result.evaluation);
  return object;
}

int run(const Arguments& arguments) {
  const std::unique_ptr<Trainer> trainer = make_trainer(arguments);
  const TrainOptions& options = trainer->options();
  const int64_t first = trainer->steps_done();
  arguments.say("{} parameters, {} layers, width {}, {} heads, position {}, context {}\n",
                trainer->model().parameter_count(), options.layers, options.width, options.heads, options.position,
                options.context);
  arguments.say("{}: {} training tokens, vocabulary {}; {} steps of {} tokens{}; run folder {}\n",
                trainer->corpus().name(), count_text(static_cast<double>(trainer->corpus().size(Split::train))),
                trainer->corpus().vocabulary(), options.steps, options.tokens_per_step(),
                first > 0 ? fmt::format(", from step {} on", first) : "", options.out);
  const MemoryNeed& need = trainer->memory_need();
  arguments.say("memory: about {}, of which {} for a step\n", bytes_text(need.total()),
                bytes_text(need.activations + need.sums));
  Progress progress(arguments.quiet() ? nullptr : arguments.output());
  const TrainResult result = trainer->run(progress);
  if (!result.finished)
    arguments.say("stopped and saved at step {}; go on with: sextant train --resume {}\n", result.step, options.out);
  if (result.evaluation) arguments.say("\n{}", table(*result.evaluation));
  arguments.print_json(result_json(*trainer, result));
  return result.finished ? 0 : 128 + result.signal;
}

std::string text_of(double value) {
  return fmt::format("{}", value);
}
std::string text_of(int64_t value) {
  return fmt::format("{}", value);
}

std::vector<OptionInfo> option_list() {
  const TrainOptions defaults;
  return {
      {"data", "NAME_OR_PATH", defaults.data, "a corpus (`sextant data list`), a file or a folder"},
      {"position", "SPEC", defaults.position,
       "the position strategy: terms joined by +, such as rope(scaling=yarn,factor=4)+affine"},
      {"layers", "N", text_of(defaults.layers), "blocks"},
      {"width", "C", text_of(defaults.width), "width of the residual stream, a multiple of the heads"},
      {"heads", "H", text_of(defaults.heads), "attention heads"},
      {"context", "T", text_of(defaults.context), "training length, tokens"},
      {"batch", "B", text_of(defaults.batch), "sequences a step"},
      {"accumulate", "N", text_of(defaults.accumulate),
       "work the batch off in N parts (rounded up to a power of two), for less memory; the same bits"},
      {"steps", "N", text_of(defaults.steps), "length of the run"},
      {"tokens", "N", "", "the same in tokens, instead of --steps; rounded up to whole steps"},
      {"lr", "RATE", text_of(defaults.lr), "peak learning rate; a cosine brings it down to a tenth"},
      {"warmup", "N", text_of(defaults.warmup), "steps of linear warm-up, at most a tenth of the run unless given"},
      {"weight-decay", "X", text_of(defaults.weight_decay), "decoupled weight decay of the matrices"},
      {"clip", "X", text_of(defaults.clip), "largest gradient norm, 0 for none"},
      {"dtype", "TYPE", name_of(defaults.dtype), "f32 or f64"},
      flag_option("untied", "a head of its own instead of the embedding's weight"),
      flag_option("composed", "the composed twins of all fused operations: slow, obviously right"),
      {"out", "DIR", "", "the run folder (default: runs/DATA-POSITION-seedS)"},
      {"resume", "DIR", "", "go on from the folder's checkpoint, bit for bit as if the run had never stopped"},
      {"eval-every", "N", text_of(defaults.eval_every), "steps between held-out losses (validation.csv), 0 for none"},
      {"save-every", "N", text_of(defaults.save_every), "steps between checkpoints, 0: only at the start and the end"},
      {"keep", "N", text_of(defaults.keep),
       "how many checkpoints to keep as checkpoint-STEP.safetensors, the newest among them: 2 for one older"},
      {"mpi-timeout", "SECONDS", text_of(defaults.mpi_timeout),
       "over ranks: how long one waits for another in a step, a validation or a save before the job ends with "
       "status 3; 0: for ever"},
  };
}

const RegisterCommand registered(
    {.name = "train",
     .summary = "trains one model",
     .options = option_list(),
     .run = run,
     .details =
         "The run folder gets manifest.json, metrics.csv, checkpoint.safetensors, eval.json and, with "
         "--eval-every, validation.csv.\n"
         "SIGINT and SIGTERM finish the step, save, and exit with 130 and 143. A loss or gradient that is not "
         "finite stops the run\n"
         "with exit status 1, naming the step and the operation; the last good checkpoint stays.\n"
         "`mpirun -np N sextant train ...` shares each batch over N processes, a power of two that divides it. "
         "Threads, --accumulate and\n"
         "ranks change no bit of the result (with --composed: up to rounding), so a run may be resumed with others "
         "than it was started with."});

}  // namespace

}  // namespace sextant
