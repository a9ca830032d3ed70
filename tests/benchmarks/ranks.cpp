// What CLUSTER.md's model of a step needs to know of the network: seconds to sum gradients over ranks, by size.
//   mpirun -np 2 build/tests/benchmarks/ranks
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "core/communicator.h"

int main() {
  using namespace sextant;
  using Clock = std::chrono::steady_clock;
  Communicator& ranks = world();
  if (ranks.first()) std::printf("%d ranks\n%12s %12s %10s\n", ranks.size(), "bytes", "seconds", "GB/s");
  for (size_t count = 256; count <= size_t{1} << 25; count *= 8) {
    std::vector<float> x(count, 1.0f);
    double best = 1e30;
    for (int repeat = 0; repeat < 9; ++repeat) {
      ranks.gather("");  // all begin together
      const Clock::time_point start = Clock::now();
      sum_over_ranks<float>(ranks, x);
      best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
      std::fill(x.begin(), x.end(), 1.0f);
    }
    const double bytes = static_cast<double>(count * sizeof(float));
    const double share = 2.0 * (ranks.size() - 1) / ranks.size();  // of them goes each way
    if (ranks.first()) std::printf("%12.0f %12.6f %10.2f\n", bytes, best, share * bytes / best / 1e9);
  }
  return 0;
}
