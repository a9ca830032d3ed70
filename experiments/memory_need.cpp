#include "experiments/memory_need.h"

#include <malloc.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "core/error.h"
#include "core/host.h"
#include "core/kernels.h"
#include "core/tree_sum.h"
#include "experiments/progress.h"

namespace sextant {

namespace {

constexpr double allowance = 1.02;  // of what is available: the estimate is no closer than that

// What products at full size and the writing of files take besides: 4 to 12 MB at ten shapes from 58 MB to 1.7 GB, with
// two threads.
constexpr double besides = 8e6;

// The value at x of the polynomial through the points, by Neville's scheme.
double carried_on(std::vector<double> at, std::vector<double> values, double x) {
  for (size_t step = 1; step < at.size(); ++step)
    for (size_t i = 0; i + step < at.size(); ++i)
      values[i] = ((x - at[i + step]) * values[i] + (at[i] - x) * values[i + 1]) / (at[i] - at[i + step]);
  return values[0];
}

// What the tape of one step of `batch` sequences of `length` tokens holds at most.
double measured_step(Transformer& model, int64_t batch, int64_t length) {
  Tape tape;
  const std::vector<int32_t> tokens(static_cast<size_t>(batch * length), 0);
  tape.backward(model.loss(tape, tokens, tokens, batch, length));
  for (Parameter* parameter : model.parameters()) parameter->has_gradient = false;
  return static_cast<double>(tape.arena().peak());
}

// Sizes to measure at: `wanted` itself where it is small, else a few from which to carry on.
std::vector<double> places(int64_t wanted, int64_t first, int count) {
  std::vector<double> all;
  for (int i = 0; i < count && first << i < wanted; ++i) all.push_back(static_cast<double>(first << i));
  return static_cast<int>(all.size()) < count ? std::vector<double>{static_cast<double>(wanted)} : all;
}

// What the largest product of a backward pass over so many tokens copies its input into.
double product_bytes(Transformer& model, int64_t tokens) {
  int64_t most = 0;
  for (const Parameter* parameter : model.parameters())
    if (const Tensor& value = parameter->value; value.rank() == 2)
      most =
          std::max(most, kernels::linear_backward_weight_scratch(tokens, value.size(0), value.size(1), value.dtype()));
  return static_cast<double>(most);
}

double step_bytes(Transformer& model, const TrainOptions& options, int64_t sequences) {
  // From 8 pairs of sequence and head on, and 8 tiles of 64 queries among the heads, attention works in one way.
  const int64_t heads = model.config().heads;
  const std::vector<double> batches = places(sequences, std::max<int64_t>(1, (8 + heads - 1) / heads), 2);
  const std::vector<double> lengths =
      places(options.context, options.composed ? 32 : std::max<int64_t>(128, 512 / heads), options.composed ? 3 : 2);
  std::vector<double> by_batch;
  for (const double batch : batches) {
    std::vector<double> by_length;
    for (const double length : lengths)
      by_length.push_back(measured_step(model, static_cast<int64_t>(batch), static_cast<int64_t>(length)));
    by_batch.push_back(carried_on(lengths, by_length, static_cast<double>(options.context)));
  }
  return carried_on(batches, by_batch, static_cast<double>(sequences)) +
         product_bytes(model, sequences * options.context);
}

double weight_bytes(Transformer& model) {
  double bytes = 0;
  for (const Parameter* parameter : model.parameters()) bytes += static_cast<double>(parameter->value.bytes());
  return bytes;
}

// Sequences of the largest part, and how many buffers of the gradient's size its sum takes.
struct Parts {
  int64_t sequences;
  double buffers;
};
Parts parts_of(const TrainOptions& options, int64_t accumulate, int ranks) {
  Parts parts{options.batch / ranks, ranks > 1 || accumulate > 1 ? 1.0 : 0.0};
  for (; accumulate > 1 && parts.sequences > 1; accumulate = (accumulate + 1) / 2) {
    parts.sequences = tree_left(parts.sequences);
    parts.buffers += 1;
  }
  return parts;
}

double resident() {
  ::malloc_trim(0);
  return static_cast<double>(resident_memory());
}

AvailableMemory share_of_this_rank(const Sharing& sharing) {
  AvailableMemory available = available_memory();
  available.bytes /= static_cast<uint64_t>(sharing.on_this_host);
  if (sharing.on_this_host > 1) available.bound += fmt::format(", shared by {} ranks", sharing.on_this_host);
  return available;
}

}  // namespace

void require_memory_for_model(const ModelConfig& config, const Sharing& sharing) {
  config.check();
  const double width = static_cast<double>(config.width), layers = static_cast<double>(config.layers);
  const double parameters =
      layers * (12 * width * width + 13 * width) + (config.tied ? 1 : 2) * static_cast<double>(config.vocab) * width;
  const double need = 4 * parameters * static_cast<double>(size_of(config.dtype));  // value, gradient, two moments
  const AvailableMemory available = share_of_this_rank(sharing);
  if (need <= static_cast<double>(available.bytes)) return;
  fail_environment(
      "out of memory: a model of {} parameters needs {} for weights, gradients and moments, {} are available ({}); "
      "lower "
      "--width or --layers",
      count_text(parameters), bytes_text(need), bytes_text(static_cast<double>(available.bytes)), available.bound);
}

MemoryNeed training_need(Transformer& model, const TrainOptions& options, const Sharing& sharing) {
  const Parts parts = parts_of(options, options.accumulate, sharing.ranks);
  MemoryNeed need;
  need.activations = step_bytes(model, options, parts.sequences);
  need.sums = parts.buffers * weight_bytes(model);
  need.process = resident() + besides;  // after measuring: with the kernels' own memory
  return need;
}

void require_memory(const MemoryNeed& need, Transformer& model, const TrainOptions& options, const Sharing& sharing) {
  const AvailableMemory available = share_of_this_rank(sharing);
  const double left = static_cast<double>(available.bytes), more = need.total() - need.process;
  if (more <= left * allowance) return;
  std::string way = "--batch, --context or --width";
  for (int64_t accumulate = 2; accumulate <= options.batch / sharing.ranks; accumulate *= 2) {
    const Parts parts = parts_of(options, accumulate, sharing.ranks);
    if (step_bytes(model, options, parts.sequences) + parts.buffers * weight_bytes(model) > left) continue;
    if (accumulate > options.accumulate)
      way = fmt::format("the memory of a step by --accumulate {}, or {}", accumulate, way);
    break;
  }
  fail_environment(
      "out of memory: training needs about {} more than it has ({} for a step of {} sequences of {} tokens, {} for "
      "sums of "
      "gradients), {} are available ({}); lower {}",
      bytes_text(more), bytes_text(need.activations), parts_of(options, options.accumulate, sharing.ranks).sequences,
      options.context, bytes_text(need.sums), bytes_text(left), available.bound, way);
}

MemoryNeed evaluation_need(Transformer& model, int64_t length, int64_t piece) {
  MemoryNeed need;
  if (length <= 4 * piece) return need;
  const std::vector<int32_t> tokens(static_cast<size_t>(piece), 0);
  std::vector<double> lengths, tapes, tables;
  Cache cache = model.new_cache(1, 3 * piece, 0);
  for (int64_t read = piece; read <= 3 * piece; read += piece) {
    Tape tape;
    model.extend(tape, cache, tokens, piece);
    if (read == piece) continue;  // the first piece is worked off in another way
    lengths.push_back(static_cast<double>(read));
    tapes.push_back(static_cast<double>(tape.arena().peak()));
  }
  need.activations = carried_on(lengths, tapes, static_cast<double>(length));
  // Tables grow by doubling, and outgrown ones stay.
  const double grown =
      static_cast<double>(std::bit_ceil(static_cast<uint64_t>(length / piece)) * static_cast<uint64_t>(piece));
  const double per_position = static_cast<double>(model.table_bytes()) / static_cast<double>(7 * piece);  // 1 + 2 + 4
  need.cache = static_cast<double>(model.new_cache(1, length).bytes()) + 2 * per_position * grown;
  need.process = resident();
  return need;
}

void require_memory_for_length(Transformer& model, int64_t length, int64_t piece, const Sharing& sharing) {
  const MemoryNeed need = evaluation_need(model, length, piece);
  const AvailableMemory available = share_of_this_rank(sharing);
  const double left = static_cast<double>(available.bytes), more = need.total() - need.process;
  if (more <= left * allowance) return;
  fail_environment(
      "out of memory: reading {} tokens needs about {} more than the program has ({} for keys, values and tables, {} "
      "for a "
      "piece of {} tokens), {} are available ({}); lower --lengths or --piece",
      length, bytes_text(more), bytes_text(need.cache), bytes_text(need.activations), piece, bytes_text(left),
      available.bound);
}

}  // namespace sextant
