#include "experiments/bench_row.h"

#include <algorithm>
#include <optional>

#include "core/cpu.h"
#include "core/parallel.h"
#include "experiments/memory.h"
#include "positional/spec.h"

namespace sextant {

using nlohmann::json;

namespace {

// The peer's name for a SPEC, none when it has no such strategy.
std::optional<std::string> peer_position(const std::string& spec) {
  const std::vector<TermSpec> terms = parse_spec(spec);
  for (const char* name : {"none", "rope", "alibi"})
    if (terms.size() == 1 && terms[0].text() == parse_spec(name)[0].text()) return name;
  return std::nullopt;
}

double tokens_per_second(const BenchShape& shape, double seconds_per_step) {
  return static_cast<double>(shape.tokens_per_step()) / seconds_per_step;
}

// One row of the table: a shape with a strategy.
class Row {
 public:
  Row(const BenchOptions& options, const BenchShape& shape, const std::string& spec, TorchPeer* peer)
      : options_(options), shape_(shape), spec_(spec), peer_(peer_position(spec) ? peer : nullptr) {
    result_ = {{"shape", shape.name},  {"vocab", shape.vocab}, {"layers", shape.layers},
               {"width", shape.width}, {"heads", shape.heads}, {"context", shape.context},
               {"batch", shape.batch}, {"position", spec},     {"dtype", name_of(options.dtype)},
               {"threads", threads()}};
  }

  json measure() {
    reset_peak_memory();
    TrainingBench ours({.vocab = shape_.vocab,
                        .layers = shape_.layers,
                        .width = shape_.width,
                        .heads = shape_.heads,
                        .context = shape_.context,
                        .position = spec_,
                        .dtype = options_.dtype,
                        .data = "",
                        .seed = options_.seed},
                       shape_.batch);
    build_peer();
    train(ours);
    result_["parameters"] = ours.model().parameter_count();
    if (options_.profile) profile(ours);
    if (!options_.sample_at.empty()) sample(ours.model());
    return result_;
  }

 private:
  // Leaves in modes_ those that work.
  void build_peer() {
    if (peer_ == nullptr) return;
    const json built = peer_->demand({{"do", "build"},
                                      {"vocab", shape_.vocab},
                                      {"layers", shape_.layers},
                                      {"width", shape_.width},
                                      {"heads", shape_.heads},
                                      {"context", shape_.context},
                                      {"batch", shape_.batch},
                                      {"position", *peer_position(spec_)},
                                      {"dtype", name_of(options_.dtype)},
                                      {"threads", threads()},
                                      {"seed", options_.seed}});
    result_["peer_parameters"] = built.at("parameters");
    for (const std::string& mode : options_.peer_modes) {
      const json warm = peer_->ask({{"do", "warm"}, {"mode", mode}});
      if (warm.contains("error")) {
        result_["peer_" + mode + "_error"] = warm["error"];
        continue;
      }
      result_["peer_" + mode + "_peak_memory_bytes"] = warm.at("peak_memory_bytes");
      modes_.push_back(mode);
    }
  }

  void train(TrainingBench& ours) {
    std::vector<Contender> contenders;
    contenders.push_back({[&ours](int64_t steps) { return ours.seconds(steps); }});
    for (const std::string& mode : modes_)
      contenders.push_back({[this, &mode](int64_t steps) {
        return peer_->demand({{"do", "train"}, {"mode", mode}, {"steps", steps}}).at("seconds").get<double>();
      }});
    double peak = 0;  // the best of all rounds: what the machine can do when nobody else is at it
    take_turns(contenders, options_.steps, options_.seconds,
               [&] { peak = std::max(peak, fma_peak_gflops(threads(), options_.dtype)); });
    const Contender& mine = contenders[0];
    const double speed = tokens_per_second(shape_, mine.median()), fastest = tokens_per_second(shape_, mine.best());
    const double flops = ours.model().training_flops_per_token(shape_.context);
    result_["rounds"] = mine.seconds_per_step.size();
    result_["seconds_per_step"] = mine.median();
    result_["tokens_per_second"] = speed;
    result_["best_tokens_per_second"] = fastest;
    result_["flops_per_token"] = flops;
    result_["gflops"] = speed * flops * 1e-9;
    result_["peak_gflops"] = peak;
    result_["share_of_peak"] = speed * flops * 1e-9 / peak;
    result_["peak_memory_bytes"] = peak_memory();
    compare(std::span(contenders).subspan(1), speed, fastest);
  }

  // The ratio is to the better of the peer's modes.
  void compare(std::span<const Contender> peers, double speed, double fastest) {
    if (options_.peer_modes.empty()) return;
    for (const char* key :
         {"peer_mode", "peer_tokens_per_second", "peer_best_tokens_per_second", "ratio", "best_ratio"})
      result_[key] = nullptr;  // where there is nothing to compare with
    if (peers.empty()) return;
    for (size_t i = 0; i < peers.size(); ++i)
      result_["peer_" + modes_[i] + "_tokens_per_second"] = tokens_per_second(shape_, peers[i].median());
    const size_t better = static_cast<size_t>(std::ranges::min_element(peers, {}, &Contender::median) - peers.begin());
    const auto least = std::ranges::min(peers, {}, &Contender::best).best();
    result_["peer_mode"] = modes_[better];
    result_["peer_tokens_per_second"] = tokens_per_second(shape_, peers[better].median());
    result_["peer_best_tokens_per_second"] = tokens_per_second(shape_, least);
    result_["ratio"] = speed / result_["peer_tokens_per_second"].get<double>();
    result_["best_ratio"] = fastest / result_["peer_best_tokens_per_second"].get<double>();
  }

  void profile(TrainingBench& ours) {
    const double wanted = std::max(options_.seconds, 1.0) / 4;  // seconds
    const double seconds_per_step = result_["seconds_per_step"].get<double>();
    const int64_t steps =
        options_.steps > 0 ? options_.steps : std::max<int64_t>(1, static_cast<int64_t>(wanted / seconds_per_step));
    const TrainingBench::Profile profile = ours.profile(steps);
    json rows = json::array();
    for (const TrainingBench::Operation& operation : profile.operations)
      rows.push_back({{"operation", operation.name},
                      {"calls", operation.calls},
                      {"forward_seconds", operation.forward_seconds},
                      {"backward_seconds", operation.backward_seconds},
                      {"gflops", operation.flops > 0 ? json(operation.flops * 1e-9 / operation.seconds()) : json()},
                      {"share", operation.seconds() / profile.step_seconds}});
    result_["profile"] = {{"seconds_per_step", profile.step_seconds}, {"operations", rows}};
  }

  void sample(Transformer& model) {
    result_["sampling"] = json::array();
    for (const int64_t position : options_.sample_at) result_["sampling"].push_back(sample_at(model, position));
  }

  json sample_at(Transformer& model, int64_t position) {
    constexpr int rounds = 3;
    const int64_t count = options_.sample_tokens;
    json row = {{"position", position}};
    Contender mine{[&](int64_t) { return sampling_seconds(model, position, count, options_.seed); }};
    std::vector<Contender> peers(modes_.size());
    for (int round = 0; round < rounds; ++round) {
      mine.seconds_per_step.push_back(mine.run(1));
      for (size_t i = 0; i < peers.size(); ++i) {
        const json answer =
            peer_->ask({{"do", "sample"}, {"mode", modes_[i]}, {"position", position}, {"tokens", count}});
        if (answer.contains("error"))
          row["peer_" + modes_[i] + "_error"] = answer["error"];
        else
          peers[i].seconds_per_step.push_back(answer.at("seconds"));
      }
    }
    const auto speed = [&](const Contender& contender) { return static_cast<double>(count) / contender.median(); };
    row["tokens_per_second"] = speed(mine);
    if (!options_.peer_modes.empty()) row["peer_tokens_per_second"] = row["ratio"] = nullptr;
    double best = 0;
    for (size_t i = 0; i < peers.size(); ++i) {
      if (peers[i].seconds_per_step.empty()) continue;
      row["peer_" + modes_[i] + "_tokens_per_second"] = speed(peers[i]);
      best = std::max(best, speed(peers[i]));
    }
    if (best > 0) {
      row["peer_tokens_per_second"] = best;
      row["ratio"] = speed(mine) / best;
    }
    return row;
  }

  const BenchOptions& options_;
  const BenchShape shape_;
  const std::string spec_;
  TorchPeer* const peer_;  // null when it has no part in this row
  std::vector<std::string> modes_;
  json result_;
};

}  // namespace

json bench_row(const BenchOptions& options, const BenchShape& shape, const std::string& spec, TorchPeer* peer) {
  return Row(options, shape, spec, peer).measure();
}

}  // namespace sextant
