// The laws of the position space, in both dtypes; and that charts which are no representation show it.
#include "positional/invariants.h"

#include <gtest/gtest.h>

namespace sextant {
namespace {

class Invariants : public testing::TestWithParam<DType> {};

TEST_P(Invariants, LawsHold) {
  int64_t laws = 0;
  for (const InvariantRow& row : measure_invariants(GetParam())) {
    EXPECT_TRUE(row.holds()) << row.law << " of " << row.subject << ": " << row.error << ", allowed " << row.tolerance;
    laws += row.tolerance > 0;
    if (row.tolerance == 0) {  // a chart that closed would be a law, or not measured
      EXPECT_GT(row.error, 1e-4) << row.law << " of " << row.subject;
    }
  }
  EXPECT_GE(laws, 20);
}
INSTANTIATE_TEST_SUITE_P(Dtypes, Invariants, testing::Values(DType::f64, DType::f32),
                         [](const auto& instance) { return name_of(instance.param); });

}  // namespace
}  // namespace sextant
