#include "experiments/kept_checkpoints.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"

namespace sextant {

namespace fs = std::filesystem;

std::vector<std::string> kept_checkpoints(const std::string& folder) {
  constexpr std::string_view start = "checkpoint-", end = ".safetensors";
  std::vector<std::string> kept;
  std::error_code ignored;  // no folder, none kept
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(start) && name.find_first_not_of("0123456789", start.size()) == name.size() - end.size() &&
        name.ends_with(end))
      kept.push_back(entry.path().string());
  }
  std::ranges::sort(kept);
  return kept;
}

namespace {

// The newest of them that is whole, as the end of a line that says why the checkpoint itself is of no use.
std::string way_back(const std::string& folder) {
  std::vector<std::string> kept = kept_checkpoints(folder);
  for (; !kept.empty(); kept.pop_back()) {
    try {
      SafetensorsFile::open(kept.back());
      return fmt::format("; {} is whole: copied to checkpoint.safetensors, the run goes on from there", kept.back());
    } catch (const Error&) {  // the one before it may be
    }
  }
  return "";
}

}  // namespace

SafetensorsFile open_to_resume(const std::string& path, const std::string& folder) {
  if (!fs::exists(path)) {
    const std::string way = way_back(folder);
    fail("{}: no checkpoint to resume from{}", path,
         way.empty() ? "; start the run with --out instead of --resume" : way);
  }
  try {
    return SafetensorsFile::open(path);
  } catch (const Error& error) {
    throw Error(error.status(), error.what() + way_back(folder));
  }
}

}  // namespace sextant
