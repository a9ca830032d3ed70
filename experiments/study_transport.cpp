#include "experiments/study_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>

#include "core/host.h"
#include "core/parallel.h"
#include "data/batch.h"
#include "experiments/study_transport_measure.h"

namespace sextant::study {

using nlohmann::json;
using Group = TransportVariant::Group;

const std::vector<TransportVariant>& transport_variants() {
  static const std::vector<TransportVariant> all = {
      {"rope", "rope", Group::main, false, 1.0},
      {"random-qk", "transport(kind=random)", Group::main, false, 1.05},
      {"random-qkv", "transport(kind=random,values=1)", Group::main, false, 1.1},
      {"alibi", "alibi", Group::main, true, 1.0},
      {"learned-qkv", "transport(kind=learned,values=1)", Group::main, false, 1.2},
      {"learned-qk", "transport(kind=learned)", Group::main, false, 1.1},
      {"gate", "gate", Group::main, true, 1.05},
      {"learned-qk+alibi", "transport(kind=learned)+alibi", Group::main, true, 1.1},
      {"householder", "transport(kind=householder)", Group::main, false, 1.6},
      {"path", "transport(kind=path)", Group::main, false, 2.2},
      {"learned-qkv+alibi", "transport(kind=learned,values=1)+alibi", Group::combination, true, 1.2},
      {"learned-qkv+gate", "transport(kind=learned,values=1)+gate", Group::combination, true, 1.2},
      {"jordan+gate", "jordan(order=2,mode=scaled)+gate", Group::combination, true, 1.1},
      {"learned-qkv+pj-bias", "pj-bias+transport(kind=learned,values=1)", Group::combination, true, 1.3},
      // A control: as many random angles, but the same at a position whatever stands there.
      {"random-qk-by-position", "transport(kind=random,by=position)", Group::combination, false, 1.05}};
  return all;
}

namespace {

std::vector<int64_t> doublings(int64_t first, int64_t last) {
  std::vector<int64_t> all;
  for (int64_t length = first; length <= last; length *= 2) all.push_back(length);
  return all;
}

constexpr int64_t evaluation_windows = 2;

int64_t evaluation_tokens(const Plan& plan) {
  return plan.choose<int64_t>(1024, 131072, 1 << 20);
}

std::vector<uint64_t> seeds_of(const Plan& plan, const TransportVariant& variant) {
  return plan.seeds(variant.group == Group::main ? plan.choose<int64_t>(1, 2, 3) : 1);
}

Training training_of(const Plan& plan, const TransportVariant& variant, const std::string& data, uint64_t seed) {
  const TransportScale scale = transport_scale(plan);
  Training training{.options = scale.options,
                    .lengths = scale.lengths,
                    .windows = evaluation_windows,
                    .tokens = evaluation_tokens(plan),
                    .cost_factor = variant.cost_factor};
  training.options.data = data;
  training.options.position = variant.spec;
  training.options.seed = seed;
  const FarMassOptions far{.lengths = scale.lengths, .near = scale.near};
  training.measurement = {{"far_mass", {{"near", far.near}, {"queries", far.queries}, {"windows", far.windows}}},
                          {"decoherence", scale.decoherence}};
  training.measure = [far, scale](Transformer& model, const Corpus& corpus, Progress& progress) -> json {
    return {{"far_mass", measure_far_mass(model, corpus, far, progress)},
            {"decoherence", measure_decoherence(model, corpus, scale.decoherence, progress)}};
  };
  return training;
}

}  // namespace

TransportScale transport_scale(const Plan& plan) {
  TransportScale scale;
  scale.context = plan.choose<int64_t>(64, 512, 512);
  scale.lengths = doublings(scale.context, plan.choose<int64_t>(512, 65536, 65536));
  scale.near = {scale.context / 4, scale.context};
  scale.decoherence = doublings(scale.context, plan.choose<int64_t>(256, 8192, 2048));
  TrainOptions& options = scale.options;
  options.layers = plan.choose<int64_t>(2, 4, 16);
  options.width = plan.choose<int64_t>(32, 128, 768);
  options.heads = plan.choose<int64_t>(2, 8, 12);
  options.context = scale.context;
  options.batch = plan.choose<int64_t>(4, 16, 32);
  options.accumulate = plan.choose<int64_t>(1, 1, 8);
  options.steps = plan.choose<int64_t>(30, 1250, 40000);  // 7.7k, 10.2M, 655M tokens
  options.lr = plan.choose(2e-3, 2e-3, 3e-4);
  options.warmup = plan.choose<int64_t>(3, 100, 1000);
  options.save_every = plan.choose<int64_t>(0, 50, 20);
  return scale;
}

StudyCorpora transport_corpora(const Plan& plan) {
  return study_corpora(plan, {plan.scale == Scale::paper ? "openwebtext" : "war-and-peace"},
                       transport_scale(plan).context);
}

std::vector<Piece> transport_pieces(const Plan& plan, const std::vector<std::string>& wanted) {
  const StudyCorpus corpus = transport_corpora(plan).all.front();
  std::vector<Piece> pieces;
  const size_t most = seeds_of(plan, transport_variants().front()).size();
  for (size_t n = 0; n < most; ++n)
    for (const TransportVariant& variant : transport_variants()) {
      const std::vector<uint64_t> seeds = seeds_of(plan, variant);
      if (n >= seeds.size() || (!wanted.empty() && std::ranges::count(wanted, variant.name) == 0)) continue;
      pieces.push_back(training_piece(fmt::format("{}/{}/seed-{}", variant.name, corpus.key, seeds[n]),
                                      training_of(plan, variant, corpus.data, seeds[n])));
    }
  return pieces;
}

// ---- how long, how much ---------------------------------------------------------------------------------------------

namespace {

struct StepCost {
  double operations = 0, parameters = 0, activations = 0;  // activations: bytes on the tape
  double seconds = 0, processor_seconds = 0;               // as it goes now; of all threads together
};

// Forward and backward of one sequence, the second of two: the first allocates.
StepCost step_cost(const TransportScale& scale, int64_t layers) {
  TrainOptions options = scale.options;
  options.layers = layers;
  Transformer model(options.model(256));
  Tape tape;
  const std::vector<int32_t> tokens(static_cast<size_t>(scale.context), 65);
  StepCost cost{.operations = model.training_flops_per_token(scale.context) * static_cast<double>(scale.context),
                .parameters = static_cast<double>(model.parameter_count())};
  for (int step = 0; step < 2; ++step) {
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t processor = std::clock();
    tape.reset();
    tape.backward(model.loss(tape, tokens, tokens, 1, scale.context));
    cost.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    cost.processor_seconds = static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC;
    cost.activations = static_cast<double>(tape.arena().used());
  }
  return cost;
}

}  // namespace

std::string transport_forecast(const Plan& plan, const std::vector<Piece>& left) {
  double operations = 0;  // training and evaluation, see training_piece
  int64_t models = 0;
  for (const Piece& piece : left)
    if (piece.settings.contains("training")) operations += 1e12 * piece.cost, ++models;
  if (models == 0) return "";
  const TransportScale scale = transport_scale(plan);
  const TrainOptions& options = scale.options;
  const StepCost one = step_cost(scale, 1), two = step_cost(scale, 2);
  const auto deep = [&](double StepCost::*part) {  // what grows with the layers alone, not with the machine's mood
    return one.*part + static_cast<double>(options.layers - 1) * (two.*part - one.*part);
  };
  // Value, gradient and two moments of each parameter; with `accumulate`, sums of gradients that wait for their partner
  // along the tree.
  const double copies = 4 + std::ceil(std::log2(static_cast<double>(options.accumulate)));
  const double memory = 4 * copies * deep(&StepCost::parameters) +
                        static_cast<double>(options.batch / options.accumulate) * deep(&StepCost::activations);
  const double cache = 8 * static_cast<double>(options.layers * options.width * scale.lengths.back());  // keys, values
  const double rope = static_cast<double>(options.batch * options.steps) * deep(&StepCost::operations);
  const double quiet = two.processor_seconds / static_cast<double>(threads()) / two.operations,
               now = two.seconds / two.operations;
  return fmt::format(
      "{} layers of width {}, {} parameters, {} tokens a model. At the rate of two such layers on {} threads, to train "
      "one model with rope takes {} ({} at the present load), everything that is left ({} models, trained and "
      "evaluated) {} ({}). Memory: {} to train, {} to evaluate at {} tokens, of the {} here.",
      options.layers, options.width, count_text(deep(&StepCost::parameters)),
      count_text(static_cast<double>(options.tokens_per_step() * options.steps)), threads(),
      duration_text(quiet * rope), duration_text(now * rope), models, duration_text(quiet * operations),
      duration_text(now * operations), bytes_text(memory), bytes_text(4 * deep(&StepCost::parameters) + cache),
      scale.lengths.back(), bytes_text(static_cast<double>(total_memory())));
}

// ---- for the reports ------------------------------------------------------------------------------------------------

std::vector<std::string> transport_notes(const Plan& plan) {
  const TransportScale scale = transport_scale(plan);
  std::vector<std::string> notes = transport_corpora(plan).notes;
  if (plan.scale == Scale::paper)
    notes.push_back(
        "The model is the paper's (16 layers, width 768, context 512). Bytes stand in for its tokens; heads, batch, "
        "learning rate and number of tokens are not in the summary we have, and are ours.");
  else
    notes.push_back(fmt::format(
        "The paper trains 16 layers of width 768 on OpenWebText, this run {} layers of width {}, {} heads, on {} "
        "tokens (bytes) of one text, at context {}: a byte is about a quarter of a word piece, so the same "
        "number of tokens reaches over less text here, and a model this small relies on its nearest tokens.",
        scale.options.layers, scale.options.width, scale.options.heads,
        count_text(static_cast<double>(scale.options.tokens_per_step() * scale.options.steps)),
        scale.context == 512 ? "512" : fmt::format("{} (the paper: 512)", scale.context)));
  return notes;
}

Sample over_results(const Results& results, const std::string& variant,
                    const std::function<double(const json&)>& number) {
  std::vector<double> values;
  for (const json* result : results_of(results, variant))
    if (const double value = number(*result); std::isfinite(value)) values.push_back(value);
  return sample_of(values);
}

}  // namespace sextant::study
