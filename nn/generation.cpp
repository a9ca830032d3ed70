#include "nn/generation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/kernels.h"
#include "core/random.h"

namespace sextant {

namespace {

// One token from softmax(logits / temperature), among the top_k most likely. Ties go to the lower id.
int32_t choose(const Tensor& logits, const SamplingOptions& options, int64_t position, std::vector<int32_t>& order,
               std::vector<double>& weights) {
  const int64_t vocabulary = logits.elements();
  order.resize(static_cast<size_t>(vocabulary));
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    const double x = logits.flat(a), y = logits.flat(b);
    return x != y ? x > y : a < b;
  };
  const int64_t kept = options.top_k > 0 ? std::min(options.top_k, vocabulary) : vocabulary;
  if (options.temperature == 0) return *std::min_element(order.begin(), order.end(), likelier);
  if (kept < vocabulary) std::partial_sort(order.begin(), order.begin() + kept, order.end(), likelier);
  order.resize(static_cast<size_t>(kept));
  const double most = logits.flat(*std::min_element(order.begin(), order.end(), likelier));
  weights.clear();
  double total = 0;
  for (int32_t token : order) {
    total += std::exp((logits.flat(token) - most) / options.temperature);
    weights.push_back(total);
  }
  const double point = Random(options.seed, "sample").uniform(static_cast<uint64_t>(position)) * total;
  const auto hit = std::upper_bound(weights.begin(), weights.end(), point);
  return order[static_cast<size_t>(
      std::min<std::ptrdiff_t>(hit - weights.begin(), static_cast<std::ptrdiff_t>(kept) - 1))];
}

}  // namespace

std::vector<int32_t> generate(Transformer& model, std::span<const int32_t> prompt, int64_t count,
                              const SamplingOptions& options, const std::function<bool(int32_t)>& emit) {
  require(!prompt.empty(), "generation needs a prompt of at least one token");
  require(options.temperature >= 0 && std::isfinite(options.temperature), "temperature is {}, must be 0 or more",
          options.temperature);
  require(options.top_k >= 0, "top-k is {}, must be 0 (all) or more", options.top_k);
  require(count >= 0, "tokens is {}, must be 0 or more", count);
  std::vector<int32_t> sequence(prompt.begin(), prompt.end()), order;
  std::vector<double> weights;
  Tape tape;
  const auto length = [&] { return static_cast<int64_t>(sequence.size()); };
  Cache cache = model.new_cache(1, length() + count);
  std::span<const int32_t> fresh(sequence);
  for (int64_t made = 0; made < count; ++made) {
    // Under dynamic scaling every key depends on the length: the whole sequence is read anew.
    if (!model.cache_holds(length()) && cache.length() > 0) {
      cache = model.new_cache(1, length() + count - made);
      fresh = sequence;
    }
    const Variable logits = model.extend(tape, cache, fresh, static_cast<int64_t>(fresh.size()), true);
    const int32_t token = choose(logits.value(), options, length(), order, weights);
    tape.reset();
    sequence.push_back(token);
    fresh = std::span<const int32_t>(sequence).last(1);
    if (emit && !emit(token)) break;
  }
  sequence.erase(sequence.begin(), sequence.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
  return sequence;
}

std::vector<double> sequence_losses(Transformer& model, Tape& tape, std::span<const int32_t> tokens, int64_t piece) {
  require(tokens.size() >= 2 && piece >= 1,
          "a loss needs at least two tokens and pieces of at least one, got {} and {}", tokens.size(), piece);
  const int64_t count = static_cast<int64_t>(tokens.size()) - 1;
  std::vector<double> losses(static_cast<size_t>(count));
  Cache cache = model.new_cache(1, count, count);
  for (int64_t first = 0; first < count; first += piece) {
    const TapeScope scope(tape);
    const int64_t length = std::min(piece, count - first);
    const Variable logits =
        model.extend(tape, cache, tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(length)), length);
    const Tensor rows = logits.value().reshape({length, model.config().vocab});
    const Tensor loss = Tensor::wrap(losses.data() + first, {length}, DType::f64);
    const Tensor lse = tape.empty({length}, logits.dtype());
    kernels::cross_entropy(rows, tokens.subspan(static_cast<size_t>(first + 1), static_cast<size_t>(length)), loss,
                           lse);
  }
  return losses;
}

}  // namespace sextant
