#include "core/host.h"

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

// A group is also bound by the limits of those above it. In a container the path may be the one outside, of which only
// the root is seen.
std::optional<uint64_t> least_limit(const std::filesystem::path& root, const std::string& group, const char* file) {
  std::optional<uint64_t> least;
  std::filesystem::path path = group;
  for (bool more = true; more; path = path.parent_path()) {
    more = path.has_relative_path();
    const std::optional<uint64_t> limit = number_in(root / path.relative_path() / file);
    if (limit) least = std::min(*limit, least.value_or(*limit));
  }
  return least;
}

}  // namespace

std::string compiler() {
#ifdef __clang__
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
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
  std::optional<uint64_t> limit;
  std::ifstream groups("/proc/self/cgroup");  // lines of "number:controllers:path"
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    std::optional<uint64_t> found;
    if (controllers.empty()) found = least_limit("/sys/fs/cgroup", path, "memory.max");
    if (controllers == "memory") found = least_limit("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes");
    if (found) limit = std::min(*found, limit.value_or(*found));
  }
  // Version 1 writes "no limit" as a number near 2^63.
  return limit && *limit < uint64_t{1} << 62 ? limit : std::nullopt;
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
