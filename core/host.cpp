#include "core/host.h"

#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "core/error.h"
#include "core/file.h"
#include "core/sha256.h"

namespace sextant {

namespace {

// The rest of the first line that starts with `start`; empty when there is none.
std::string line_of(const std::string& path, std::string_view start) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(start)) return line.substr(start.size());
  return {};
}

// "VmRSS:   1234 kB" in /proc/self/status, in bytes.
std::optional<uint64_t> status_bytes(const char* key) {
  const std::string text = line_of("/proc/self/status", key);
  const uint64_t kibibytes = std::strtoull(text.c_str(), nullptr, 10);
  return kibibytes > 0 ? std::optional(kibibytes * 1024) : std::nullopt;
}

std::optional<uint64_t> number_in(const std::filesystem::path& path) {
  const std::string text = line_of(path.string(), "");
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;  // version 2 says "max" for no limit
}

// The names of a control group's files in one version.
struct GroupFiles {
  const char *root, *limit, *used, *cache;  // the last: the line of memory.stat with what can be dropped at once
};
constexpr GroupFiles version1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                 "total_inactive_file "};
constexpr GroupFiles version2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};

// f(folder, limit, files) for each limit that binds this process: a group is also bound by those of the groups above
// it. In a container the path may be the one outside, of which only the root is seen.
template <class F>
void for_limits(F f) {
  std::ifstream groups("/proc/self/cgroup");  // lines of "number:controllers:path"
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && controllers != "memory") continue;
    const GroupFiles& files = controllers.empty() ? version2 : version1;
    std::filesystem::path path = line.substr(second + 1);
    for (bool more = true; more; path = path.parent_path()) {
      more = path.has_relative_path();
      const std::filesystem::path folder = std::filesystem::path(files.root) / path.relative_path();
      // Version 1 writes "no limit" as a number near 2^63.
      if (const auto limit = number_in(folder / files.limit); limit && *limit < uint64_t{1} << 62)
        f(folder, *limit, files);
    }
  }
}

uint64_t less(uint64_t a, uint64_t b) {
  return a > b ? a - b : 0;
}

// "500M": bytes; nothing when it is no number.
std::optional<uint64_t> bytes_in(const char* text) {
  char* end = nullptr;
  const double number = std::strtod(text, &end);
  const std::string_view unit(end);
  const double factor = unit == "K" ? 1024.0 : unit == "M" ? 1048576.0 : unit == "G" ? 1073741824.0 : 1.0;
  if (end == text || number < 0 || (factor == 1.0 && !unit.empty())) return {};
  return static_cast<uint64_t>(number * factor);
}

}  // namespace

std::string compiler() {
#ifdef __clang__
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

std::string program_hash() {
  Sha256 hash;
  Dl_info library{};
  ::dladdr(reinterpret_cast<const void*>(&program_hash), &library);
  for (const std::string path : {"/proc/self/exe", library.dli_fname == nullptr ? "/proc/self/exe" : library.dli_fname})
    hash.update(MappedFile(path).text());
  return hash.hex();
}

std::string operating_system() {
  std::string name = line_of("/etc/os-release", "PRETTY_NAME=");
  std::erase(name, '"');
  utsname kernel{};
  ::uname(&kernel);
  return fmt::format("{}{}{} {} {}", name, name.empty() ? "" : ", ", kernel.sysname, kernel.release, kernel.machine);
}

uint64_t total_memory() {
  return static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::optional<uint64_t> memory_limit() {
  std::optional<uint64_t> least;
  for_limits([&](const std::filesystem::path&, uint64_t limit, const GroupFiles&) {
    least = std::min(limit, least.value_or(limit));
  });
  return least;
}

AvailableMemory available_memory() {
  const uint64_t kibibytes = std::strtoull(line_of("/proc/meminfo", "MemAvailable:").c_str(), nullptr, 10);
  AvailableMemory least{kibibytes > 0 ? kibibytes * 1024 : total_memory(), "the machine"};
  for_limits([&](const std::filesystem::path& folder, uint64_t limit, const GroupFiles& files) {
    const uint64_t cache = std::strtoull(line_of((folder / "memory.stat").string(), files.cache).c_str(), nullptr, 10);
    const uint64_t left = less(limit, less(number_in(folder / files.used).value_or(0), cache));
    if (left < least.bytes) least = {left, "the control group's limit"};
  });
  if (const char* text = std::getenv("SEXTANT_MEMORY")) {
    const std::optional<uint64_t> allowed = bytes_in(text);
    require(allowed.has_value(), "SEXTANT_MEMORY is '{}', must be a number of bytes such as 500M or 8G", text);
    const uint64_t left = less(*allowed, resident_memory());
    if (left < least.bytes) least = {left, "SEXTANT_MEMORY"};
  }
  return least;
}

uint64_t resident_memory() {
  return status_bytes("VmRSS:").value_or(0);
}

uint64_t peak_resident_memory() {
  // The kernel counts both by batches and may show a peak that is behind what is resident.
  if (const auto peak = status_bytes("VmHWM:")) return std::max(*peak, resident_memory());
  rusage usage{};  // counts what the process was before it executed this program, too
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

uint64_t free_disk(const std::string& path) {
  std::error_code error;
  std::filesystem::path place = std::filesystem::absolute(path, error);
  while (!std::filesystem::exists(place, error) && place.has_relative_path()) place = place.parent_path();
  const std::filesystem::space_info space = std::filesystem::space(place, error);
  if (error) fail_environment("cannot find the free space of {}: {}", path, error.message());
  return space.available;
}

std::string iso_8601(std::time_t time) {
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[64];
  return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts));
}

std::string now_iso_8601() {
  return iso_8601(std::time(nullptr));
}

}  // namespace sextant
