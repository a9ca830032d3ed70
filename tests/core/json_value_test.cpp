// Single values of JSON: taken only for what they are.
#include "core/json_value.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace sextant {
namespace {

template <class T>
bool takes(const char* text, T expected) {
  T value{};
  return read_value(nlohmann::json::parse(text), value) && value == expected;
}

template <class T>
bool refuses(const char* text) {
  T value{};
  const T before = value;
  return !read_value(nlohmann::json::parse(text), value) && value == before;
}

TEST(JsonValue, IsTakenForWhatItIs) {
  EXPECT_TRUE(takes<int64_t>("0", 0));
  EXPECT_TRUE(takes<int64_t>("-9223372036854775808", INT64_MIN));
  EXPECT_TRUE(takes<int64_t>("9223372036854775807", INT64_MAX));
  EXPECT_TRUE(takes<uint64_t>("18446744073709551615", UINT64_MAX));
  EXPECT_TRUE(takes<double>("1e300", 1e300));
  EXPECT_TRUE(takes<double>("-3", -3));  // others write 1 for 1.0
  EXPECT_TRUE(takes<bool>("true", true));
  EXPECT_TRUE(takes<std::string>("\"rope\"", "rope"));
}

// nlohmann's get<int64_t>() is undefined for the first two (found by a fuzzer) and gives a number for the others.
TEST(JsonValue, WholeNumbersAreNoOtherNumbers) {
  for (const char* text : {"1e300", "-1e300", "1.5", "64.0", "9223372036854775808", "18446744073709551616", "true",
                           "null", "\"64\"", "[64]"})
    EXPECT_TRUE(refuses<int64_t>(text)) << text;
  EXPECT_TRUE(refuses<uint64_t>("-1"));
  EXPECT_TRUE(refuses<int8_t>("128"));
}

TEST(JsonValue, OtherTypesAreNotConverted) {
  EXPECT_TRUE(refuses<double>("true"));
  EXPECT_TRUE(refuses<double>("\"1\""));
  EXPECT_TRUE(refuses<bool>("1"));
  EXPECT_TRUE(refuses<std::string>("1"));
  EXPECT_TRUE(refuses<std::string>("null"));
}

}  // namespace
}  // namespace sextant
