#include "data/text.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/sha256.h"
#include "data/cache.h"
#include "data/files.h"

namespace sextant {

namespace fs = std::filesystem;

namespace {

constexpr size_t piece_size = size_t{1} << 20;  // bytes, of streamed reading and writing

std::span<const std::byte> as_written(std::span<const uint8_t> bytes) {
  return std::as_bytes(bytes);
}

// gzip with any number of members (RFC 1952).
void gunzip(const fs::path& path, std::span<const uint8_t> in, FileWriter& out) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) fail_environment("{}: no memory to decompress", path.string());
  struct End {
    z_stream& stream;
    ~End() { inflateEnd(&stream); }
  } end{stream};
  std::vector<uint8_t> buffer(piece_size);
  size_t taken = 0;
  for (bool inside = true; inside || taken < in.size();) {
    stream.next_in = const_cast<Bytef*>(in.data() + taken);
    stream.avail_in = static_cast<uInt>(std::min(in.size() - taken, piece_size));
    stream.next_out = buffer.data();
    stream.avail_out = static_cast<uInt>(buffer.size());
    const uInt offered = stream.avail_in;
    const int status = inflate(&stream, Z_NO_FLUSH);
    taken += offered - stream.avail_in;
    const size_t produced = buffer.size() - stream.avail_out;
    out.write(as_written({buffer.data(), produced}));
    require(status == Z_OK || status == Z_STREAM_END || (status == Z_BUF_ERROR && taken == in.size()),
            "{}: damaged gzip data near byte {}: {}", path.string(), taken,
            stream.msg ? stream.msg : "not a gzip stream");
    require(status == Z_STREAM_END || taken < in.size() || produced > 0, "{}: the gzip data ends early, at byte {}",
            path.string(), taken);
    inside = status != Z_STREAM_END;
    if (!inside) inflateReset(&stream);
  }
}

// The field's text of each record, each followed by an empty line.
void extract_field(const fs::path& path, std::span<const uint8_t> in, const std::string& field, FileWriter& out) {
  std::string buffer;
  int64_t line_number = 0;
  const char* const begin = reinterpret_cast<const char*>(in.data());
  const char* const end = begin + in.size();
  for (const char* line = begin; line < end;) {
    ++line_number;
    const void* newline = std::memchr(line, '\n', static_cast<size_t>(end - line));
    const char* line_end = newline ? static_cast<const char*>(newline) : end;
    if (std::any_of(line, line_end, [](char c) { return c != ' ' && c != '\t' && c != '\r'; })) {
      const auto record = nlohmann::json::parse(line, line_end, nullptr, false);
      require(record.is_object(), "{}: line {} (byte {}) is not a JSON object; JSONL has one record a line",
              path.string(), line_number, line - begin);
      const auto value = record.find(field);
      require(value != record.end() && value->is_string(),
              "{}: line {} (byte {}) has no text field '{}'; name another as {}#FIELD", path.string(), line_number,
              line - begin, field, path.filename().string());
      buffer += value->get_ref<const std::string&>();
      buffer += "\n\n";
    }
    if (buffer.size() >= piece_size) {
      out.write(buffer);
      buffer.clear();
    }
    line = line_end + 1;
  }
  out.write(buffer);
}

// The name of a derived file in the cache, made by `write` unless it is there.
template <class Write>
fs::path derived(const fs::path& path, const std::string& how, Write&& write) {
  const fs::path target = cache_directory() / "text" / sha256_hex(sha256_of_file(path) + "\n" + how);
  if (!fs::exists(target)) {
    const MappedFile in(path);
    write_atomically(target, [&](FileWriter& out) { write(bytes_of(in), out); });
  }
  return target;
}

// The file that has the bytes to read: the file itself or what was derived from it.
fs::path plain_file(const fs::path& path, const std::string& field) {
  fs::path plain = path;
  std::string name = path.filename().string();
  if (ends_with_any(name, {".gz"})) {
    plain = derived(plain, "gunzip 1", [&](auto in, FileWriter& out) { gunzip(path, in, out); });
    name.resize(name.size() - 3);
  }
  if (ends_with_any(name, {".jsonl", ".ndjson"})) {
    plain = derived(plain, "jsonl 1 " + field, [&](auto in, FileWriter& out) { extract_field(path, in, field, out); });
  }
  return plain;
}

}  // namespace

std::shared_ptr<Corpus> open_text_file(const std::string& name, const fs::path& path, const std::string& field,
                                       double train, double validation, const std::string& rule) {
  require(!MappedFile(path).bytes().empty(), "{}: the file is empty", path.string());
  const fs::path plain = plain_file(path, field);
  auto file = std::make_shared<MappedFile>(plain);
  const int64_t size = static_cast<int64_t>(file->bytes().size());
  require(size >= 2, "{}: holds {} byte{} of text; at least 2 are needed, one to predict the next from", path.string(),
          size, size == 1 ? "" : "s");
  auto runs = split_by_range(path.filename().string(), file->bytes().data(), size, 1, file, train, validation);
  return std::make_shared<Corpus>(name, TokenKind::bytes, 256, sha256_of_file(plain), rule, std::move(runs));
}

std::shared_ptr<Corpus> open_text_files(const std::string& name, const fs::path& folder,
                                        const std::vector<std::string>& names, const std::string& field) {
  const SplitFiles split = split_by_file(names);
  std::vector<Corpus::Run> runs;
  std::vector<std::string> warnings;
  std::string listing;
  for (size_t i = 0; i < names.size(); ++i) {
    const fs::path path = folder / names[i];
    if (MappedFile(path).bytes().empty()) {
      warnings.push_back(fmt::format("{}: the file is empty and is passed over", path.string()));
      continue;
    }
    const fs::path plain = plain_file(path, field);
    auto file = std::make_shared<MappedFile>(plain);
    runs.push_back(
        {names[i], split.splits[i], file->bytes().data(), static_cast<int64_t>(file->bytes().size()), 1, file});
    listing += sha256_of_file(plain) + "  " + names[i] + "\n";
  }
  require(!runs.empty(), "{}: there is no text in this folder, only empty files", folder.string());
  return std::make_shared<Corpus>(name, TokenKind::bytes, 256, sha256_hex(listing), split.rule, std::move(runs),
                                  std::move(warnings));
}

}  // namespace sextant
