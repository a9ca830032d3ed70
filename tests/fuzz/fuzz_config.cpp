// Any text is either read as the configuration of a model, or of a training run, or refused with an Error; what is read
// is written and read again the same.
#include <cstdlib>

#include "core/error.h"
#include "experiments/train_options.h"
#include "nn/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sextant;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const std::string written = ModelConfig::from_json(text, "fuzz").json();
    if (ModelConfig::from_json(written, "again").json() != written) std::abort();
  } catch (const Error&) {
  }
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded()) return 0;
  try {
    TrainOptions options = train_options_from_json(json, "fuzz");
    if (to_json(train_options_from_json(to_json(options), "again")) != to_json(options)) std::abort();
    if (default_run_folder(options).size() > 200) std::abort();
    options.out = "out";
    options.check();
    if (options.tokens_per_step() < 1) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
