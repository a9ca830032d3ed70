// How far a long piece of work is: one line that is written over on a terminal, now and then a plain line into a pipe
// or file, nothing when quiet.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace sextant {

class Progress {
 public:
  // `output` null: quiet. `lines`: how many plain lines the whole work gets at most when the output is no terminal.
  explicit Progress(std::FILE* output, int lines = 20);
  // A part of a longer work: what it reports moves `whole`, which must outlive it, from the share `begin` to the share
  // `end` (0 .. 1), its text behind `prefix`.
  Progress(Progress& whole, double begin, double end, std::string prefix = "");
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // After `done` of `total` pieces. `text` is shown with the time left, which is counted from where the first call
  // started.
  void update(int64_t done, int64_t total, std::string_view text);
  // Whether the next update would be shown: spares making its text.
  bool due(int64_t done, int64_t total);
  // A line of its own, above the updating one.
  void line(std::string_view text);
  void finish();  // leaves the updating line behind; that of a part goes on with the whole

 private:
  using Clock = std::chrono::steady_clock;

  void begin_at(double share);  // of the work that was done before the first call, not in this time
  void show(double share, std::string_view text);
  bool due(double share) const;

  std::FILE* output_;
  bool terminal_;
  int lines_;
  Progress* whole_ = nullptr;
  double begin_ = 0, end_ = 1;
  std::string prefix_;
  bool shown_ = false;
  double first_ = -1, last_share_ = 0;
  Clock::time_point start_ = Clock::now(), last_{};
};

std::string duration_text(double seconds);  // "12 s", "3 min 20 s", "2 h 5 min"
std::string count_text(double count);       // "950", "15.2k", "1.31M", "2.05G"
std::string bytes_text(double bytes);       // "512 B", "3.2 MiB"

}  // namespace sextant
