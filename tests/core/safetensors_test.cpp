// The format's files: round trips, what another program reads and writes, and every way in which a file can be wrong.
#include "core/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "core/error.h"

namespace sextant {
namespace {

namespace fs = std::filesystem;

std::string little_endian(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

// A file put together by hand, from the format's description.
std::string file_of(const std::string& header, const std::string& data) {
  return little_endian(header.size()) + header + data;
}

class SafetensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "sextant_safetensors_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
    path = (folder / "x.safetensors").string();
  }
  void TearDown() override { fs::remove_all(folder); }

  void put(std::string_view bytes) const { std::ofstream(path, std::ios::binary) << bytes; }
  std::string got() const {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  // Opening a file of these bytes must throw an Error of one line that names the file and holds each of the words.
  void expect_refused(std::string_view bytes, std::initializer_list<std::string> words) const {
    put(bytes);
    try {
      SafetensorsFile::open(path);
      FAIL() << "opened";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.status(), Status::bad_input) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      EXPECT_NE(message.find(path), std::string::npos) << message;
      for (const std::string& word : words)
        EXPECT_NE(message.find(word), std::string::npos) << message << " lacks " << word;
    }
  }
  void expect_header_refused(const std::string& header, std::initializer_list<std::string> words,
                             size_t data = 8) const {
    expect_refused(file_of(header, std::string(data, '\0')), words);
  }
  void write_small() {
    write_safetensors(path,
                      {{"w", from_values(arena, {2}, std::vector{1.5, -2.0})}, {"b", full(arena, {}, 3.0, DType::f64)}},
                      {{"step", "7"}});
  }

  fs::path folder;
  std::string path;
  Arena arena;
};

TEST_F(SafetensorsTest, ReadsAFileMadeByHand) {
  const float values[] = {1.0f, -2.5f};
  const std::string data(reinterpret_cast<const char*>(values), sizeof values);
  put(file_of(
      R"({"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"__metadata__":{"k":"v","checksum":"of another kind"}}  )",
      data));
  SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.names(), std::vector<std::string>{"w"});
  EXPECT_EQ(file.metadata("k"), "v");
  EXPECT_EQ(file.metadata("checksum"), "of another kind");
  const Tensor w = file.tensor("w");
  EXPECT_EQ(w.shape(), (Shape{2, 1}));
  EXPECT_EQ(w.at({0, 0}), 1.0);
  EXPECT_EQ(w.at({1, 0}), -2.5);
  EXPECT_FALSE(file.has("v"));
  EXPECT_THROW(file.tensor("v"), Error);
  EXPECT_THROW(file.bytes("v"), Error);
  EXPECT_THROW(file.metadata("none"), Error);
}

TEST_F(SafetensorsTest, RoundTripKeepsEveryBit) {
  const double values[] = {0.0, -0.0, 1.0 / 3, 1e-45, 3.4e38, std::numeric_limits<double>::infinity(), -1e-320, 2.0};
  const Tensor single = from_values(arena, {2, 4}, values);
  const Tensor twice = from_values(arena, {8}, values, DType::f64);
  single.set_flat(3, std::numeric_limits<double>::quiet_NaN());
  const Metadata metadata = {
      {"config", R"({"checksum":"crc32:ffffffff","deep":"\"checksum\":\"crc32:0"})"}, {"", ""}, {"ü", "\n"}};
  write_safetensors(path, {{"single", single}, {"twice", twice}, {"t", single.transpose(0, 1)}}, metadata);

  SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"single", "t", "twice"}));
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(file.tensor("single").shape(), single.shape());
  EXPECT_EQ(std::memcmp(file.tensor("single").data<float>(), single.data<float>(), single.bytes()), 0);
  EXPECT_EQ(std::memcmp(file.tensor("twice").data<double>(), twice.data<double>(), twice.bytes()), 0);
  const Tensor t = file.tensor("t");
  EXPECT_EQ(t.shape(), (Shape{4, 2}));
  EXPECT_TRUE(t.contiguous());
  EXPECT_EQ(t.at({2, 1}), single.at({1, 2}));
}

TEST_F(SafetensorsTest, RoundTripOfShapes) {
  std::vector<NamedTensor> tensors;
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{1}, Shape{3, 0, 2}, Shape{1, 2, 3, 1, 2, 1}, Shape{100'003}})
    tensors.push_back({"shape " + shape.text(), full(arena, shape, 1.25)});
  write_safetensors(path, tensors);
  SafetensorsFile file = SafetensorsFile::open(path);
  ASSERT_EQ(file.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(file.tensor(name).shape(), tensor.shape());
    for (int64_t i = 0; i < tensor.elements(); ++i) ASSERT_EQ(file.tensor(name).flat(i), 1.25);
  }
  write_safetensors(path, {});
  EXPECT_TRUE(SafetensorsFile::open(path).names().empty());
}

// More than one chunk of the checksum, on several threads: a damaged byte in any chunk is found.
TEST_F(SafetensorsTest, LargeTensor) {
  const Tensor large = empty(arena, {2'500'001});
  for (int64_t i = 0; i < large.elements(); ++i) large.data<float>()[i] = static_cast<float>(i % 1013) * 0.5f;
  write_safetensors(path, {{"large", large}, {"one", full(arena, {1}, 1.0, DType::f64)}});
  {
    SafetensorsFile file = SafetensorsFile::open(path);
    EXPECT_EQ(std::memcmp(file.tensor("large").data<float>(), large.data<float>(), large.bytes()), 0);
  }
  std::string bytes = got();
  bytes[bytes.size() / 2] ^= 1;
  expect_refused(bytes, {"damaged"});
}

TEST_F(SafetensorsTest, BytesDependOnContentAlone) {
  const Tensor a = full(arena, {3}, 1.0), b = full(arena, {2}, 2.0, DType::f64);
  write_safetensors(path, {{"a", a}, {"b", b}}, {{"x", "1"}, {"y", "2"}});
  const std::string first = got();
  write_safetensors(path, {{"b", b}, {"a", a}}, {{"y", "2"}, {"x", "1"}});
  EXPECT_EQ(got(), first);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, first.data(), 8);
  EXPECT_EQ(header_bytes % 8, 0u);
  EXPECT_EQ(first.size(), 8 + header_bytes + a.bytes() + b.bytes());
}

// Three F32 before an F64, and a header of odd length: the view would not be aligned.
TEST_F(SafetensorsTest, CopiesWhatIsNotAligned) {
  const float singles[] = {1, 2, 3};
  const double twice = 0.1;
  std::string data(reinterpret_cast<const char*>(singles), sizeof singles);
  data.append(reinterpret_cast<const char*>(&twice), sizeof twice);
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"b":{"dtype":"F64","shape":[],"data_offsets":[12,20]}})";
  for (size_t padding = 0; padding < 8; ++padding) {
    put(file_of(header + std::string(padding, ' '), data));
    SafetensorsFile file = SafetensorsFile::open(path);
    SafetensorsFile moved = std::move(file);
    EXPECT_EQ(moved.tensor("a").at({2}), 3.0);
    EXPECT_EQ(moved.tensor("b").item(), 0.1);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(moved.tensor("b").data<double>()) % 8, 0u);
  }
}

TEST_F(SafetensorsTest, OtherTypesAreReadAsBytes) {
  put(file_of(
      R"({"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"u":{"dtype":"U8","shape":[1,1,1,1,1,1,1,3],"data_offsets":[8,11]}})",
      little_endian(0x0102030405060708) + "abc"));
  SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.dtype("i"), "I64");
  EXPECT_EQ(file.sizes("u").size(), 8u);
  EXPECT_EQ(static_cast<char>(file.bytes("u")[2]), 'c');
  EXPECT_EQ(std::to_integer<int>(file.bytes("i")[0]), 8);
  EXPECT_THROW(file.tensor("i"), Error);
  EXPECT_THROW(file.tensor("u"), Error);
}

TEST_F(SafetensorsTest, RefusesBadLengths) {
  const std::string header = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", data(8, '\0');
  expect_refused("", {"too few"});
  expect_refused("short", {"5 bytes", "too few"});
  for (const uint64_t length :
       {uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7, uint64_t{1} << 32, header.size() + 9})
    expect_refused(little_endian(length) + header + data, {"header length at byte 0 is " + std::to_string(length)});
  expect_refused(little_endian(header.size() + 8) + header + data, {"not JSON"});  // the data taken for header
  expect_refused(little_endian(0) + header + data, {"does not start with {"});
  expect_refused(little_endian(5) + header + data, {"not JSON"});
  expect_refused(file_of(header, data + "x"), {"8 to 9", "belong to no tensor"});
  expect_refused(file_of(header, data.substr(1)), {"\"w\"", "byte 8 of 7"});
  expect_refused("GIF89a, or any other file that is not one of these", {"not a safetensors file"});
}

TEST_F(SafetensorsTest, RefusesBadJson) {
  for (const char* header : {"[]", " {}", "null", "\"w\"", "x"})
    expect_header_refused(header, {"does not start with {"});
  for (const char* header : {"{", "{]", "{\"w\"}", "{} {}", "{\"w\":{},}", "{\"\xff\":1}", "{\"w\":nan}"})
    expect_header_refused(header, {"not JSON at byte"});
  expect_header_refused(std::string("{\0}", 3), {"not JSON at byte 9"});
  expect_header_refused(std::string("{}\0 ", 4), {"not JSON at byte 10"}, 0);
  expect_header_refused("{\"w\":1e999}", {"number"});
  expect_header_refused("{\"w\":" + std::string(1'000'000, '['), {"nested deeper"});
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  expect_header_refused(deep, {"nested deeper"});
}

TEST_F(SafetensorsTest, RefusesDuplicateNames) {
  const std::string entry = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  expect_header_refused("{\"w\":" + entry + ",\"w\":" + entry + "}", {"\"w\"", "twice"});
  expect_header_refused("{\"w\":" + entry + ",\"\\u0077\":" + entry + "}", {"\"w\"", "twice"});
  expect_header_refused(R"({"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                        {"\"dtype\"", "twice"});
  expect_header_refused(R"({"__metadata__":{"a":"1","a":"2"},"w":)" + entry + "}", {"\"a\"", "twice"});
  expect_header_refused(R"({"__metadata__":{},"__metadata__":{},"w":)" + entry + "}", {"__metadata__", "twice"});
}

TEST_F(SafetensorsTest, RefusesBadEntries) {
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "{\"w\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
  };
  expect_header_refused(entry("\"F31\"", "[2]", "[0,8]"), {"\"w\"", "unknown dtype \"F31\""});
  expect_header_refused(entry("\"f32\"", "[2]", "[0,8]"), {"unknown dtype"});
  expect_header_refused(entry("7", "[2]", "[0,8]"), {"\"w\"", "dtype is not a string"});
  for (const char* shape : {"2", "{}", "null", "\"[2]\""})
    expect_header_refused(entry("\"F32\"", shape, "[0,8]"), {"\"w\"", "shape"});
  for (const char* size : {"-2", "2.0", "\"2\"", "true", "null", "9223372036854775808"})
    expect_header_refused(entry("\"F32\"", "[" + std::string(size) + "]", "[0,8]"), {"\"w\"", "shape holds"});
  for (const char* offsets :
       {"8", "[]", "[0]", "[0,8,8]", "[0,8.0]", "[-1,7]", "[\"0\",\"8\"]", "[0,18446744073709551616]", "{}"})
    expect_header_refused(entry("\"F32\"", "[2]", offsets), {"\"w\"", "data_offsets is not a pair"});
  expect_header_refused(entry("\"F32\"", "[2]", "[8,0]"), {"\"w\"", "before their begin"});
  expect_header_refused(entry("\"F32\"", "[3]", "[0,8]"), {"\"w\"", "span 8 bytes", "[3]", "need 12"});
  expect_header_refused(entry("\"F64\"", "[2]", "[0,8]"), {"need 16"});
  expect_header_refused(entry("\"F64\"", "[]", "[0,0]"), {"need 8"});
  expect_header_refused(entry("\"F32\"", "[2]", "[8,16]"), {"\"w\"", "byte 16 of 8"});
  expect_header_refused(entry("\"F32\"", "[2]", "[18446744073709551608,18446744073709551615]"), {"span 7 bytes"});
  expect_header_refused(entry("\"F32\"", "[4294967296,4294967296,4]", "[0,0]"),
                        {"\"w\"", "overflows"});  // 2^64 * 4 = 0
  expect_header_refused(entry("\"F32\"", "[0,4294967296,4294967296]", "[0,0]"), {"\"w\"", "overflows"});
  expect_header_refused(entry("\"F32\"", "[[2]]", "[0,8]"), {"nested deeper"});
  expect_header_refused(R"({"w":[]})", {"\"w\"", "not an object"});
  expect_header_refused(R"({"w":{"shape":[2],"data_offsets":[0,8]}})", {"\"w\"", "no dtype"});
  expect_header_refused(R"({"w":{"dtype":"F32","data_offsets":[0,8]}})", {"\"w\"", "no shape"});
  expect_header_refused(R"({"w":{"dtype":"F32","shape":[2]}})", {"\"w\"", "no data_offsets"});
  expect_header_refused(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})",
                        {"\"w\"", "keys other than"});
  expect_header_refused(R"({"two\nlines":1})", {"two\\nlines"});
  expect_header_refused(R"({"__metadata__":[]})", {"__metadata__", "not an object"}, 0);
  expect_header_refused(R"({"__metadata__":{"step":7}})", {"\"step\"", "not a string"}, 0);
}

TEST_F(SafetensorsTest, RefusesOverlapsAndGaps) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + a +
           R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)" + b + "}}";
  };
  put(file_of(two("[8,16]", "[0,8]"), std::string(16, '\0')));
  EXPECT_EQ(SafetensorsFile::open(path).names().size(), 2u) << "the order in the data is free";
  expect_header_refused(two("[0,8]", "[4,12]"), {"\"b\" at data byte 4", "overlaps"}, 12);
  expect_header_refused(two("[0,8]", "[0,8]"), {"overlaps"});
  expect_header_refused(two("[0,8]", "[12,20]"), {"8 to 12", "before tensor \"b\""}, 20);
  expect_header_refused(two("[4,12]", "[12,20]"), {"0 to 4", "before tensor \"a\""}, 20);
  expect_header_refused(two("[0,8]", "[8,16]"), {"16 to 20", "after the last"}, 20);
  expect_header_refused("{}", {"0 to 8"});
}

TEST_F(SafetensorsTest, RefusesEveryTruncation) {
  write_small();
  const std::string whole = got();
  for (size_t length = 0; length < whole.size(); ++length) expect_refused(whole.substr(0, length), {});
  expect_refused(whole + '\0', {"belong to no tensor"});
}

TEST_F(SafetensorsTest, RefusesEveryFlippedBit) {
  write_small();
  const std::string whole = got();
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    SCOPED_TRACE("bit " + std::to_string(bit));
    expect_refused(flipped, {});
  }
  std::string last = whole;
  last.back() ^= 1;
  expect_refused(last, {"damaged", "checksum"});
  put(whole);
  EXPECT_EQ(SafetensorsFile::open(path).metadata("step"), "7");
}

TEST_F(SafetensorsTest, RefusesToWriteWhatCouldNotBeRead) {
  const Tensor x = full(arena, {1}, 1.0);
  const auto refused = [&](const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
    EXPECT_THROW(write_safetensors(path, tensors, metadata), Error);
    EXPECT_FALSE(fs::exists(path));
  };
  refused({{"a", x}, {"a", x}}, {});
  refused({{"a", x}, {"a", full(arena, {1}, 1.0, DType::f64)}}, {});
  refused({{"__metadata__", x}}, {});
  refused({{"\xff", x}}, {});
  refused({{"a", Tensor()}}, {});
  refused({{"a", x}}, {{"k", "\xc3"}});
  refused({{"a", x}}, {{"checksum", "0"}});
}

// The reference implementation in Python reads what is written here, writes it again, and that is read here.
TEST_F(SafetensorsTest, PythonReadsAndWritesTheSame) {
  // The reference implementation is in no Debian package, so a plain machine lacks it; the tests above hold the format.
  if (std::system("python3 -c 'import safetensors.numpy' 2>/dev/null") != 0)
    GTEST_SKIP() << "python3 with the packages safetensors and numpy is not here";
  write_safetensors(path,
                    {{"w", from_values(arena, {2, 2}, std::vector{1.5, -2.0, 0.1, 4.0})},
                     {"b", full(arena, {}, 0.1, DType::f64)},
                     {"none", zeros(arena, {0, 3})}},
                    {{"step", "7"}, {"name", "ü\"\n"}});
  const std::string back = (folder / "back.safetensors").string(), script = (folder / "check.py").string();
  std::ofstream(script) << R"(
import sys, struct, zlib, numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file
path, back = sys.argv[1:]
with safe_open(path, "np") as f:
    metadata = f.metadata()
    t = {k: f.get_tensor(k) for k in f.keys()}
assert sorted(t) == ["b", "none", "w"], t
assert t["w"].dtype == np.float32 and (t["w"] == np.array([[1.5, -2], [0.1, 4]], np.float32)).all(), t
assert t["b"].dtype == np.float64 and t["b"].shape == () and t["b"] == 0.1, t
assert t["none"].shape == (0, 3), t
assert metadata["step"] == "7" and metadata["name"] == "\u00fc\"\n", metadata
raw = open(path, "rb").read()
digits = metadata["checksum"].removeprefix("crc32:").encode()
assert raw.count(digits) == 1 and int(digits, 16) == zlib.crc32(raw.replace(digits, b"00000000"))
assert struct.unpack("<Q", raw[:8])[0] % 8 == 0
t["i"] = np.array([-5], np.int64)
save_file(t, back, metadata={"step": "8"})
)";
  ASSERT_EQ(std::system(("python3 " + script + " " + path + " " + back).c_str()), 0);
  SafetensorsFile file = SafetensorsFile::open(back);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"b", "i", "none", "w"}));
  EXPECT_EQ(file.metadata(), (Metadata{{"step", "8"}}));
  EXPECT_EQ(file.tensor("w").at({1, 0}), static_cast<double>(0.1f));
  EXPECT_EQ(file.tensor("b").item(), 0.1);
  EXPECT_EQ(file.tensor("none").shape(), (Shape{0, 3}));
  EXPECT_EQ(std::to_integer<int>(file.bytes("i")[0]), 0xfb);
}

}  // namespace
}  // namespace sextant
