// Ranks that are threads of the test, to test what runs over ranks without MPI.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/communicator.h"

namespace sextant::test {

class ThreadRanks {
 public:
  // f(ranks) once for each rank, at the same time.
  static void run(int count, const std::function<void(Communicator&)>& f) {
    ThreadRanks shared;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count; ++rank)
      threads.emplace_back([&, rank] {
        Rank own(shared, rank, count);
        f(own);
      });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  using Bytes = std::vector<std::byte>;

  class Rank final : public Communicator {
   public:
    Rank(ThreadRanks& shared, int rank, int size) : Communicator(rank, size), shared_(shared) {}
    std::vector<std::string> gather(const std::string& text) override {
      for (int to = 0; to < size(); ++to) shared_.send(rank(), to, std::as_bytes(std::span(text)));
      std::vector<std::string> all;
      for (int from = 0; from < size(); ++from) {
        const Bytes bytes = shared_.receive(from, rank());
        all.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
      return all;
    }
    void exchange(int partner, std::span<const std::byte> send, std::span<std::byte> receive) override {
      shared_.send(rank(), partner, send);
      const Bytes bytes = shared_.receive(partner, rank());
      if (bytes.size() != receive.size()) throw std::logic_error("the partner sent another number of bytes");
      if (!bytes.empty()) std::memcpy(receive.data(), bytes.data(), bytes.size());
    }
    void abort(int) override { std::abort(); }

   private:
    ThreadRanks& shared_;
  };

  void send(int from, int to, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    letters_[{from, to}].emplace_back(bytes.begin(), bytes.end());
    changed_.notify_all();
  }
  Bytes receive(int from, int to) {
    std::unique_lock lock(mutex_);
    std::deque<Bytes>& letters = letters_[{from, to}];
    changed_.wait(lock, [&] { return !letters.empty(); });
    Bytes bytes = std::move(letters.front());
    letters.pop_front();
    return bytes;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<Bytes>> letters_;
};

}  // namespace sextant::test
