// What the tests of data share: a folder that goes away, with a cache of its own, and the place of the real files.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "core/error.h"

namespace sextant {

namespace fs = std::filesystem;

class DataTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "sextant_data_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
    setenv("XDG_CACHE_HOME", in("cache").c_str(), 1);
    if (const char* data = std::getenv("SEXTANT_DATA")) outer_data = data;
    unsetenv("SEXTANT_DATA");
  }
  void TearDown() override {
    fs::remove_all(folder);
    unsetenv("SEXTANT_DATA");
    if (outer_data) setenv("SEXTANT_DATA", outer_data->c_str(), 1);
  }

  std::string in(const std::string& name) const { return (folder / name).string(); }
  std::string write(const std::string& name, const std::string& content) const {
    fs::create_directories((folder / name).parent_path());
    std::ofstream(folder / name, std::ios::binary) << content;
    return in(name);
  }
  static std::string content(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // The folder with the real files, or nothing: then the test is skipped.
  std::optional<fs::path> real_data() const {
    const fs::path beside = fs::path(SEXTANT_SOURCE_DIR) / ".." / "shared" / "data";
    const fs::path place = outer_data ? fs::path(*outer_data) : beside;
    return fs::exists(place / "music") ? std::optional(place) : std::nullopt;
  }

  fs::path folder;
  std::optional<std::string> outer_data;
};

// The message of the Error that f throws; "" when it throws none.
inline std::string error_of(const std::function<void()>& f, Status* status = nullptr) {
  try {
    f();
  } catch (const Error& error) {
    if (status) *status = error.status();
    return error.what();
  }
  return "";
}

}  // namespace sextant

// The message must be one line and contain all of the parts.
#define EXPECT_ERROR(statement, ...)                                                     \
  do {                                                                                   \
    const std::string message = sextant::error_of([&] { statement; });                   \
    EXPECT_FALSE(message.empty()) << "no Error";                                         \
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;                         \
    for (const std::string& part : std::initializer_list<std::string>{__VA_ARGS__})      \
      EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks " << part; \
  } while (false)
