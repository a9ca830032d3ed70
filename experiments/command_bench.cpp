// sextant bench: how fast this machine trains and samples, against its own peak and against PyTorch.
#include <array>
#include <optional>

#include "core/cpu.h"
#include "core/error.h"
#include "core/parallel.h"
#include "experiments/bench_row.h"
#include "experiments/command.h"
#include "experiments/progress.h"
#include "positional/spec.h"

namespace sextant {

using nlohmann::json;

namespace {

// Splits at the commas outside parentheses.
std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> words(1);
  int depth = 0;
  for (const char c : text) {
    depth += (c == '(') - (c == ')');
    if (c == ',' && depth == 0)
      words.emplace_back();
    else
      words.back() += c;
  }
  return words;
}

std::vector<BenchShape> read_shapes(const Arguments& arguments) {
  std::vector<BenchShape> shapes;
  const auto set = [&](const char* option, int64_t& value, int64_t most) {
    if (arguments.given(option)) value = arguments.integer(option, 1, most);
  };
  for (const std::string& name : split_list(arguments.text("shape"))) {
    BenchShape shape = bench_shape(name);
    const BenchShape named = shape;
    set("layers", shape.layers, 1024);
    set("width", shape.width, 1 << 16);
    set("heads", shape.heads, 1 << 16);
    set("context", shape.context, 1 << 20);
    set("batch", shape.batch, 1 << 16);
    set("vocab", shape.vocab, 1 << 20);
    const auto sizes = [](const BenchShape& s) {
      return std::array{s.vocab, s.layers, s.width, s.heads, s.context, s.batch};
    };
    if (sizes(shape) != sizes(named)) shape.name = "custom";
    shapes.push_back(shape);
  }
  return shapes;
}

BenchOptions read_options(const Arguments& arguments) {
  BenchOptions options;
  options.shapes = read_shapes(arguments);
  options.positions = split_list(arguments.text(arguments.given("position") ? "position" : "positions"));
  for (const std::string& spec : options.positions) parse_spec(spec);
  const std::string& dtype = arguments.text("dtype");
  require(dtype == "f32" || dtype == "f64", "--dtype: '{}' is neither f32 nor f64", dtype);
  options.dtype = dtype == "f64" ? DType::f64 : DType::f32;
  if (arguments.given("steps")) options.steps = arguments.integer("steps", 1, 1 << 20);
  options.seconds = arguments.number("seconds", 0, 1e6);
  const std::string& peer = arguments.text("peer");
  require(peer == "torch" || peer.empty(), "--peer: '{}' is no program to compare with; there is 'torch'", peer);
  if (!peer.empty()) options.peer_modes = split_list(arguments.text("peer-modes"));
  for (const std::string& mode : options.peer_modes)
    require(mode == "eager" || mode == "compile", "--peer-modes: '{}' is neither eager nor compile", mode);
  if (arguments.flag("sample") || arguments.given("sample-at"))
    options.sample_at = arguments.integers("sample-at", 1, 1 << 24);
  options.sample_tokens = arguments.integer("sample-tokens", 1, 1 << 20);
  options.profile = arguments.flag("profile");
  options.seed = arguments.seed();
  return options;
}

std::string share_text(const json& share) {
  return share.is_number() ? fmt::format("{:.0f}%", 100 * share.get<double>()) : "-";
}
std::string speed_text(const json& row, const std::string& key) {
  return row.contains(key) && row[key].is_number() ? count_text(row[key].get<double>()) : "-";
}
std::string ratio_text(const json& row) {
  return row.contains("ratio") && row["ratio"].is_number() ? fmt::format("{:.2f}", row["ratio"].get<double>()) : "-";
}

void say_heading(const Arguments& arguments, const std::optional<TorchPeer>& peer) {
  arguments.say("{}, {} threads, {}; {}a training step is loss, backward, clipping and AdamW; medians\n", cpu_model(),
                threads(), name_of(isa()), peer ? "PyTorch " + peer->version() + " by turns; " : "");
  arguments.say("{:<11} {:<24} {:>4} {:>5} {:>9} {:>8} {:>6} {:>10}", "shape", "position", "B", "T", "tokens/s",
                "GFLOP/s", "peak", "memory");
  if (peer) arguments.say(" {:>9} {:>9} {:>6}", "eager", "compile", "ratio");
  arguments.say("\n");
}

void say_row(const Arguments& arguments, const json& row, bool with_peer) {
  arguments.say("{:<11} {:<24} {:>4} {:>5} {:>9} {:>8.1f} {:>6} {:>10}", row["shape"].get<std::string>(),
                row["position"].get<std::string>(), row["batch"].get<int64_t>(), row["context"].get<int64_t>(),
                speed_text(row, "tokens_per_second"), row["gflops"].get<double>(), share_text(row["share_of_peak"]),
                bytes_text(row["peak_memory_bytes"].get<double>()));
  if (with_peer)
    arguments.say(" {:>9} {:>9} {:>6}", speed_text(row, "peer_eager_tokens_per_second"),
                  speed_text(row, "peer_compile_tokens_per_second"), ratio_text(row));
  arguments.say("\n");
  for (const char* key : {"peer_eager_error", "peer_compile_error"})
    if (row.contains(key)) arguments.say("  {}: {}\n", key, row[key].get<std::string>());
}

void say_profile(const Arguments& arguments, const json& profile) {
  arguments.say("\n  {:<28} {:>6} {:>12} {:>12} {:>8} {:>6}\n", "operation", "calls", "forward ms", "backward ms",
                "GFLOP/s", "share");
  double shares = 0;
  for (const json& row : profile["operations"]) {
    const std::string gflops = row["gflops"].is_number() ? fmt::format("{:.1f}", row["gflops"].get<double>()) : "-";
    arguments.say("  {:<28} {:>6.0f} {:>12.3f} {:>12.3f} {:>8} {:>5.1f}%\n", row["operation"].get<std::string>(),
                  row["calls"].get<double>(), 1e3 * row["forward_seconds"].get<double>(),
                  1e3 * row["backward_seconds"].get<double>(), gflops, 100 * row["share"].get<double>());
    shares += row["share"].get<double>();
  }
  arguments.say("  {:<28} {:>57.1f}% of a step of {:.3f} ms\n\n", "together", 100 * shares,
                1e3 * profile["seconds_per_step"].get<double>());
}

void say_sampling(const Arguments& arguments, const json& rows) {
  for (const json& row : rows)
    arguments.say(
        "  sampling at position {}: {} tokens/s{}\n", row["position"].get<int64_t>(),
        speed_text(row, "tokens_per_second"),
        row.contains("ratio")
            ? fmt::format("; PyTorch eager {}, compiled {}; ratio {}", speed_text(row, "peer_eager_tokens_per_second"),
                          speed_text(row, "peer_compile_tokens_per_second"), ratio_text(row))
            : "");
}

int run(const Arguments& arguments) {
  const BenchOptions options = read_options(arguments);
  std::optional<TorchPeer> peer;
  if (!options.peer_modes.empty()) peer.emplace();
  say_heading(arguments, peer);
  json results = json::array();
  for (const BenchShape& shape : options.shapes)
    for (const std::string& spec : options.positions) {
      const json row = bench_row(options, shape, spec, peer ? &*peer : nullptr);
      say_row(arguments, row, peer.has_value());
      if (row.contains("profile")) say_profile(arguments, row["profile"]);
      if (row.contains("sampling")) say_sampling(arguments, row["sampling"]);
      results.push_back(row);
    }
  json object = results.size() == 1 ? results[0] : json::object();
  object["cpu"] = cpu_model();
  object["isa"] = name_of(isa());
  object["threads"] = threads();
  if (peer) object["peer_version"] = peer->version();
  object["results"] = results;
  arguments.print_json(object);
  return 0;
}

const RegisterCommand registered(
    {.name = "bench",
     .summary = "training and sampling speed by model shape and strategy, against the machine's peak and PyTorch",
     .options = {{"shape", "NAMES", "base", "comma-separated: base, base-1024, medium, gpt2"},
                 {"position", "SPEC", "", "one strategy, or several separated by commas"},
                 {"positions", "SPECS", "rope", "the same"},
                 {"layers", "N", "", "instead of the shape's"},
                 {"width", "C", "", "instead of the shape's"},
                 {"heads", "H", "", "instead of the shape's"},
                 {"context", "T", "", "instead of the shape's: tokens a sequence"},
                 {"batch", "B", "", "instead of the shape's: sequences a step"},
                 {"vocab", "V", "", "instead of the shape's"},
                 {"dtype", "TYPE", "f32", "f32 or f64"},
                 {"steps", "N", "", "timed steps of each contender (default: what --seconds allows)"},
                 {"seconds", "S", "5", "time for each row, all contenders together, three rounds at least"},
                 flag_option("profile", "also a table by operation: calls, ms forward and backward, GFLOP/s, share"),
                 {"peer", "NAME", "", "torch: the same model in PyTorch, by turns with ours"},
                 {"peer-modes", "MODES", "eager,compile", "what to time there; the ratio is to the better one"},
                 flag_option("sample", "also sampling speed, token by token with the cache"),
                 {"sample-at", "POSITIONS", "100,32000", "how many tokens the cache holds by then"},
                 {"sample-tokens", "N", "50", "tokens drawn for each timing"}},
     .run = run,
     .details = "Shapes (layers x width, heads, T, B, vocabulary): base 3x64, 4, 256, 16, 256; base-1024 the same with "
                "T=1024, B=4; medium 6x256, 8,\n"
                "512, 8, 256; gpt2 12x768, 12, 256, 4, 50257. GFLOP/s counts what the model needs (6 FLOP a matrix "
                "weight and token, causal attention\n"
                "forward once and backward 2.5 times); the peak is that of the multiply-add units, measured in the "
                "same call."});

}  // namespace

}  // namespace sextant
