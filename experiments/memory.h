// The process's memory, as the system counts it.
#pragma once

#include <cstddef>

namespace sextant {

// The most resident memory since the start or the last reset, bytes.
size_t peak_memory();
// Starts counting anew; does nothing where the system does not let us.
void reset_peak_memory();

}  // namespace sextant
