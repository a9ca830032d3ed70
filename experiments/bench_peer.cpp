#include "experiments/bench_peer.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "torch_peer.h"

extern char** environ;

namespace sextant {

using nlohmann::json;

TorchPeer::TorchPeer() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    fail_environment("--peer torch: no socket to talk to python3: {}", std::strerror(errno));
  socket_ = ends[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::array<std::string, 3> words = {"python3", "-c", torch_peer_script};
  std::array<char*, 4> argv = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  const int error = ::posix_spawnp(&child_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (error != 0) {
    ::close(socket_);
    fail_environment("--peer torch: python3 cannot be run ({}): install it, for example by `apt install python3`",
                     std::strerror(error));
  }
  try {
    const json hello = read_answer();
    if (hello.contains("error"))
      fail_environment("--peer torch: python3 cannot import PyTorch ({}): install it by `python3 -m pip install torch`",
                       hello["error"].get<std::string>());
    version_ = hello.at("version");
  } catch (...) {
    stop();
    throw;
  }
}

TorchPeer::~TorchPeer() {
  stop();
}

void TorchPeer::stop() {
  ::close(socket_);  // the end of its input ends it
  while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) continue;
}

json TorchPeer::ask(const json& request) {
  const std::string line = request.dump() + "\n";
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t count = ::send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_environment("--peer torch: python3 has ended before its time: {}", std::strerror(errno));
    sent += static_cast<size_t>(count);
  }
  return read_answer();
}

json TorchPeer::demand(const json& request) {
  json answer = ask(request);
  if (answer.contains("error"))
    fail_environment("--peer torch: {} failed: {}", request.at("do").get<std::string>(),
                     answer["error"].get<std::string>());
  return answer;
}

json TorchPeer::read_answer() {
  std::array<char, 4096> buffer;
  for (size_t end = received_.find('\n'); end == std::string::npos; end = received_.find('\n')) {
    const ssize_t count = ::read(socket_, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail_environment("--peer torch: python3 has ended before its time (out of memory?)");
    received_.append(buffer.data(), static_cast<size_t>(count));
  }
  const size_t end = received_.find('\n');
  const std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  json answer = json::parse(line, nullptr, false);
  if (!answer.is_object()) fail_environment("--peer torch: '{}' is no answer", line.substr(0, 200));
  return answer;
}

}  // namespace sextant
