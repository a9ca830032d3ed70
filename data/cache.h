// The cache folder: what was downloaded (datasets/), decompressed (text/), tokenized (tokens/) and hashed (hashes/).
// All of it can be deleted at any time and is made again when needed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/file.h"

namespace sextant {

// $XDG_CACHE_HOME/sextant, or ~/.cache/sextant; throws Error (environment) when neither variable is set. May not exist
// yet.
std::filesystem::path cache_directory();

inline std::span<const uint8_t> bytes_of(const MappedFile& file) {
  return {reinterpret_cast<const uint8_t*>(file.bytes().data()), file.bytes().size()};
}

// SHA-256 of a file's content, 64 hexadecimal digits. For files above 64 MiB the answer is kept in the cache, keyed by
// path, size and time of change, so that a large corpus is read whole only the first time.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace sextant
