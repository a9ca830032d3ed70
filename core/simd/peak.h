// The loop that measures the peak of the multiply-add units; compiled for each instruction set.
#pragma once

#include <stdint.h>

namespace sextant {

struct PeakTable {
  // `rounds` rounds of independent multiply-adds in registers; returns how many operations that was (a multiply-add
  // counts as two).
  double (*f32)(int64_t rounds);
  double (*f64)(int64_t rounds);
};

namespace isa_plain {
const PeakTable& peak_table();
}
namespace isa_avx2 {
const PeakTable& peak_table();
}
namespace isa_avx512 {
const PeakTable& peak_table();
}

}  // namespace sextant
