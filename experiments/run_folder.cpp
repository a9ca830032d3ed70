#include "experiments/run_folder.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "experiments/command.h"
#include "experiments/manifest.h"

namespace sextant {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int deepest_search = 6;

// The columns of a CSV of numbers with the given header.
std::vector<std::vector<double>> read_columns(const std::string& path, const std::string& header) {
  const std::string text = read_text(path);
  const size_t columns = static_cast<size_t>(std::ranges::count(header, ',')) + 1;
  std::vector<std::vector<double>> values(columns);
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // a line that is still being written
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (number == 0) {
      require(line == header, "{}: line 1 is not the header {}", path, header);
      continue;
    }
    size_t at = 0;
    for (size_t column = 0; column < columns; ++column) {
      const size_t comma = std::min(line.find(',', at), line.size());
      require(at <= line.size(), "{}: line {} has fewer than {} fields", path, number + 1, columns);
      values[column].push_back(
          parse_number(line.substr(at, comma - at), fmt::format("{}: line {}", path, number + 1), -1e300, 1e300));
      at = comma + 1;
    }
  }
  return values;
}

void find_runs(const fs::path& folder, int depth, std::set<std::string>& found) {
  if (fs::exists(folder / "manifest.json")) {
    found.insert(folder.lexically_normal().string());
    return;
  }
  if (depth == deepest_search) return;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.is_directory(ignored) && !entry.is_symlink(ignored)) find_runs(entry.path(), depth + 1, found);
}

}  // namespace

RunFolder read_run(const std::string& path) {
  RunFolder run{.path = path,
                .manifest = read_json(path + "/manifest.json"),
                .metrics = {},
                .validation_step = {},
                .validation_loss = {},
                .evaluation = {}};
  require(run.manifest.is_object() && run.manifest.contains("options") && run.manifest.at("options").is_object(),
          "{}/manifest.json: no key 'options'", path);
  if (fs::exists(path + "/metrics.csv")) {
    auto columns = read_columns(path + "/metrics.csv", "step,tokens,seconds,loss,lr,grad_norm,tokens_per_second");
    run.metrics = {columns[0], columns[1], columns[2], columns[3], columns[4], columns[5], columns[6]};
  }
  if (fs::exists(path + "/validation.csv")) {
    const auto columns = read_columns(path + "/validation.csv", "step,tokens,loss,standard_error");
    run.validation_step = columns[0];
    run.validation_loss = columns[2];
  }
  if (fs::exists(path + "/eval.json")) run.evaluation = read_json(path + "/eval.json");
  return run;
}

std::vector<RunFolder> read_runs(const std::vector<std::string>& paths) {
  std::set<std::string> found;
  for (const std::string& path : paths) {
    require(fs::exists(path), "{}: there is no such folder", path);
    std::set<std::string> here;
    find_runs(path, 0, here);
    require(!here.empty(), "{}: no run folder (one with a manifest.json) here or below", path);
    found.merge(here);
  }
  std::vector<RunFolder> runs;
  for (const std::string& path : found) runs.push_back(read_run(path));
  return runs;
}

std::vector<std::string> differing_options(const std::vector<RunFolder>& runs) {
  std::set<std::string> keys;
  for (const RunFolder& run : runs)
    for (const auto& [key, value] : run.options().items())
      if (runs.front().options().value(key, json()) != value) keys.insert(key);
  return {keys.begin(), keys.end()};
}

std::vector<std::string> run_labels(const std::vector<RunFolder>& runs) {
  std::vector<std::string> keys = differing_options(runs), labels;
  if (keys.empty()) keys = {"position"};
  std::ranges::stable_partition(keys, [](const std::string& key) { return key == "position"; });
  for (const RunFolder& run : runs) {
    std::string label;
    for (const std::string& key : keys) {
      const std::string value = plain_text(run.options().value(key, json()));
      label += (label.empty() ? "" : ", ") + (key == "position" ? value : key + " " + value);
    }
    if (std::ranges::count(labels, label) > 0) label += " (" + run.path + ")";
    labels.push_back(label);
  }
  return labels;
}

std::string plain_text(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.is_null() ? "" : value.dump();
}

}  // namespace sextant
