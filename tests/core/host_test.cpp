// The machine's facts against other ways of asking for them.
#include "core/host.h"

#include <gtest/gtest.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>

#include <cstring>
#include <vector>

namespace sextant {
namespace {

TEST(Host, MemoryOfTheMachine) {
  struct sysinfo facts {};
  ASSERT_EQ(sysinfo(&facts), 0);
  EXPECT_EQ(total_memory(), static_cast<uint64_t>(facts.totalram) * facts.mem_unit);
  if (const auto limit = memory_limit()) {
    EXPECT_GT(*limit, resident_memory());
    EXPECT_LT(*limit, uint64_t{1} << 62);
  }
}

TEST(Host, ResidentMemoryFollowsUseAndThePeakStays) {
  constexpr uint64_t size = uint64_t{96} << 20, slack = uint64_t{16} << 20;
  const uint64_t before = resident_memory();
  ASSERT_GT(before, 0u);
  uint64_t during = 0;
  {
    std::vector<char> block(size);
    std::memset(block.data(), 1, size);
    during = resident_memory();
    EXPECT_EQ(block[size / 2], 1);
  }
  EXPECT_GE(during, before + size - slack);
#ifdef __SANITIZE_THREAD__
  constexpr uint64_t shadow = 4 * size;  // what ThreadSanitizer remembers of each byte's users
#else
  constexpr uint64_t shadow = 0;
#endif
  EXPECT_LE(during, before + size + shadow + slack);
  EXPECT_GE(peak_resident_memory(), before + size - slack);
}

TEST(Host, FreeDisk) {
  struct statvfs facts {};
  ASSERT_EQ(statvfs("/", &facts), 0);
  const double expected = static_cast<double>(facts.f_bavail) * static_cast<double>(facts.f_frsize);
  EXPECT_NEAR(static_cast<double>(free_disk("/")), expected, 0.1 * expected + 1e9);  // others write meanwhile
  EXPECT_NEAR(static_cast<double>(free_disk("/no/such/folder/yet")), expected, 0.1 * expected + 1e9);
}

TEST(Host, Names) {
  EXPECT_NE(std::string(__VERSION__).find(compiler().substr(compiler().find(' ') + 1)), std::string::npos)
      << compiler();
  EXPECT_NE(operating_system().find("Linux"), std::string::npos) << operating_system();
}

TEST(Host, Time) {
  EXPECT_EQ(iso_8601(0), "1970-01-01T00:00:00Z");
  EXPECT_EQ(iso_8601(951'827'696), "2000-02-29T12:34:56Z");
  EXPECT_EQ(iso_8601(4'102'444'799), "2099-12-31T23:59:59Z");
  EXPECT_LE(iso_8601(std::time(nullptr)), now_iso_8601());
}

}  // namespace
}  // namespace sextant
