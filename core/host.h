// What a run's manifest says about the machine it ran on. The processor is core/cpu.h's matter.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>

namespace sextant {

std::string compiler();          // "gcc 12.2.0", "clang 14.0.6"
std::string program_hash();      // SHA-256 over the program's file and this library's, as they are on the disk now
std::string operating_system();  // "Debian GNU/Linux 12 (bookworm), Linux 6.1.0 x86_64"

// All in bytes.
uint64_t total_memory();                 // of the machine
std::optional<uint64_t> memory_limit();  // what this process's control group allows; none when it sets no limit
// What this process could still get without making the machine swap or the control group kill: the least of what the
// machine has left, what is left below each control group's limit (versions 1 and 2), and SEXTANT_MEMORY where that is
// set (bytes, with K, M or G), less what the process holds already.
struct AvailableMemory {
  uint64_t bytes;
  std::string bound;  // what sets it: "the machine", "the control group's limit", "SEXTANT_MEMORY"
};
AvailableMemory available_memory();
uint64_t resident_memory();       // of this process, now
uint64_t peak_resident_memory();  // of this process, since it started
uint64_t free_disk(
    const std::string& path);  // for this user, on the file system of path or of its nearest existing parent

std::string iso_8601(std::time_t time);  // UTC: "2026-06-30T12:00:00Z"
std::string now_iso_8601();

}  // namespace sextant
