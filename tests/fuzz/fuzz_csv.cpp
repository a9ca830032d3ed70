// Any text is either read as MusicNet labels or refused with an Error; what is read survives encoding and decoding.
#include <cstdlib>

#include "core/error.h"
#include "data/musicnet.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sextant;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const bool recognised = has_musicnet_header(text);
  try {
    const auto tokens = encode_events(parse_musicnet(text, "fuzz"));
    if (!recognised || encode_events(decode_events(tokens)) != tokens) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
