// Training when things go wrong: killed at any moment, also inside writing a checkpoint; a full disk; a read-only
// folder; a write, flush or rename that fails. Each time the folder holds a whole checkpoint, from which the run goes
// on to the bits of an undisturbed one.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

#include "core/safetensors.h"
#include "tests/experiments/program.h"

namespace sextant::test {
namespace {

namespace fs = std::filesystem;

bool sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

class Faults : public testing::Test {
 protected:
  static constexpr const char* steps = "40";
  Folder folder_;
  std::string data_ = folder_.write("text.txt", sample_text(4000));

  std::vector<std::string> options(const std::string& run) const {
    return tiny_model(data_, run, {"--steps", steps, "--save-every", "4", "--threads", "1", "--keep", "1", "--quiet"});
  }
  // From the checkpoint when there is one, else from the start.
  std::vector<std::string> start_or_resume(const std::string& run) const {
    if (fs::exists(run + "/checkpoint.safetensors")) return {"train", "--resume", run, "--threads", "1", "--quiet"};
    return options(run);
  }
  std::string undisturbed() const {
    const std::string run = folder_.path("undisturbed");
    if (!fs::exists(run)) {
      EXPECT_EQ(sextant(options(run)).status, 0);
    }
    return run;
  }
  void expect_ends_as_undisturbed(const std::string& run) const {
    const ProgramRun last = sextant(start_or_resume(run));
    ASSERT_EQ(last.status, 0) << last.err;
    EXPECT_EQ(difference(undisturbed() + "/checkpoint.safetensors", run + "/checkpoint.safetensors"), "");
    EXPECT_EQ(metrics_without_time(undisturbed()), metrics_without_time(run));
    for (const auto& entry : fs::directory_iterator(run))
      EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos) << entry.path();
  }
  // What a checkpoint must be at any moment: missing, or whole.
  static void expect_whole_checkpoint(const std::string& run) {
    const std::string path = run + "/checkpoint.safetensors";
    if (!fs::exists(path)) return;
    SafetensorsFile file = SafetensorsFile::open(path);
    for (const std::string& name : file.names()) EXPECT_TRUE(all_finite(file.tensor(name))) << name;
  }
  static std::vector<std::string> interposed(const std::string& plan, const std::string& path) {
    return {std::string("LD_PRELOAD=") + SEXTANT_INTERPOSE_LIBRARY, "SEXTANT_INTERPOSE=" + plan,
            "SEXTANT_INTERPOSE_PATH=" + path};
  }
};

// Every kind of moment inside writing: before and within a write, before the flush, before the rename; of the first
// checkpoint and of later ones.
TEST_F(Faults, KilledInsideWritingItGoesOnBitForBit) {
  // Calls fail through a preloaded library, and a sanitizer refuses to come behind one.
  if (sanitized()) GTEST_SKIP() << "a sanitizer must be loaded first";
  int killed = 0;
  for (const char* plan : {"write=half@1", "write=kill@3", "write=half@9", "fsync=kill@1", "fsync=kill@4",
                           "fsync=kill@9", "rename=kill@1", "rename=kill@2", "rename=kill@5", "write=half@30"}) {
    SCOPED_TRACE(plan);
    const std::string run = folder_.path(plan);
    const ProgramRun stopped = sextant(options(run), interposed(plan, run));
    killed += stopped.status == 128 + SIGKILL;
    expect_whole_checkpoint(run);
    expect_ends_as_undisturbed(run);
    if (HasFatalFailure()) return;
  }
  EXPECT_GE(killed, 9);
}

TEST_F(Faults, KilledAtRandomMomentsItGoesOnBitForBit) {
  const int kills = std::getenv("SEXTANT_LONG_TESTS") != nullptr ? 50 : 8;
  std::mt19937 random(20260101);
  const std::string run = folder_.path("killed");
  int last_step = 0;
  for (int n = 0; n < kills; ++n) {
    RunningProgram running(start_or_resume(run));
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 180));
    running.kill(SIGKILL);
    running.wait();
    expect_whole_checkpoint(run);
    if (!fs::exists(run + "/checkpoint.safetensors")) continue;
    const int step = std::stoi(SafetensorsFile::open(run + "/checkpoint.safetensors").metadata("step"));
    EXPECT_GE(step, last_step);  // what was saved stays
    last_step = step;
    if (step == std::stoi(steps) && n + 1 < kills) {
      expect_ends_as_undisturbed(run);
      fs::remove_all(run);
      last_step = 0;
    }
  }
  expect_ends_as_undisturbed(run);
}

TEST_F(Faults, AFailingCallStopsTheRunAndKeepsTheCheckpoint) {
  // Calls fail through a preloaded library, and a sanitizer refuses to come behind one.
  if (sanitized()) GTEST_SKIP() << "a sanitizer must be loaded first";
  for (const auto& [call, number, at] : std::vector<std::tuple<const char*, int, int>>{
           {"write", ENOSPC, 20}, {"write", EIO, 1}, {"fsync", EIO, 6}, {"fsync", ENOSPC, 2}, {"rename", EACCES, 4}}) {
    const std::string plan = std::string(call) + "=" + std::to_string(number) + "@" + std::to_string(at);
    SCOPED_TRACE(plan);
    const std::string run = folder_.path(plan);
    const ProgramRun stopped = sextant(options(run), interposed(plan, run));
    EXPECT_EQ(stopped.status, 3) << stopped.err;
    EXPECT_EQ(count_lines(stopped.err), 1) << stopped.err;
    EXPECT_NE(stopped.err.find(run), std::string::npos) << stopped.err;
    expect_whole_checkpoint(run);
    expect_ends_as_undisturbed(run);
    if (HasFatalFailure()) return;
  }
}

// A file system of its own, gone with the object; `mounted` is false where that is not allowed.
class SmallDisk {
 public:
  SmallDisk(const std::string& path, const char* size) : path_(path) {
    fs::create_directories(path);
    mounted = ::mount("tmpfs", path.c_str(), "tmpfs", 0, size) == 0;
  }
  ~SmallDisk() {
    if (mounted) ::umount2(path_.c_str(), MNT_DETACH);
  }
  void remount(unsigned long flags, const char* size) {
    ::mount("tmpfs", path_.c_str(), "tmpfs", MS_REMOUNT | flags, size);
  }
  bool mounted;

 private:
  std::string path_;
};

TEST_F(Faults, AFullDiskStopsTheRunAndKeepsTheCheckpoint) {
  SmallDisk disk(folder_.path("disk"), "size=160k");
  // Only root, and not in every container, may mount; there is no other full disk to be had.
  if (!disk.mounted) GTEST_SKIP() << "mounting a small tmpfs is not allowed here: " << std::strerror(errno);
  const std::string run = folder_.path("disk/run");
  const ProgramRun stopped = sextant(options(run));
  EXPECT_EQ(stopped.status, 3) << stopped.err;
  EXPECT_EQ(count_lines(stopped.err), 1) << stopped.err;
  EXPECT_NE(stopped.err.find("No space left"), std::string::npos) << stopped.err;
  expect_whole_checkpoint(run);
  disk.remount(0, "size=8m");
  expect_ends_as_undisturbed(run);
}

TEST_F(Faults, AReadOnlyFolderIsRefusedInOneLine) {
  SmallDisk disk(folder_.path("disk"), "size=8m");
  if (!disk.mounted) {
    // Another user is refused by the folder's mode instead; root by nothing but a read-only mount.
    if (::geteuid() == 0) GTEST_SKIP() << "mounting is not allowed here, and root may write everywhere";
    ::chmod(folder_.path("disk").c_str(), 0555);
  }
  const std::string run = folder_.path("disk/run");
  if (disk.mounted) {
    ASSERT_EQ(sextant(tiny_model(data_, run, {"--steps", "4", "--quiet"})).status, 0);
    disk.remount(MS_RDONLY, "");
  }
  for (const auto& arguments : {options(folder_.path("disk/new")), start_or_resume(run)}) {
    const ProgramRun refused = sextant(arguments);
    EXPECT_EQ(refused.status, 3) << refused.err;
    EXPECT_EQ(count_lines(refused.err), 1) << refused.err;
    EXPECT_NE(refused.err.find("disk"), std::string::npos) << refused.err;
  }
  if (disk.mounted) expect_whole_checkpoint(run);
}

}  // namespace
}  // namespace sextant::test
