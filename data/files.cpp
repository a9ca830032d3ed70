#include "data/files.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>

#include "core/error.h"
#include "core/sha256.h"

namespace sextant {

namespace fs = std::filesystem;

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool ends_with_any(const std::string& name, std::initializer_list<std::string_view> suffixes) {
  const std::string lower = lower_case(name);
  return std::any_of(suffixes.begin(), suffixes.end(),
                     [&](std::string_view suffix) { return lower.ends_with(suffix); });
}

std::vector<std::string> list_files(const fs::path& folder) {
  std::vector<std::string> names;
  try {
    for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator(); ++entry) {
      const bool hidden = entry->path().filename().string().starts_with(".");
      if (hidden && entry->is_directory()) entry.disable_recursion_pending();
      if (!hidden && entry->is_regular_file()) names.push_back(entry->path().lexically_relative(folder).string());
    }
  } catch (const fs::filesystem_error& error) {
    fail("{}: the folder cannot be listed: {}", folder.string(), error.code().message());
  }
  std::sort(names.begin(), names.end());
  return names;
}

namespace {

// "wiki.valid.tokens" -> validation, "train_labels/1727.csv" -> train, "tempest.txt" -> none.
std::optional<Split> published_split(const std::string& name) {
  std::string word;
  for (const char c : lower_case(name) + ".") {
    if (std::isalpha(static_cast<unsigned char>(c))) {
      word += c;
      continue;
    }
    if (word == "train" || word == "training") return Split::train;
    if (word == "valid" || word == "validation" || word == "dev") return Split::validation;
    if (word == "test") return Split::test;
    word.clear();
  }
  return std::nullopt;
}

// What stays together: "mozart_sonata_331_02.mid" -> "mozart_sonata_331", without the folder, since the same piece may
// stand in two.
std::string group_of(const std::string& name) {
  std::string stem = fs::path(name).stem().string();
  const size_t end = stem.find_last_not_of("0123456789");
  if (end != std::string::npos && end > 0 && end + 1 < stem.size() && stem[end] == '_') stem.resize(end);
  return stem;
}

}  // namespace

SplitFiles split_by_file(const std::vector<std::string>& names) {
  std::vector<Split> splits;
  for (const std::string& name : names)
    if (const auto split = published_split(name)) splits.push_back(*split);
  if (splits.size() == names.size()) return {"published", splits};

  std::map<std::string, std::string> groups;  // by hash, which is the order
  for (const std::string& name : names) groups[sha256_hex(group_of(name))] = group_of(name);
  if (groups.size() < 2 && names.size() >= 2)
    return {"all train (one group of files)", std::vector<Split>(names.size(), Split::train)};
  const size_t tenth = (groups.size() + 9) / 10;
  std::map<std::string, Split> split_of;
  size_t rank = 0;
  for (const auto& [hash, group] : groups) {
    const bool test = rank >= tenth && rank < 2 * tenth && groups.size() >= 3;
    split_of[group] = rank < tenth ? Split::validation : test ? Split::test : Split::train;
    ++rank;
  }
  splits.clear();
  for (const std::string& name : names) splits.push_back(split_of.at(group_of(name)));
  return {"by file, groups of files kept together", splits};
}

std::vector<Corpus::Run> split_by_range(const std::string& file, const void* data, int64_t size, int width,
                                        std::shared_ptr<const void> owner, double train, double validation) {
  const auto part = [&](double share) {
    return std::clamp(static_cast<int64_t>(share * static_cast<double>(size)), int64_t{0}, size);
  };
  const int64_t train_end = part(train), validation_end = train + validation >= 1 ? size : part(train + validation);
  const auto at = [&](int64_t token) { return static_cast<const uint8_t*>(data) + token * width; };
  std::vector<Corpus::Run> runs = {{file, Split::train, at(0), train_end, width, owner},
                                   {file, Split::validation, at(train_end), validation_end - train_end, width, owner}};
  if (validation_end < size)
    runs.push_back({file, Split::test, at(validation_end), size - validation_end, width, owner});
  return runs;
}

}  // namespace sextant
