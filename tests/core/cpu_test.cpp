// The choice of the instruction set, the CPU's name, the measured peak.
#include "core/cpu.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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

// A vector holds twice as many f32 as f64, and a wider instruction set is not slower. Others may take the machine away
// during any one measurement: peaks are compared by the best of measurements taken by turns, until the relations show.
TEST(Cpu, PeaksFollowTheWidthOfTheVectors) {
  const Isa before = isa();
  const std::vector<Isa> isas = available_isas();
  std::vector<std::array<double, 2>> best(isas.size(), {0, 0});  // f32, f64
  const auto holds = [&] {
    for (size_t i = 0; i < isas.size(); ++i) {
      const double ratio = best[i][0] / best[i][1];
      if (ratio < 1.7 || ratio > 2.3 || (i > 0 && best[i][0] < best[i - 1][0])) return false;
    }
    return true;
  };
  constexpr int most_rounds = 40;
  for (int round = 0; round < most_rounds && !holds(); ++round)
    for (size_t i = 0; i < isas.size(); ++i) {
      set_isa(isas[i]);
      for (size_t type = 0; type < 2; ++type)
        best[i][type] = std::max(best[i][type], fma_peak_gflops(1, type == 0 ? DType::f32 : DType::f64));
    }
  set_isa(before);
  EXPECT_TRUE(holds());
  for (size_t i = 0; i < isas.size(); ++i)
    RecordProperty(name_of(isas[i]), fmt::format("{:.1f} f32, {:.1f} f64", best[i][0], best[i][1]));
  EXPECT_THROW(fma_peak_gflops(0, DType::f32), Error);
}

}  // namespace
}  // namespace sextant
