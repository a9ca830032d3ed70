// Files: read, written whole or not at all, locked, appended to; and what goes wrong on full disks and in read-only
// folders.
#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "core/error.h"

namespace sextant {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "sextant_file_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override {
    umount(in("small").c_str());  // whether or not the test got as far as mounting it
    fs::remove_all(folder);
  }

  std::string in(const std::string& name) const { return (folder / name).string(); }
  int entries(const fs::path& where) const {
    return static_cast<int>(std::distance(fs::directory_iterator(where), fs::directory_iterator()));
  }

  fs::path folder;
};

// Written and read with the standard library, independently of what is tested.
void put(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}
std::string got(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Runs f, which must throw an Error of this status whose message is one line holding each of the words.
template <class F>
void expect_error(Status status, std::initializer_list<std::string> words, F&& f) {
  try {
    f();
    FAIL() << "no error thrown";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.status(), status) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& word : words)
      EXPECT_NE(message.find(word), std::string::npos) << message << " lacks " << word;
  }
}

TEST_F(FileTest, MapsWhatIsThere) {
  const std::string content("a\0b\n\xff", 5);
  put(in("x"), content);
  MappedFile file(in("x"));
  EXPECT_EQ(file.text(), content);
  EXPECT_EQ(file.path(), in("x"));
  MappedFile moved = std::move(file);
  EXPECT_EQ(moved.text(), content);
  EXPECT_EQ(file.bytes().size(), 0u);
}

TEST_F(FileTest, MapsAnEmptyFile) {
  put(in("empty"), "");
  EXPECT_EQ(MappedFile(in("empty")).text(), "");
}

TEST_F(FileTest, MappingSurvivesReplacement) {
  put(in("x"), "old");
  const MappedFile old(in("x"));
  write_atomically(in("x"), "new and longer");
  EXPECT_EQ(old.text(), "old");
  EXPECT_EQ(MappedFile(in("x")).text(), "new and longer");
}

TEST_F(FileTest, RefusesToMapWhatIsNoFile) {
  expect_error(Status::bad_input, {in("none"), "No such file"}, [&] { MappedFile file(in("none")); });
  expect_error(Status::bad_input, {in(""), "directory"}, [&] { MappedFile file(in("")); });
  expect_error(Status::bad_input, {"/dev/null", "not a regular file"}, [&] { MappedFile file("/dev/null"); });
  ASSERT_EQ(mkfifo(in("pipe").c_str(), 0600), 0);
  expect_error(Status::bad_input, {"pipe", "not a regular file"}, [&] { MappedFile file(in("pipe")); });
}

TEST_F(FileTest, ReadsTextOfFilesAndDevices) {
  std::string large(1'000'003, 'x');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 2654435761u >> 24);
  put(in("large"), large);
  EXPECT_EQ(read_text(in("large")), large);
  EXPECT_EQ(read_text("/dev/null"), "");
  EXPECT_FALSE(read_text("/proc/self/status").empty());  // states a size of 0
  expect_error(Status::bad_input, {"large", "1000002"}, [&] { read_text(in("large"), 1'000'002); });
  EXPECT_EQ(read_text(in("large"), 1'000'003).size(), large.size());
  expect_error(Status::bad_input, {"/dev/zero"}, [&] { read_text("/dev/zero", 1 << 20); });
  expect_error(Status::bad_input, {"none"}, [&] { read_text(in("none")); });
  expect_error(Status::bad_input, {in("")}, [&] { read_text(in("")); });
}

TEST_F(FileTest, WritesAndMakesParents) {
  write_atomically(in("a/b/c.txt"), [](FileWriter& writer) {
    writer.write("one ");
    writer.write("two");
    EXPECT_EQ(writer.written(), 7u);
  });
  EXPECT_EQ(got(in("a/b/c.txt")), "one two");
  EXPECT_EQ(entries(in("a/b")), 1) << "a temporary stayed";
  write_atomically(in("a/b/c.txt"), "");
  EXPECT_EQ(got(in("a/b/c.txt")), "");
}

TEST_F(FileTest, WritesIntoTheCurrentFolder) {
  const fs::path before = fs::current_path();
  fs::current_path(folder);
  write_atomically("plain", "text");
  fs::current_path(before);
  EXPECT_EQ(got(in("plain")), "text");
}

TEST_F(FileTest, KeepsTheOldFileWhenTheWriterThrows) {
  put(in("x"), "old");
  const auto interrupted = [&] {
    write_atomically(in("x"), [](FileWriter& writer) {
      writer.write("half");
      throw std::runtime_error("interrupted");
    });
  };
  EXPECT_THROW(interrupted(), std::runtime_error);
  EXPECT_EQ(got(in("x")), "old");
  EXPECT_EQ(entries(folder), 1);
}

TEST_F(FileTest, ReplacesTheTargetOfALinkAndKeepsTheLink) {
  fs::create_directory(in("real"));
  fs::create_symlink("real/x", in("link"));
  write_atomically(in("link"), "through");
  EXPECT_TRUE(fs::is_symlink(in("link")));
  EXPECT_EQ(got(in("real/x")), "through");
  fs::create_symlink("loop", in("loop"));
  expect_error(Status::bad_input, {"loop"}, [&] { write_atomically(in("loop"), "x"); });
}

TEST_F(FileTest, RefusesPathsThatCannotBeFiles) {
  put(in("file"), "x");
  expect_error(Status::bad_input, {in("")}, [&] { write_atomically(in(""), "x"); });
  expect_error(Status::bad_input, {"without a name"}, [&] { write_atomically("", "x"); });
  expect_error(Status::bad_input, {"file"}, [&] { write_atomically(in("file/below"), "x"); });
  expect_error(Status::bad_input, {"file"}, [&] { make_folder(in("file")); });
  expect_error(Status::bad_input, {"long"}, [&] { write_atomically(in(std::string(300, 'n')), "x"); });
  EXPECT_EQ(entries(folder), 1);
  const std::string longest(255, 'n');
  write_atomically(in(longest), "fits");
  EXPECT_EQ(got(in(longest)), "fits");
}

TEST_F(FileTest, NeverReplacesADevice) {
  write_atomically("/dev/null", "gone");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  // A device of Linux that some containers leave out; the rest of the test has been checked by then.
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  expect_error(Status::environment, {"/dev/full", "No space left"}, [] { write_atomically("/dev/full", "x"); });
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST_F(FileTest, LeavesNothingOnAFullDisk) {
  fs::create_directory(in("small"));
  // Only root, and not in every container, may mount the small disk that this fills; there is no other full disk to be
  // had.
  if (mount("none", in("small").c_str(), "tmpfs", 0, "size=64k") != 0)
    GTEST_SKIP() << "needs the right to mount a small disk";
  write_atomically(in("small/x"), "old");
  const std::string large(1 << 20, 'x');
  expect_error(Status::environment, {"small/x", "No space left", "free some space"},
               [&] { write_atomically(in("small/x"), large); });
  EXPECT_EQ(got(in("small/x")), "old");
  EXPECT_EQ(entries(in("small")), 1);
  {
    CsvAppender table = CsvAppender::create(in("small/t.csv"), {"step", "text"});
    expect_error(Status::environment, {"small/t.csv", "No space left"}, [&] { table.row(1, large); });
  }
  ASSERT_EQ(mount(nullptr, in("small").c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  expect_error(Status::environment, {"small/x", "Read-only"}, [&] { write_atomically(in("small/x"), "new"); });
  expect_error(Status::environment, {"Read-only"}, [&] { make_folder(in("small/folder")); });
}

TEST_F(FileTest, NamesAFolderThatMayNotBeWritten) {
  fs::create_directory(in("locked"));
  ASSERT_EQ(chmod(in("locked").c_str(), 0555), 0);
  // Root may write everywhere: then a child that has given root up tries.
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && (chmod(folder.c_str(), 0755) != 0 || setgid(65534) != 0 || setuid(65534) != 0)) _exit(77);
    try {
      write_atomically((folder / "locked/x").string(), "x");
      _exit(1);
    } catch (const Error& error) {
      const std::string_view message = error.what();
      const bool clear = message.find("locked/x") != message.npos && message.find("Permission denied") != message.npos;
      _exit(error.status() == Status::environment && clear ? 0 : 2);
    }
  }
  int result = 0;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  ASSERT_TRUE(WIFEXITED(result));
  // Root in a container without the right to change users: nothing there is forbidden to it, so nothing can be refused.
  if (WEXITSTATUS(result) == 77) GTEST_SKIP() << "root that cannot become another user";
  EXPECT_EQ(WEXITSTATUS(result), 0);
}

// The writer is killed in the middle: the old file stays, and the next run removes what the killed one left.
TEST_F(FileTest, SurvivesAKill) {
  put(in("x"), "old");
  const pid_t child = fork();
  if (child == 0) {
    write_atomically(in("x"), [](FileWriter& writer) {
      writer.write("half");
      raise(SIGKILL);
    });
    _exit(0);
  }
  int result = 0;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  ASSERT_TRUE(WIFSIGNALED(result));
  EXPECT_EQ(got(in("x")), "old");
  EXPECT_EQ(entries(folder), 2) << "the test should find the killed writer's temporary";
  RunLock lock(folder.string());
  EXPECT_EQ(entries(folder), 2) << "x and the lock";
}

TEST_F(FileTest, LockLeavesALiveWritersTemporaryAlone) {
  write_atomically(in("run/x"), [&](FileWriter& writer) {
    writer.write("by another ");
    RunLock lock(in("run"));
    writer.write("process");
  });
  EXPECT_EQ(got(in("run/x")), "by another process");
}

TEST_F(FileTest, LockIsHeldByOne) {
  {
    RunLock lock(in("run"));
    expect_error(Status::bad_input, {in("run"), "another process", std::to_string(getpid())},
                 [&] { RunLock second(in("run")); });
    const pid_t child = fork();
    if (child == 0) {
      try {
        RunLock second(in("run"));
        _exit(1);
      } catch (const Error&) {
        _exit(0);
      }
    }
    int result = 0;
    ASSERT_EQ(waitpid(child, &result, 0), child);
    EXPECT_EQ(result, 0) << "a second process got the lock";
    expect_error(Status::bad_input, {"another process"},
                 [&] { RunLock third(in("run")); });  // still held after its refusal
  }
  RunLock again(in("run"));
  expect_error(Status::bad_input, {"odd/.lock"}, [&] {
    fs::create_directories(in("odd/.lock"));
    RunLock odd(in("odd"));
  });
}

TEST(CsvField, QuotesWhatNeedsIt) {
  EXPECT_EQ(csv_field("plain"), "plain");
  EXPECT_EQ(csv_field(""), "");
  EXPECT_EQ(csv_field("a,b"), "\"a,b\"");
  EXPECT_EQ(csv_field("say \"x\""), "\"say \"\"x\"\"\"");
  EXPECT_EQ(csv_field("two\nlines"), "\"two\nlines\"");
}

TEST_F(FileTest, AppendsRows) {
  const std::string path = in("t.csv");
  CsvAppender table = CsvAppender::create(path, {"step", "loss", "position"});
  EXPECT_EQ(got(path), "step,loss,position\n");
  table.row(1, 0.1, "rope(base=10000,factor=2)");
  EXPECT_EQ(got(path), "step,loss,position\n1,0.1,\"rope(base=10000,factor=2)\"\n") << "a row waited in a buffer";
  table.row(2, std::numeric_limits<double>::quiet_NaN(), "none");
  EXPECT_NE(got(path).find("\n2,nan,none\n"), std::string::npos);
  expect_error(Status::bad_input, {path, "2 fields", "3 columns"}, [&] { table.row(3, 0.5); });
}

TEST_F(FileTest, NumbersReadBackToTheSameBits) {
  const double values[] = {0.1, 1.0 / 3, 1e-310, 1.7976931348623157e308, -2.0};
  CsvAppender table = CsvAppender::create(in("t.csv"), {"step", "value"});
  for (int i = 0; i < 5; ++i) table.row(i, values[i]);
  std::ifstream lines(in("t.csv"));
  std::string line;
  std::getline(lines, line);
  for (const double value : values) {
    std::getline(lines, line);
    EXPECT_EQ(std::strtod(line.c_str() + line.find(',') + 1, nullptr), value);
  }
}

TEST_F(FileTest, ResumesAfterAStep) {
  const std::string path = in("t.csv"), start = "step,loss\n10,2.5\n20,2.25\n", rest = "30,2\n40,1.7";
  put(path, start + rest);  // the last line is torn
  {
    CsvAppender table = CsvAppender::resume(path, {"step", "loss"}, 20);
    EXPECT_EQ(got(path), start);
    table.row(30, 1.5);
    table.sync();
  }
  EXPECT_EQ(got(path), start + "30,1.5\n");
  put(path, start + rest);
  CsvAppender::resume(path, {"step", "loss"}, 1000);
  EXPECT_EQ(got(path), start + "30,2\n") << "only the torn line goes";
  CsvAppender::resume(path, {"step", "loss"}, 0);
  EXPECT_EQ(got(path), "step,loss\n");
}

TEST_F(FileTest, ResumeOfAMissingOrForeignTable) {
  CsvAppender::resume(in("new.csv"), {"step", "loss"}, 5);
  EXPECT_EQ(got(in("new.csv")), "step,loss\n");
  put(in("other.csv"), "step,accuracy\n1,2\n");
  expect_error(Status::bad_input, {"other.csv", "step,loss"}, [&] {
    CsvAppender::resume(in("other.csv"), {"step", "loss"}, 5);
  });
  put(in("odd.csv"), "step,loss\n1,2\nx,3\n");
  expect_error(Status::bad_input, {"odd.csv", "byte 14"}, [&] {
    CsvAppender::resume(in("odd.csv"), {"step", "loss"}, 5);
  });
  put(in("odd.csv"), "step,loss\n1.5,2\n");
  expect_error(Status::bad_input, {"odd.csv", "byte 10"}, [&] {
    CsvAppender::resume(in("odd.csv"), {"step", "loss"}, 5);
  });
}

}  // namespace
}  // namespace sextant
