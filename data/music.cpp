#include "data/music.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/sha256.h"
#include "data/cache.h"
#include "data/csv.h"
#include "data/files.h"
#include "data/midi.h"
#include "data/musicnet.h"

namespace sextant {

namespace fs = std::filesystem;
using nlohmann::json;

bool is_music_file(const std::string& name) {
  return ends_with_any(name, {".mid", ".midi", ".rmi"});
}

std::vector<Note> read_music(const fs::path& path, bool pedal, std::vector<std::string>& warnings) {
  const MappedFile file(path);
  require(!file.bytes().empty(), "{}: the file is empty", path.string());
  if (!is_music_file(path.string()) && has_musicnet_header(file.text()))
    return parse_musicnet(file.text(), path.string());
  MidiFile midi = parse_midi(bytes_of(file), path.string());
  std::vector<Note> notes = midi_notes(midi, {pedal}, path.string());
  warnings.insert(warnings.end(), midi.warnings.begin(), midi.warnings.end());
  return notes;
}

namespace {

// A cached stream: 8 bytes little-endian length of a JSON text, the JSON (files and their tokens, warnings, SHA-256 of
// what follows), then the tokens as little-endian uint16.
struct TokenCache {
  json index;
  std::shared_ptr<const void> owner;
  const uint16_t* tokens = nullptr;
};

std::span<const uint8_t> as_bytes(std::span<const uint16_t> tokens) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const uint8_t*>(tokens.data()), tokens.size_bytes()};
}

// Nothing when the file is not there or not whole: it is then made anew.
std::optional<TokenCache> load_cache(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  const auto file = std::make_shared<MappedFile>(path);
  const auto bytes = bytes_of(*file);
  uint64_t length = 0;
  if (bytes.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > bytes.size() - sizeof length) return std::nullopt;
  const auto rest = bytes.subspan(sizeof length + length);
  json index = json::parse(bytes.begin() + sizeof length, bytes.begin() + static_cast<int64_t>(sizeof length + length),
                           nullptr, false);
  if (!index.is_object() || index.value("sha256", "") != sha256_hex(rest)) return std::nullopt;
  return TokenCache{std::move(index), file, reinterpret_cast<const uint16_t*>(rest.data())};
}

// Kept in memory when the cache cannot be written.
TokenCache store_cache(const fs::path& path, json index, std::vector<uint16_t> tokens) {
  index["sha256"] = sha256_hex(as_bytes(tokens));
  std::string header = index.dump(-1, ' ', false, json::error_handler_t::replace);
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  try {
    write_atomically(path, [&](FileWriter& out) {
      out.write(std::as_bytes(std::span(&length, 1)));
      out.write(header);
      out.write(std::as_bytes(std::span(tokens)));
    });
    if (auto stored = load_cache(path)) return *std::move(stored);
  } catch (const Error& error) {
    index["warnings"].push_back(fmt::format("the tokens are kept in memory, not in the cache: {}", error.what()));
  }
  auto owner = std::make_shared<std::vector<uint16_t>>(std::move(tokens));
  return TokenCache{std::move(index), owner, owner->data()};
}

TokenCache tokenize(const fs::path& cached, const fs::path& folder, const std::vector<std::string>& names, bool pedal) {
  std::vector<uint16_t> stream;
  std::vector<std::string> warnings;
  json sizes = json::array();
  for (const std::string& name : names) {
    const auto tokens = encode_events(read_music(folder / name, pedal, warnings));
    stream.insert(stream.end(), tokens.begin(), tokens.end());
    sizes.push_back(tokens.size());
  }
  return store_cache(cached, {{"tokens", sizes}, {"warnings", warnings}}, std::move(stream));
}

// Split by file name, from the tables in `folder` that have MAESTRO's columns `split` and `midi_filename`.
std::map<std::string, Split> published_table(const fs::path& folder) {
  std::map<std::string, Split> split_of;
  for (const std::string& name : list_files(folder)) {
    if (!ends_with_any(name, {".csv"})) continue;
    const MappedFile file(folder / name);
    std::string_view text = file.text();
    std::vector<std::string_view> fields;
    split_fields(take_line(text), fields);
    const auto split = static_cast<size_t>(std::find(fields.begin(), fields.end(), "split") - fields.begin());
    const auto midi = static_cast<size_t>(std::find(fields.begin(), fields.end(), "midi_filename") - fields.begin());
    if (split == fields.size() || midi == fields.size()) continue;
    while (!text.empty()) {
      split_fields(take_line(text), fields);
      if (std::max(split, midi) < fields.size())
        split_of[fs::path(fields[midi]).filename()] = split_from(fields[split]);
    }
  }
  return split_of;
}

// The published table when it has every file, else the rules for names.
SplitFiles split_music(const fs::path& folder, const std::vector<std::string>& names) {
  const auto table = published_table(folder);
  SplitFiles split{"published", {}};
  for (const std::string& name : names) {
    const auto found = table.find(fs::path(name).filename());
    if (found == table.end()) return split_by_file(names);
    split.splits.push_back(found->second);
  }
  return split;
}

}  // namespace

std::shared_ptr<Corpus> open_music(const std::string& name, const fs::path& folder,
                                   const std::vector<std::string>& names, bool pedal) {
  std::string listing = fmt::format("events {} pedal {}\n", event_version, pedal ? 1 : 0);
  for (const std::string& file : names) listing += sha256_of_file(folder / file) + "  " + file + "\n";
  const std::string hash = sha256_hex(listing);
  const fs::path cached = cache_directory() / "tokens" / hash;
  auto stored = load_cache(cached);
  const TokenCache tokens = stored ? *std::move(stored) : tokenize(cached, folder, names, pedal);
  const auto warnings = tokens.index["warnings"].get<std::vector<std::string>>();
  const auto sizes = tokens.index["tokens"].get<std::vector<int64_t>>();
  if (names.size() == 1)
    return std::make_shared<Corpus>(
        name, TokenKind::events, event_vocabulary, hash, "by range",
        split_by_range(names.front(), tokens.tokens, sizes.front(), 2, tokens.owner, 0.9, 0.1), warnings);
  const SplitFiles split = split_music(folder, names);
  std::vector<Corpus::Run> runs;
  const uint16_t* position = tokens.tokens;
  for (size_t i = 0; i < names.size(); position += sizes[i], ++i)
    runs.push_back({names[i], split.splits[i], position, sizes[i], 2, tokens.owner});
  return std::make_shared<Corpus>(name, TokenKind::events, event_vocabulary, hash, split.rule, std::move(runs),
                                  warnings);
}

}  // namespace sextant
