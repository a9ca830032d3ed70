#include "experiments/memory.h"

#include <sys/resource.h>

#include <fstream>
#include <string>

namespace sextant {

size_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;)
    if (size_t kibibytes = 0; key == "VmHWM:" && status >> kibibytes) return kibibytes * 1024;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) * 1024;
}

void reset_peak_memory() {
  // "5" resets the peak, see proc(5).
  std::ofstream("/proc/self/clear_refs") << "5";
}

}  // namespace sextant
