#include "data/corpus.h"

#include <algorithm>
#include <cassert>

#include "core/error.h"

namespace sextant {

const char* name_of(Split split) {
  constexpr std::array<const char*, 3> names = {"train", "validation", "test"};
  return names[static_cast<size_t>(split)];
}

Split split_from(std::string_view name) {
  for (Split split : all_splits)
    if (name == name_of(split)) return split;
  fail("no split is called '{}'; there are train, validation, test", name);
}

Corpus::Corpus(std::string name, TokenKind kind, int64_t vocabulary, std::string sha256, std::string split_rule,
               std::vector<Run> runs, std::vector<std::string> warnings)
    : name_(std::move(name)),
      kind_(kind),
      vocabulary_(vocabulary),
      sha256_(std::move(sha256)),
      split_rule_(std::move(split_rule)),
      warnings_(std::move(warnings)) {
  std::array<int64_t, 3> sizes{};
  for (Run& run : runs) {
    assert(run.width == 1 || run.width == 2);
    const size_t s = static_cast<size_t>(run.split);
    files_.push_back({run.file, run.split, sizes[s], run.tokens});
    if (run.tokens == 0) continue;
    begins_[s].push_back(sizes[s]);
    sizes[s] += run.tokens;
    runs_[s].push_back(std::move(run));
  }
  for (size_t s = 0; s < sizes.size(); ++s) begins_[s].push_back(sizes[s]);
}

int64_t Corpus::size(Split split) const {
  return begins_[static_cast<size_t>(split)].back();
}

void Corpus::read(Split split, int64_t offset, std::span<int32_t> out) const {
  const int64_t count = static_cast<int64_t>(out.size());
  require(offset >= 0 && count <= size(split) - offset, "{}: tokens [{}, {}) are not inside the {} split of {} tokens",
          name_, offset, offset + count, name_of(split), size(split));
  const auto& runs = runs_[static_cast<size_t>(split)];
  const auto& begins = begins_[static_cast<size_t>(split)];
  size_t r = static_cast<size_t>(std::upper_bound(begins.begin(), begins.end(), offset) - begins.begin()) - 1;
  int32_t* to = out.data();
  for (int64_t left = count; left > 0; ++r) {
    const int64_t from = offset + (count - left) - begins[r], taken = std::min(left, runs[r].tokens - from);
    if (runs[r].width == 1) {
      to = std::copy_n(static_cast<const uint8_t*>(runs[r].data) + from, taken, to);
    } else {
      to = std::copy_n(static_cast<const uint16_t*>(runs[r].data) + from, taken, to);
    }
    left -= taken;
  }
}

}  // namespace sextant
