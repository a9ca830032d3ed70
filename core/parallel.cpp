#include "core/parallel.h"

#include "core/error.h"

namespace sextant {

namespace {
int thread_count = omp_get_num_procs();
}

int threads() {
  return thread_count;
}

void set_threads(int count) {
  require(count >= 1 && count <= 1024, "threads is {}, must be between 1 and 1024", count);
  thread_count = count;
}

}  // namespace sextant
