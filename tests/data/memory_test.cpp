// Nothing is loaded whole: corpora are opened and read by a process that may not allocate as much as they hold.
#include <sys/resource.h>
#include <unistd.h>
#include <zlib.h>

#include "data/batch.h"
#include "data/corpus.h"
#include "data/statistics.h"
#include "tests/data/temporary.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SEXTANT_SANITIZED 1
#endif

namespace sextant {
namespace {

constexpr int64_t corpus_bytes = int64_t{96} << 20;
constexpr int64_t allowed_bytes = int64_t{32} << 20;  // on top of what the process has

int64_t data_segment() {
  int64_t kilobytes = 0;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmData:")) kilobytes = std::atoll(line.c_str() + 7);
  return kilobytes << 10;
}

// Exits with 0 when all of the corpus could be opened, counted and drawn from.
[[noreturn]] void use_within_limit(const std::string& path) {
  const rlim_t most = static_cast<rlim_t>(data_segment() + allowed_bytes);
  const rlimit limit{most, most};  // anonymous memory; what is mapped from a file is not counted
  if (setrlimit(RLIMIT_DATA, &limit) != 0) _exit(70);
  try {
    const auto corpus = open_corpus(path);
    const CorpusStatistics s = statistics(*corpus);
    Batch batch;
    Batches(*corpus, Split::train, 4, 1024, 1).fill(0, batch);
    _exit(s.tokens >= corpus_bytes ? 0 : 71);
  } catch (const std::exception& error) {
    std::fputs(error.what(), stderr);
    _exit(72);
  }
}

class MemoryTest : public DataTest {
 protected:
  void SetUp() override {
    DataTest::SetUp();
#ifdef SEXTANT_SANITIZED
    GTEST_SKIP() << "sanitizers allocate as they please";
#endif
  }
  static void expect_readable(const std::string& path) {
    EXPECT_EXIT(use_within_limit(path), testing::ExitedWithCode(0), "") << path;
  }
};

TEST_F(MemoryTest, TheLimitBites) {
  const auto allocate = [] {
    const rlim_t most = static_cast<rlim_t>(data_segment() + allowed_bytes);
    const rlimit limit{most, most};
    if (setrlimit(RLIMIT_DATA, &limit) != 0) _exit(70);
    try {
      const std::vector<char> all(corpus_bytes, 'x');
      _exit(all[corpus_bytes / 2] == 'x' ? 0 : 1);
    } catch (const std::bad_alloc&) {
      _exit(73);
    }
  };
  EXPECT_EXIT(allocate(), testing::ExitedWithCode(73), "");
}

TEST_F(MemoryTest, PlainText) {
  const std::string path = write("large.txt", "begin");
  fs::resize_file(path, corpus_bytes);
  expect_readable(path);
}

TEST_F(MemoryTest, Gzip) {
  const std::string path = in("large.txt.gz");
  const gzFile file = gzopen(path.c_str(), "wb1");
  const std::string piece(size_t{1} << 20, 'x');
  for (int64_t i = 0; i < corpus_bytes >> 20; ++i) gzwrite(file, piece.data(), static_cast<unsigned>(piece.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
  expect_readable(path);
}

TEST_F(MemoryTest, JsonLines) {
  const std::string path = in("large.jsonl");
  std::ofstream file(path);
  const std::string record = "{\"text\": \"" + std::string(size_t{1} << 20, 'x') + "\"}\n";
  for (int64_t i = 0; i < corpus_bytes >> 20; ++i) file << record;
  file.close();
  expect_readable(path);
}

}  // namespace
}  // namespace sextant
