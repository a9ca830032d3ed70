// Any bytes are either opened or refused with an Error; of what is opened every tensor can be read to its last byte.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "core/error.h"
#include "core/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sextant;
  const int descriptor = memfd_create("fuzz", MFD_CLOEXEC);
  if (descriptor < 0 || write(descriptor, data, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    SafetensorsFile file = SafetensorsFile::open("/proc/self/fd/" + std::to_string(descriptor));
    unsigned sum = 0;
    for (const std::string& name : file.names()) {
      for (const std::byte b : file.bytes(name)) sum += static_cast<unsigned>(b);
      const std::string& dtype = file.dtype(name);
      try {
        const Tensor tensor = file.tensor(name);
        if (dtype != "F32" && dtype != "F64") std::abort();
        for (int64_t i = 0; i < tensor.elements(); ++i) sum += tensor.flat(i) > 0;
      } catch (const Error&) {
      }
    }
    volatile unsigned used = sum;
    (void)used;
  } catch (const Error&) {
  }
  close(descriptor);
  return 0;
}
