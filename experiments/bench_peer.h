// The other side of `sextant bench --peer torch`: a Python process that builds the same model in PyTorch and times it
// on request (torch_peer.py, which travels inside the program), so that both can be timed by turns.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>

namespace sextant {

class TorchPeer {
 public:
  // Starts `python3`. Throws Error (environment) when there is none, or when it has no torch, saying how to get it.
  TorchPeer();
  ~TorchPeer();
  TorchPeer(const TorchPeer&) = delete;
  TorchPeer& operator=(const TorchPeer&) = delete;

  const std::string& version() const { return version_; }

  // Sends one request (torch_peer.py lists them) and waits for its answer. Throws Error (environment) when the process
  // has ended; that a request failed is in the answer's "error".
  nlohmann::json ask(const nlohmann::json& request);
  // The same, for what has no reason to fail: throws Error (environment) when it does.
  nlohmann::json demand(const nlohmann::json& request);

 private:
  nlohmann::json read_answer();
  void stop();

  pid_t child_ = -1;
  int socket_ = -1;
  std::string received_;  // what came after the last whole line
  std::string version_;
};

}  // namespace sextant
