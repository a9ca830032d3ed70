#include "data/archive.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/error.h"
#include "data/cache.h"
#include "data/files.h"
#include "data/process.h"

namespace sextant {

namespace fs = std::filesystem;

bool is_archive(const std::string& name) {
  return ends_with_any(name, {".zip", ".tar.gz", ".tgz", ".tar.xz"});
}

namespace {

// A zip archive (PKWARE's APPNOTE 6.3, without encryption, spanning and zip64), read by its central directory.
class ZipReader {
 public:
  ZipReader(std::span<const uint8_t> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  void extract(const fs::path& folder) {
    const size_t end = find_end();
    size_t entry = number(end + 16, 4);
    for (uint64_t left = number(end + 10, 2); left > 0; --left) entry = extract_entry(entry, folder);
  }

 private:
  uint32_t number(size_t position, size_t width) const {
    require(position <= bytes_.size() && width <= bytes_.size() - position, "{}: the zip archive is damaged at byte {}",
            name_, position);
    uint32_t value = 0;
    for (size_t i = width; i-- > 0;) value = value << 8 | bytes_[position + i];
    return value;
  }

  // "End of central directory": the last such signature, with at most 64 KiB of comment behind it.
  size_t find_end() const {
    for (size_t i = 22; i <= std::min<size_t>(bytes_.size(), 22 + 65535); ++i)
      if (number(bytes_.size() - i, 4) == 0x06054b50) return bytes_.size() - i;
    fail("{}: is not a whole zip archive, it has no central directory", name_);
  }

  size_t extract_entry(size_t entry, const fs::path& folder) const {
    require(number(entry, 4) == 0x02014b50, "{}: the zip archive is damaged at byte {}", name_, entry);
    const uint32_t method = number(entry + 10, 2), crc = number(entry + 16, 4), packed = number(entry + 20, 4),
                   size = number(entry + 24, 4);
    const uint32_t name_length = number(entry + 28, 2), extra = number(entry + 30, 2), comment = number(entry + 32, 2);
    const size_t local = number(entry + 42, 4);
    number(entry + 46 + name_length, 0);
    const std::string member(reinterpret_cast<const char*>(bytes_.data()) + entry + 46, name_length);
    const fs::path inside = fs::path(member).lexically_normal();
    require(inside.is_relative() && *inside.begin() != "..", "{}: the member '{}' leads out of the folder", name_,
            member);
    if (!member.ends_with('/')) {
      const size_t data = local + 30 + number(local + 26, 2) + number(local + 28, 2);
      require(data <= bytes_.size() && packed <= bytes_.size() - data,
              "{}: the member '{}' goes on beyond the end of the archive", name_, member);
      require(method == 0 || method == 8, "{}: the member '{}' is packed by method {}, known are 0 and 8", name_,
              member, method);
      write_member(folder / inside, bytes_.subspan(data, packed), method == 8, size, crc, member);
    }
    return entry + 46 + name_length + extra + comment;
  }

  void write_member(const fs::path& path, std::span<const uint8_t> packed, bool deflated, uint32_t size, uint32_t crc,
                    const std::string& member) const {
    write_atomically(path, [&](FileWriter& out) {
      uLong found = crc32(0, nullptr, 0);
      const auto put = [&](std::span<const uint8_t> piece) {
        found = crc32(found, piece.data(), static_cast<uInt>(piece.size()));
        out.write(std::as_bytes(piece));
      };
      if (deflated) {
        inflate_member(packed, put);
      } else {
        put(packed);
      }
      require(out.written() == size && found == crc, "{}: the member '{}' is damaged: its size or checksum is wrong",
              name_, member);
    });
  }

  template <class Put>
  static void inflate_member(std::span<const uint8_t> packed, Put&& put) {
    z_stream stream{};
    if (inflateInit2(&stream, -15) != Z_OK) fail_environment("no memory to decompress");
    stream.next_in = const_cast<Bytef*>(packed.data());
    stream.avail_in = static_cast<uInt>(packed.size());
    std::vector<uint8_t> buffer(size_t{1} << 18);
    struct End {
      z_stream& stream;
      ~End() { inflateEnd(&stream); }
    } end{stream};
    for (int status = Z_OK; status == Z_OK;) {
      stream.next_out = buffer.data();
      stream.avail_out = static_cast<uInt>(buffer.size());
      status = inflate(&stream, Z_NO_FLUSH);
      put(std::span<const uint8_t>(buffer.data(), buffer.size() - stream.avail_out));
    }
  }

  std::span<const uint8_t> bytes_;
  std::string name_;
};

}  // namespace

void unpack(const fs::path& archive, const fs::path& folder) {
  make_folder(folder);
  if (ends_with_any(archive, {".zip"})) {
    const MappedFile file(archive);
    ZipReader(bytes_of(file), archive.string()).extract(folder);
    return;
  }
  // GNU tar refuses members that lead out of the folder by itself.
  const ProgramResult result = run_program({"tar", "--no-same-owner", "-xf", archive.string(), "-C", folder.string()});
  require(result.status == 0, "{}: tar could not unpack it (status {}); a .tar.xz needs the package xz-utils",
          archive.string(), result.status);
}

}  // namespace sextant
