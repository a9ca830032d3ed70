// Which files a name or path means, and who reads them.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "data/cache.h"
#include "data/canon.h"
#include "data/corpus.h"
#include "data/fetch.h"
#include "data/files.h"
#include "data/music.h"
#include "data/musicnet.h"
#include "data/text.h"

namespace sextant {

namespace fs = std::filesystem;

namespace {

// Levenshtein's distance.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

[[noreturn]] void fail_unknown(const std::string& name) {
  std::vector<std::string> names = {"canon"};
  for (const NamedSet& set : named_sets()) names.push_back(set.name);
  std::stable_sort(names.begin(), names.end(),
                   [&](const auto& a, const auto& b) { return edit_distance(name, a) < edit_distance(name, b); });
  fail("no file, folder or data set is called '{}'; the nearest names are {} and {} (`sextant data list` shows all)",
       name, names[0], names[1]);
}

// The set's files below `root` that exist, relative to it.
std::vector<std::string> files_below(const NamedSet& set, const fs::path& root) {
  std::vector<std::string> found;
  for (const std::string& place : set.places) {
    if (fs::is_regular_file(root / place)) found.push_back(place);
    if (!fs::is_directory(root / place)) continue;
    for (const std::string& name : list_files(root / place)) found.push_back((fs::path(place) / name).string());
  }
  return found;
}

bool is_label_file(const fs::path& path) {
  return ends_with_any(path.string(), {".csv"}) && has_musicnet_header(MappedFile(path).text());
}

// MIDI files when there are some, else MusicNet labels, else text.
std::shared_ptr<Corpus> open_folder(const std::string& name, const fs::path& folder,
                                    const std::vector<std::string>& all, const CorpusOptions& options) {
  require(!all.empty(), "{}: the folder holds no files", folder.string());
  const auto select = [&](auto&& keep) {
    std::vector<std::string> some;
    std::copy_if(all.begin(), all.end(), std::back_inserter(some), keep);
    return some;
  };
  auto music = select(is_music_file);
  if (music.empty()) music = select([&](const std::string& file) { return is_label_file(folder / file); });
  if (!music.empty()) return open_music(name, folder, music, options.pedal);
  return open_text_files(name, folder, all, options.field);
}

std::shared_ptr<Corpus> open_path(const std::string& name, const fs::path& path, const CorpusOptions& options) {
  if (fs::is_directory(path)) return open_folder(name, path, list_files(path), options);
  if (is_music_file(path.string()) || is_label_file(path))
    return open_music(name, path.parent_path(), {path.filename().string()}, options.pedal);
  return open_text_file(name, path, options.field, 0.9, 0.1);
}

std::shared_ptr<Corpus> open_named(const NamedSet& set, const CorpusOptions& options) {
  std::vector<fs::path> roots;
  if (const char* folder = std::getenv("SEXTANT_DATA"); folder && *folder) roots.emplace_back(folder);
  roots.push_back(fetched_directory());
  fs::path best_root;
  std::vector<std::string> best;
  for (const fs::path& root : roots) {
    auto found = files_below(set, root);
    if (found.size() > best.size()) best = std::move(found), best_root = root;
  }
  require(!best.empty(),
          "{0} is not here: get it by `sextant data fetch {0}`, or set SEXTANT_DATA to the folder that has {1}",
          set.name, set.places.front());
  if (set.places.size() == 1 && best.size() == 1 && !is_music_file(best.front()))
    return open_text_file(set.name, best_root / best.front(), options.field, set.train, set.validation, set.split_rule);
  const bool one_place = set.places.size() == 1;
  const fs::path folder =
      one_place ? best_root / set.places.front() : best_root / fs::path(set.places.front()).parent_path();
  for (std::string& file : best) file = (best_root / file).lexically_relative(folder).string();
  return open_folder(set.name, folder, best, options);
}

}  // namespace

std::shared_ptr<Corpus> open_corpus(const std::string& name_or_path, const CorpusOptions& options) {
  require(!name_or_path.empty(), "the name of the data is empty; `sextant data list` shows the names");
  if (name_or_path == "canon") return make_canon();
  for (const NamedSet& set : named_sets())
    if (set.name == name_or_path) return open_named(set, options);
  if (fs::exists(name_or_path)) return open_path(name_or_path, name_or_path, options);
  if (const size_t hash = name_or_path.rfind('#');
      hash != std::string::npos && fs::exists(name_or_path.substr(0, hash))) {
    CorpusOptions with_field = options;
    with_field.field = name_or_path.substr(hash + 1);
    return open_path(name_or_path, name_or_path.substr(0, hash), with_field);
  }
  require(name_or_path.find('/') == std::string::npos, "{}: there is no such file or folder", name_or_path);
  fail_unknown(name_or_path);
}

}  // namespace sextant
