#include "experiments/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace sextant {

namespace {

constexpr auto between_repaints = std::chrono::milliseconds(100);

}  // namespace

Progress::Progress(std::FILE* output, int lines)
    : output_(output), terminal_(output != nullptr && ::isatty(::fileno(output)) != 0), lines_(lines) {}

Progress::Progress(Progress& whole, double begin, double end, std::string prefix)
    : output_(whole.output_),
      terminal_(whole.terminal_),
      lines_(whole.lines_),
      whole_(&whole),
      begin_(begin),
      end_(end),
      prefix_(std::move(prefix)) {}

bool Progress::due(double share) const {
  if (output_ == nullptr) return false;
  if (whole_ != nullptr) return whole_->due(begin_ + (end_ - begin_) * share);
  if (share >= 1) return true;
  if (terminal_) return Clock::now() - last_ >= between_repaints;
  const auto line = [&](double at) { return std::floor(at * lines_ + 1e-9); };
  return line(share) > line(last_share_);
}

bool Progress::due(int64_t done, int64_t total) {
  begin_at(static_cast<double>(done - 1) / static_cast<double>(total));
  return due(static_cast<double>(done) / static_cast<double>(total));
}

void Progress::update(int64_t done, int64_t total, std::string_view text) {
  begin_at(static_cast<double>(done - 1) / static_cast<double>(total));
  show(static_cast<double>(done) / static_cast<double>(total), text);
}

void Progress::begin_at(double share) {
  if (whole_ != nullptr) return whole_->begin_at(begin_ + (end_ - begin_) * share);
  if (first_ < 0) first_ = std::max(0.0, share);
}

void Progress::show(double share, std::string_view text) {
  if (whole_ != nullptr) return whole_->show(begin_ + (end_ - begin_) * share, prefix_ + std::string(text));
  if (!due(share)) return;
  last_ = Clock::now();
  last_share_ = share;
  const double elapsed = std::chrono::duration<double>(last_ - start_).count();
  const double left = elapsed / std::max(1e-9, share - first_) * (1 - share);
  const std::string ending =
      share >= 1 ? fmt::format("in {}", duration_text(elapsed)) : fmt::format("{} left", duration_text(left));
  // Erase to the end of the line: the new text may be shorter.
  fmt::print(output_, "{}{}  {}{}", terminal_ ? "\r" : "", text, ending, terminal_ ? "\x1b[K" : "\n");
  std::fflush(output_);
  shown_ = true;
}

void Progress::line(std::string_view text) {
  if (output_ == nullptr) return;
  if (whole_ != nullptr) return whole_->line(prefix_ + std::string(text));
  fmt::print(output_, "{}{}\n", terminal_ && shown_ ? "\r\x1b[K" : "", text);
  std::fflush(output_);
}

void Progress::finish() {
  if (whole_ != nullptr) return;
  if (terminal_ && shown_) fmt::print(output_, "\n");
  shown_ = false;
  first_ = -1;
  last_share_ = 0;
  start_ = Clock::now();
}

std::string duration_text(double seconds) {
  if (seconds < 10) return fmt::format("{:.1f} s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string count_text(double count) {
  if (count < 1e3) return fmt::format("{:.0f}", count);
  if (count < 1e5) return fmt::format("{:.1f}k", count / 1e3);
  if (count < 1e6) return fmt::format("{:.0f}k", count / 1e3);
  if (count < 1e9) return fmt::format("{:.2f}M", count / 1e6);
  return fmt::format("{:.2f}G", count / 1e9);
}

std::string bytes_text(double bytes) {
  if (bytes < 1024) return fmt::format("{:.0f} B", bytes);
  if (bytes < 1024.0 * 1024) return fmt::format("{:.1f} KiB", bytes / 1024);
  if (bytes < 1024.0 * 1024 * 1024) return fmt::format("{:.1f} MiB", bytes / (1024.0 * 1024));
  return fmt::format("{:.2f} GiB", bytes / (1024.0 * 1024 * 1024));
}

}  // namespace sextant
