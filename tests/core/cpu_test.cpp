// The choice of the instruction set, the CPU's name, the measured peak.
#include "core/cpu.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "core/error.h"

namespace sextant {
namespace {

// Runs in a fresh process (style "threadsafe"), where the variable has not been read yet.
[[noreturn]] void report_isa(const char* variable) {
  setenv("SEXTANT_ISA", variable, 1);
  try {
    std::fputs(name_of(isa()), stderr);
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    _exit(static_cast<int>(error.status()));
  }
  _exit(0);
}

class CpuDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(CpuDeathTest, TheVariableForcesTheIsa) {
  for (Isa each : available_isas()) {
    EXPECT_EXIT(report_isa(name_of(each)), testing::ExitedWithCode(0), std::string("^") + name_of(each) + "$");
  }
  EXPECT_EXIT(report_isa(""), testing::ExitedWithCode(0), name_of(available_isas().back()));
}

TEST_F(CpuDeathTest, AWrongVariableIsAnErrorThatNamesTheAllowedOnes) {
  EXPECT_EXIT(report_isa("sse9"), testing::ExitedWithCode(2), "sse9.*plain");
  EXPECT_EXIT(report_isa("AVX2"), testing::ExitedWithCode(2), "AVX2.*plain");
}

TEST(Cpu, EveryAvailableIsaCanBeSet) {
  const Isa before = isa();
  for (Isa each : available_isas()) {
    set_isa(each);
    EXPECT_EQ(isa(), each);
  }
  set_isa(before);
  for (Isa each : {Isa::plain, Isa::avx2, Isa::avx512}) {
    const std::vector<Isa> all = available_isas();
    if (std::find(all.begin(), all.end(), each) == all.end()) {
      EXPECT_THROW(set_isa(each), Error);
    }
  }
  EXPECT_EQ(isa(), before);
}

#if defined(__x86_64__)
// The same name as the CPU itself gives.
TEST(Cpu, ModelIsTheBrandString) {
  char brand[49] = {};
  for (unsigned part = 0; part < 3; ++part) {
    unsigned words[4];
    ASSERT_TRUE(__get_cpuid(0x80000002u + part, &words[0], &words[1], &words[2], &words[3]));
    std::memcpy(brand + 16 * part, words, sizeof words);
  }
  const std::string name = brand;
  const size_t first = name.find_first_not_of(' '), last = name.find_last_not_of(' ');
  EXPECT_EQ(cpu_model(), first == std::string::npos ? "" : name.substr(first, last - first + 1));
}
#endif

// How large the peak is depends on who else uses the machine: only that it is a peak at all is asserted.
TEST(Cpu, PeakIsMeasuredForEveryInstructionSetAndType) {
  const Isa before = isa();
  for (Isa each : available_isas()) {
    set_isa(each);
    for (DType dtype : {DType::f32, DType::f64}) EXPECT_GT(fma_peak_gflops(1, dtype), 0.01) << name_of(each);
  }
  set_isa(before);
  EXPECT_THROW(fma_peak_gflops(0, DType::f32), Error);
}

}  // namespace
}  // namespace sextant
