#include "data/cache.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "core/error.h"
#include "core/sha256.h"

namespace sextant {

namespace fs = std::filesystem;

fs::path cache_directory() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) return fs::path(cache) / "sextant";
  const char* home = std::getenv("HOME");
  if (!home || !*home) fail_environment("there is no place for the cache: set HOME or XDG_CACHE_HOME");
  return fs::path(home) / ".cache" / "sextant";
}

namespace {

constexpr int64_t remember_hash_above = int64_t{64} << 20;  // bytes

}  // namespace

std::string sha256_of_file(const fs::path& path) {
  struct stat status {};
  require(stat(path.c_str(), &status) == 0, "{}: cannot be read: {}", path.string(), std::strerror(errno));
  if (status.st_size <= remember_hash_above) return sha256_hex(bytes_of(MappedFile(path)));
  const std::string key = fmt::format("{}\n{}\n{}.{:09}\n{}", fs::canonical(path).string(), status.st_size,
                                      status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_ino);
  const fs::path remembered = cache_directory() / "hashes" / sha256_hex(key);
  std::string hash;
  if (std::ifstream(remembered) >> hash && hash.size() == 64) return hash;
  hash = sha256_hex(bytes_of(MappedFile(path)));
  try {
    write_atomically(remembered, hash + "\n");
  } catch (const Error&) {
    // A cache that cannot be written costs time at the next opening, nothing else.
  }
  return hash;
}

}  // namespace sextant
