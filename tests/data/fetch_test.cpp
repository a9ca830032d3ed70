// Downloads from a server on loopback (http_server.py) that is good, truncated, slow, or wrong; and unpacking.
#include "data/fetch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/sha256.h"
#include "data/archive.h"
#include "data/corpus.h"
#include "data/process.h"
#include "tests/data/temporary.h"

namespace sextant {
namespace {

bool has_program(const std::string& name) {
  try {
    return run_program({name, "--version"}).status == 0;
  } catch (const Error&) {
    return false;
  }
}

class FetchTest : public DataTest {
 protected:
  void SetUp() override {
    DataTest::SetUp();
    // curl is what fetches, python3 the server it fetches from; neither is needed to build. The test scripts install
    // both.
    if (!has_program("curl") || !has_program("python3")) GTEST_SKIP() << "needs curl and python3";
    int to_server[2], from_server[2];
    ASSERT_EQ(pipe2(to_server, O_CLOEXEC), 0);
    ASSERT_EQ(pipe2(from_server, O_CLOEXEC), 0);
    server = fork();
    if (server == 0) {
      dup2(to_server[0], 0);
      dup2(from_server[1], 1);
      execlp("python3", "python3", SEXTANT_SOURCE_DIR "/tests/data/http_server.py", nullptr);
      _exit(127);
    }
    close(to_server[0]);
    close(from_server[1]);
    keep_alive = to_server[1];
    std::string port;
    for (char c = 0; ::read(from_server[0], &c, 1) == 1 && c != '\n';) port += c;
    close(from_server[0]);
    ASSERT_FALSE(port.empty());
    base = "http://127.0.0.1:" + port + "/";
    for (int i = 0; i < 100000; ++i) content_sent += static_cast<char>(int64_t{i} * i % 251);
    hash = sha256_hex(content_sent);
    options.allow_loopback = true;
  }
  void TearDown() override {
    if (keep_alive >= 0) close(keep_alive);
    if (server > 0) waitpid(server, nullptr, 0);
    DataTest::TearDown();
  }

  std::string get(const std::string& path, std::string expected_hash, std::vector<std::string> more = {}) {
    std::vector<std::string> urls = {base + path};
    for (const std::string& other : more) urls.push_back(base + other);
    return download({urls, std::move(expected_hash), ""}, in("file"), options);
  }
  std::string requests() const { return run_program({"curl", "--silent", "--noproxy", "*", base + "requests"}).output; }
  bool nothing_left() const { return !fs::exists(in("file")) && !fs::exists(in("file.download")); }

  pid_t server = -1;
  int keep_alive = -1;
  std::string base, content_sent, hash;
  FetchOptions options;
};

TEST_F(FetchTest, Good) {
  EXPECT_EQ(get("good", hash), hash);
  EXPECT_EQ(content(in("file")), content_sent);
  EXPECT_FALSE(fs::exists(in("file.download")));
  EXPECT_EQ(get("good/2", ""), hash);  // without a known hash it is computed
}

TEST_F(FetchTest, TruncatedIsGoneOnWith) {
  EXPECT_EQ(get("truncated", hash), hash);
  EXPECT_EQ(content(in("file")), content_sent);
  EXPECT_EQ(requests(), "/truncated whole\n/truncated bytes=50000-");
}

TEST_F(FetchTest, AlwaysTruncatedKeepsWhatArrivedForTheNextCall) {
  options.attempts = 2;
  Status status = Status::done;
  const std::string message = error_of([&] { get("always-truncated", hash); }, &status);
  EXPECT_NE(message.find("the transfer ended before the file was whole"), std::string::npos) << message;
  EXPECT_EQ(status, Status::environment);
  EXPECT_FALSE(fs::exists(in("file")));
  EXPECT_EQ(fs::file_size(in("file.download")), 75000u);
  EXPECT_EQ(get("good", hash), hash);
  EXPECT_EQ(content(in("file")), content_sent);
  EXPECT_TRUE(requests().ends_with("/good bytes=75000-")) << requests();
}

TEST_F(FetchTest, AServerThatCannotResumeIsAskedForAll) {
  write("file.download", content_sent.substr(0, 1234));
  EXPECT_EQ(get("norange", hash), hash);
  EXPECT_EQ(content(in("file")), content_sent);
}

TEST_F(FetchTest, CompleteButNotYetMovedNeedsNoServer) {
  write("file.download", content_sent);
  EXPECT_EQ(get("404", hash), hash);
  EXPECT_EQ(requests(), "");
}

TEST_F(FetchTest, WrongHashLeavesNothing) {
  const std::string wrong(64, '0');
  EXPECT_ERROR(get("good", wrong), hash, wrong, "removed");
  EXPECT_TRUE(nothing_left());
  // A rotten piece of an earlier download is found the same way, and then all of the file is asked for.
  write("file.download", "rotten");
  EXPECT_EQ(get("good", hash), hash);
  EXPECT_EQ(content(in("file")), content_sent);
}

TEST_F(FetchTest, NotFound) {
  Status status = Status::done;
  EXPECT_NE(error_of([&] { get("nothing", hash); }, &status).find("the server answered 404"), std::string::npos);
  EXPECT_EQ(status, Status::bad_input);
  EXPECT_TRUE(nothing_left());
  EXPECT_EQ(get("nothing", hash, {"good"}), hash);  // the second place has it
}

TEST_F(FetchTest, SlowIsGivenUp) {
  options.stall_seconds = 1;
  options.attempts = 1;
  EXPECT_ERROR(get("slow", hash), "nothing arrived for too long", "the next call goes on");
  EXPECT_FALSE(fs::exists(in("file")));
}

TEST_F(FetchTest, EmptyAndUnreachable) {
  EXPECT_ERROR(get("empty", ""), "empty");
  EXPECT_TRUE(nothing_left());
  Status status = Status::done;
  const std::string message = error_of(
      [&] {
        download({{"http://127.0.0.1:1/x"}, "", ""}, in("file"), options);
      },
      &status);
  EXPECT_NE(message.find("cannot be reached"), std::string::npos) << message;
  EXPECT_EQ(status, Status::environment);
  EXPECT_TRUE(nothing_left());
}

TEST_F(FetchTest, OnlyHttpsOutsideOfTests) {
  options.allow_loopback = false;
  EXPECT_ERROR(get("good", hash), "curl ended with status 1");
  EXPECT_EQ(requests(), "");
}

TEST_F(FetchTest, ASetIsInstalledOnceAndItsHashLocked) {
  NamedSet set{.name = "numbers",
               .description = "",
               .licence = "",
               .places = {"text/numbers.txt"},
               .downloads = {{{base + "good"}, "", "text/numbers.txt"}}};
  std::string said;
  options.say = [&](const std::string& line) { said += line + "\n"; };
  fetch_set(set, options);
  EXPECT_EQ(content(fetched_directory() / "text" / "numbers.txt"), content_sent);
  EXPECT_EQ(content(fetched_directory() / "hashes.lock"), hash + "  " + base + "good\n");
  EXPECT_NE(said.find("no SHA-256 is published"), std::string::npos);
  fetch_set(set, options);
  EXPECT_EQ(requests(), "/good whole");
  // Other content than at first use is refused.
  fs::remove(fetched_directory() / "text" / "numbers.txt");
  std::ofstream(fetched_directory() / "hashes.lock") << std::string(64, 'a') << "  " << base << "good\n";
  EXPECT_ERROR(fetch_set(set, options), std::string(64, 'a'), hash);
  EXPECT_FALSE(fs::exists(fetched_directory() / "text" / "numbers.txt"));
}

TEST(Fetch, UnknownNames) {
  EXPECT_ERROR(fetch("tiny-shakespear", {}), "tiny-shakespeare", "maestro");
  EXPECT_ERROR(fetch("canon", {}), "generated");
}

TEST(Fetch, AMissingProgramIsNamed) {
  Status status = Status::done;
  EXPECT_NE(error_of([] { run_program({"sextant-no-such-program"}); }, &status).find("sextant-no-such-program"),
            std::string::npos);
  EXPECT_EQ(status, Status::environment);
}

class ArchiveTest : public DataTest {
 protected:
  void SetUp() override {
    DataTest::SetUp();
    // python3 makes the archives, so that they are not our own writing. The test scripts install it.
    if (!has_program("python3")) GTEST_SKIP() << "needs python3";
  }
  void python(const std::string& code) const { ASSERT_EQ(run_program({"python3", "-c", code}).status, 0); }
};

TEST_F(ArchiveTest, ZipByAnotherProgram) {
  python("import zipfile\nz = zipfile.ZipFile('" + in("a.zip") +
         "', 'w')\nz.writestr('d/deflated.txt', 'abc' * 200000, zipfile.ZIP_DEFLATED)\nz.writestr('stored', b'xyz', "
         "zipfile.ZIP_STORED)\nz.writestr('empty', b'', zipfile.ZIP_DEFLATED)\nz.close()");
  unpack(in("a.zip"), in("out"));
  std::string abc;
  for (int i = 0; i < 200000; ++i) abc += "abc";
  EXPECT_EQ(content(in("out/d/deflated.txt")), abc);
  EXPECT_EQ(content(in("out/stored")), "xyz");
  EXPECT_EQ(content(in("out/empty")), "");
  // Every truncation and a flipped bit in the content are found.
  const std::string whole = content(in("a.zip"));
  for (const size_t size : {size_t{0}, size_t{1}, size_t{21}, whole.size() / 2, whole.size() - 1})
    EXPECT_FALSE(error_of([&] { unpack(write("cut.zip", whole.substr(0, size)), in("cut")); }).empty()) << size;
  std::string flipped = whole;
  flipped[whole.find("xyz")] ^= 1;
  EXPECT_ERROR(unpack(write("flipped.zip", flipped), in("flipped")), "'stored'", "damaged");
  EXPECT_FALSE(fs::exists(in("flipped/stored")));
}

TEST_F(ArchiveTest, MembersStayInside) {
  python("import zipfile\nz = zipfile.ZipFile('" + in("a.zip") + "', 'w')\nz.writestr('../outside', b'x')\nz.close()");
  EXPECT_ERROR(unpack(in("a.zip"), in("out")), "../outside", "leads out");
  EXPECT_FALSE(fs::exists(in("outside")));
}

TEST_F(ArchiveTest, Tar) {
  python("import tarfile, io\nt = tarfile.open('" + in("a.tar.gz") +
         "', 'w:gz')\ni = tarfile.TarInfo('d/f')\ni.size = 3\nt.addfile(i, io.BytesIO(b'abc'))\nt.close()");
  unpack(in("a.tar.gz"), in("out"));
  EXPECT_EQ(content(in("out/d/f")), "abc");
  EXPECT_ERROR(unpack(write("bad.tar.gz", "no archive"), in("bad")), "bad.tar.gz");
}

}  // namespace
}  // namespace sextant
