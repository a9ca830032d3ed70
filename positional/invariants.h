// The laws of the position space, measured: what the `closure` table shows and the tests hold. [position-space.md
// section 5]
#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"

namespace sextant {

struct InvariantRow {
  std::string law;       // "closure", "inverse", "translation", "containment", "annihilation", "tangent"
  std::string subject;   // the SPEC or family it was measured on
  double error = 0;      // relative to the largest entry of what is compared
  double tolerance = 0;  // what a law that holds stays below in this dtype; 0: stated, no law of this subject (a chart)
  bool holds() const { return tolerance == 0 || error <= tolerance; }
};

// All laws for all families, at positions up to a few thousand (translation: shifted by 10^6), for tables and features
// of the given dtype.
std::vector<InvariantRow> measure_invariants(DType dtype);

}  // namespace sextant
