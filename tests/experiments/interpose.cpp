// A library to be preloaded (LD_PRELOAD): makes a system call of the program fail, or kills the program in it.
//
//   SEXTANT_INTERPOSE="CALL=WHAT@N"   the N-th CALL (write, fsync, rename; from 1) on a path that contains
//   SEXTANT_INTERPOSE_PATH            does WHAT: an errno's number for that call and all later ones, `kill` before the
//                                     call, or `half`: half of a write is done, then the program is killed
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

enum class Act { pass, fail, kill, half };

Act what_to_do(const char* call, const char* path) {
  static std::atomic<long> count{0};
  const char* plan = std::getenv("SEXTANT_INTERPOSE");
  const char* part = std::getenv("SEXTANT_INTERPOSE_PATH");
  if (plan == nullptr || part == nullptr || std::strstr(path, part) == nullptr) return Act::pass;
  const size_t name = std::strcspn(plan, "=");
  if (std::strlen(call) != name || std::strncmp(call, plan, name) != 0) return Act::pass;
  const char* what = plan + name + 1;
  const long wanted = std::strtol(std::strchr(plan, '@') + 1, nullptr, 10), now = ++count;
  if (std::strncmp(what, "kill", 4) == 0) return now == wanted ? Act::kill : Act::pass;
  if (std::strncmp(what, "half", 4) == 0) return now == wanted ? Act::half : Act::pass;
  if (now < wanted) return Act::pass;
  errno = static_cast<int>(std::strtol(what, nullptr, 10));
  return Act::fail;
}

Act what_to_do(const char* call, int descriptor) {
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = ::readlink(link, path, sizeof path - 1);
  path[length > 0 ? length : 0] = '\0';
  return what_to_do(call, path);
}

void die() {
  ::kill(::getpid(), SIGKILL);
  ::pause();
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" ssize_t write(int descriptor, const void* data, size_t size) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  const Act act = what_to_do("write", descriptor);
  if (act == Act::fail) return -1;
  if (act == Act::half) real(descriptor, data, size / 2);
  if (act != Act::pass) die();
  return real(descriptor, data, size);
}

extern "C" int fsync(int descriptor) {
  static const auto real = next<int (*)(int)>("fsync");
  const Act act = what_to_do("fsync", descriptor);
  if (act == Act::fail) return -1;
  if (act != Act::pass) die();
  return real(descriptor);
}

extern "C" int rename(const char* from, const char* to) noexcept {
  static const auto real = next<int (*)(const char*, const char*)>("rename");
  const Act act = what_to_do("rename", to);
  if (act == Act::fail) return -1;
  if (act != Act::pass) die();
  return real(from, to);
}
