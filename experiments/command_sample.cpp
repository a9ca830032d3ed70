// sextant sample: text or music from a trained model, token by token.
#include <chrono>

#include "core/error.h"
#include "core/file.h"
#include "data/events.h"
#include "data/midi.h"
#include "experiments/command.h"
#include "experiments/progress.h"
#include "nn/checkpoint.h"
#include "nn/generation.h"

namespace sextant {

namespace {

std::vector<int32_t> prompt_tokens(const Arguments& arguments, bool music) {
  if (music) {
    require(!arguments.given("prompt"),
            "--prompt: this model writes music (event tokens), which takes no text to begin with");
    return {event_begin};
  }
  const std::string text = arguments.given("prompt") ? arguments.text("prompt") : "\n";
  require(!text.empty(), "--prompt: at least one character is needed to begin with");
  std::vector<int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

void save_midi(const std::string& path, const std::vector<int32_t>& tokens, const Arguments& arguments) {
  const std::vector<Note> notes = decode_events(tokens);
  const std::vector<uint8_t> bytes = write_midi(notes);
  write_atomically(path, [&](FileWriter& writer) { writer.write(std::as_bytes(std::span(bytes))); });
  arguments.say("{} notes written to {}\n", notes.size(), path);
}

int run(const Arguments& arguments) {
  const std::unique_ptr<Transformer> model = load_model(checkpoint_path(arguments.positional(0)));
  const int64_t vocabulary = model->config().vocab;
  const bool music = vocabulary == event_vocabulary;
  require(music || vocabulary == 256, "{}: a vocabulary of {} is neither bytes (256) nor music events ({})",
          arguments.positional(0), vocabulary, event_vocabulary);
  require(music || !arguments.given("midi"), "--midi: this model writes text, not music");
  const SamplingOptions options{.temperature = arguments.number("temperature", 0, 1e6),
                                .top_k = arguments.integer("top-k", 0, vocabulary),
                                .seed = arguments.seed()};
  const int64_t count = arguments.integer("tokens", 1, int64_t{1} << 30);
  std::vector<int32_t> tokens = prompt_tokens(arguments, music);
  const bool streaming = !music && !arguments.json();
  if (streaming)
    for (const int32_t token : tokens) std::fputc(token, stdout);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<int32_t> made = generate(*model, tokens, count, options, [&](int32_t token) {
    if (streaming) {
      std::fputc(token, stdout);
      std::fflush(stdout);
    }
    return !(music && token == event_end);
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  tokens.insert(tokens.end(), made.begin(), made.end());
  if (streaming) std::fputc('\n', stdout);
  if (music && !arguments.given("midi"))
    for (const int32_t token : tokens) arguments.say("{}\n", event_name(token));
  if (arguments.given("midi")) save_midi(arguments.text("midi"), tokens, arguments);
  if (!arguments.quiet()) fmt::print(stderr, "{} tokens in {}\n", made.size(), duration_text(seconds));
  nlohmann::json object = {
      {"tokens", tokens}, {"seconds", seconds}, {"tokens_per_second", static_cast<double>(made.size()) / seconds}};
  if (!music) object["text"] = std::string(tokens.begin(), tokens.end());
  arguments.print_json(object);
  return 0;
}

const RegisterCommand registered(
    {.name = "sample",
     .summary = "text or music from a trained model, with a key-value cache",
     .positionals = {{"CKPT", "a run folder or a checkpoint file"}},
     .options = {{"prompt", "TEXT", "", "what the text begins with (models of bytes; default: a line break)"},
                 {"tokens", "N", "500", "how many tokens to add; music stops earlier at the end of a piece"},
                 {"temperature", "X", "1", "divides the logits; 0: always the most likely token"},
                 {"top-k", "K", "0", "only the K most likely tokens, 0 for all"},
                 {"midi", "FILE", "", "write the music as a Standard MIDI File"}},
     .run = run});

}  // namespace

}  // namespace sextant
