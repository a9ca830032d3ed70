// Bad input: each is answered with one line that says what, where and what would be right, and with its exit status.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "core/safetensors.h"
#include "tests/experiments/program.h"

namespace sextant::test {
namespace {

namespace fs = std::filesystem;

void expect_error(const ProgramRun& run, int status, const std::vector<std::string>& parts) {
  EXPECT_EQ(run.status, status) << run.err;
  EXPECT_EQ(count_lines(run.err), 1) << run.err;
  for (const std::string& part : parts)
    EXPECT_NE(run.err.find(part), std::string::npos) << "'" << part << "' is not in: " << run.err;
}

class DataFile : public testing::Test {
 protected:
  // A refused run leaves no folder behind.
  void expect_refused(const std::string& data, const std::vector<std::string>& parts,
                      const std::vector<std::string>& more = {}) const {
    expect_error(sextant(tiny_model(data, folder_.path("run"), more)), 2, parts);
    EXPECT_FALSE(fs::exists(folder_.path("run")));
  }
  Folder folder_;
};

TEST_F(DataFile, Missing) {
  expect_refused(folder_.path("nothing.txt"), {"nothing.txt"});
}
TEST_F(DataFile, Empty) {
  expect_refused(folder_.write("empty.txt", ""), {"empty"});
}
TEST_F(DataFile, OneByte) {
  expect_refused(folder_.write("one.txt", "a"), {"one"});
}
TEST_F(DataFile, ContextLongerThanTheData) {
  const std::string data = folder_.write("short.txt", sample_text(400));
  expect_refused(data, {"360", "1000"}, {"--context", "1000"});  // nine tenths are for training
}

TEST_F(DataFile, BinaryIsTextLikeAnyOther) {
  std::string bytes;
  for (int i = 0; i < 4096; ++i) bytes += static_cast<char>(i * 7 + i / 256);
  const ProgramRun run = sextant(tiny_model(folder_.write("binary.bin", bytes), folder_.path("run"), {"--steps", "3"}));
  EXPECT_EQ(run.status, 0) << run.err;
}

TEST_F(DataFile, ModelThatCannotBe) {
  const std::string data = folder_.write("text.txt", sample_text(2000));
  expect_refused(data, {"width", "heads"}, {"--width", "18", "--heads", "4"});
  expect_refused(data, {"even"}, {"--width", "15", "--heads", "3", "--position", "rope"});
  expect_refused(data, {"alibi"}, {"--position", "alibbi"});
  expect_refused(data, {"base"}, {"--position", "rope(bases=3)"});
  expect_refused(data, {"--accumulate"}, {"--accumulate", "5"});
  // 2^40 x 2^40 tokens a step would be 0 of them, by which --tokens is divided.
  expect_refused(data, {"--context", "1099511627776", "16777216"},
                 {"--context", "1099511627776", "--batch", "1099511627776", "--tokens", "5"});
}

class Checkpoint : public testing::Test {
 protected:
  void SetUp() override {
    const ProgramRun run =
        sextant(tiny_model(folder_.write("text.txt", sample_text(3000)), folder_.path("run"), {"--steps", "2"}));
    ASSERT_EQ(run.status, 0) << run.err;
    good_ = read_file(folder_.path("run/checkpoint.safetensors"));
  }
  void expect_refused(const std::string& content, const std::vector<std::string>& parts = {}) const {
    const std::string path = folder_.write("bad.safetensors", content);
    std::vector<std::string> all = {"bad.safetensors"};
    all.insert(all.end(), parts.begin(), parts.end());
    expect_error(sextant({"eval", path}), 2, all);
    expect_error(sextant({"sample", path}), 2, all);
  }
  static std::string with_header(const std::string& header, const std::string& data = "") {
    const uint64_t length = header.size();
    std::string file(8, '\0');
    std::memcpy(file.data(), &length, 8);
    return file + header + data;
  }
  Folder folder_;
  std::string good_;
};

TEST_F(Checkpoint, Missing) {
  expect_error(sextant({"eval", folder_.path("nothing")}), 2, {"nothing"});
}
TEST_F(Checkpoint, Empty) {
  expect_refused("");
}

TEST_F(Checkpoint, Truncated) {
  for (const size_t size : {size_t{1}, size_t{7}, size_t{8}, size_t{100}, good_.size() / 2, good_.size() - 1})
    expect_refused(good_.substr(0, size));
}

TEST_F(Checkpoint, BitFlipped) {
  for (const size_t place : {size_t{3}, size_t{40}, good_.size() / 2, good_.size() - 1}) {
    std::string flipped = good_;
    flipped[place] = static_cast<char>(flipped[place] ^ 0x10);
    expect_refused(flipped);
  }
}

TEST_F(Checkpoint, HeaderLengthBeyondAnything) {
  std::string huge = good_;
  huge[7] = static_cast<char>(0x80);  // 2^63 and more
  expect_refused(huge);
  expect_refused(std::string(8, '\xff') + "{}");
}

TEST_F(Checkpoint, OverlappingOffsets) {
  expect_refused(with_header(
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
      std::string(12, '\0')));
}

TEST_F(Checkpoint, Foreign) {
  expect_refused(with_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", std::string(8, '\0')),
                 {"config"});
  expect_refused("PK\x03\x04 something that another program wrote, long enough to hold a header");
}

TEST_F(Checkpoint, OfAnotherVocabulary) {
  expect_error(sextant({"eval", folder_.path("run"), "--data", "canon", "--lengths", "16"}), 2,
               {"vocabulary", "256", "390"});
}

TEST_F(Checkpoint, LengthBeyondTheData) {
  expect_error(sextant({"eval", folder_.path("run"), "--lengths", "16,100000"}), 2, {"100000", "300"});
}

TEST_F(Checkpoint, TokensOfGrads) {
  const auto expect_line = [&](const std::string& text, const std::vector<std::string>& parts) {
    const std::string tokens = folder_.write("tokens.txt", text);
    expect_error(
        sextant({"grads", folder_.path("run"), "--tokens", tokens, "--out", folder_.path("grads.safetensors")}), 2,
        parts);
    EXPECT_FALSE(fs::exists(folder_.path("grads.safetensors")));
  };
  expect_line("1 2 3\n4 5 256\n", {"tokens.txt:2", "256", "255"});
  expect_line("1 2 3\n\n4 5\n", {"tokens.txt:3", "2", "3"});
  expect_line("1 2 x3\n", {"tokens.txt:1", "x3"});
  expect_line("1 -2 3\n", {"tokens.txt:1", "-2"});
  expect_line("7\n", {"tokens.txt:1", "at least 2"});
  expect_line("", {"tokens.txt"});
  expect_error(sextant({"grads", folder_.path("run"), "--out", folder_.path("g")}), 2, {"--tokens"});
}

TEST_F(Checkpoint, ResumingWhereNothingIs) {
  expect_error(sextant({"train", "--resume", folder_.path("nowhere")}), 2, {"nowhere", "--out"});
}

TEST_F(Checkpoint, TrainingOptionsThatCannotBe) {
  const std::string path = folder_.path("run/checkpoint.safetensors");
  for (const auto& [key, value] : std::initializer_list<std::pair<std::string, std::string>>{
           {"batch", "0"}, {"batch", "1e300"}, {"context", "1099511627776"}, {"steps", "-1"}, {"lr", "-0.1"}}) {
    write_file(path, good_);
    SafetensorsFile file = SafetensorsFile::open(path);
    Metadata metadata = file.metadata();
    nlohmann::json options = nlohmann::json::parse(metadata.at("trainer"));
    options[key] = nlohmann::json::parse(value);
    metadata["trainer"] = options.dump();
    std::vector<NamedTensor> tensors;
    for (const std::string& name : file.names()) tensors.push_back({name, file.tensor(name)});
    write_safetensors(path, tensors, metadata);
    expect_error(sextant({"train", "--resume", folder_.path("run")}), 2, {path, "'" + key + "'"});
  }
}

TEST_F(Checkpoint, FolderThatCannotBeWritten) {
  const std::string data = folder_.path("text.txt");
  expect_error(sextant(tiny_model(data, data + "/run", {"--steps", "1"})), 2,
               {"text.txt"});  // a file where a folder must be
  // What follows needs a folder that refuses: to root none does. The file in a folder's place was checked above.
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere: the permission check needs another user";
  ASSERT_EQ(::mkdir(folder_.path("closed").c_str(), 0500), 0);
  expect_error(sextant(tiny_model(data, folder_.path("closed/run"), {"--steps", "1"})), 3, {"closed"});
}

TEST_F(Checkpoint, FullDisk) {
  const std::string small = folder_.path("small");
  fs::create_directory(small);
  // Only root, and not in every container, may mount the small disk that this fills.
  if (::geteuid() != 0 || ::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=128k") != 0)
    GTEST_SKIP() << "needs the right to mount a small file system";
  const ProgramRun run =
      sextant(tiny_model(folder_.path("text.txt"), small + "/run", {"--steps", "5", "--width", "64"}));
  int left_over = 0;
  for (const auto& entry : fs::recursive_directory_iterator(small))
    left_over += entry.path().string().ends_with(".partial");
  ::umount(small.c_str());
  expect_error(run, 3, {"checkpoint.safetensors"});
  EXPECT_EQ(left_over, 0);
}

}  // namespace
}  // namespace sextant::test
