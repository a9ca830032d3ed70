// Files that are never seen half-written. Reading is by mapping; writing goes to a temporary name in the same folder
// and is flushed and renamed, so that a reader finds the old file or the new one, whatever is killed or unplugged in
// between. A run folder is locked by the one process that writes it; its metrics grow by whole lines.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace sextant {

// An open file, closed when this goes.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int value) : value_(value) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : value_(other.value_) { other.value_ = -1; }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int get() const { return value_; }
  bool open() const { return value_ >= 0; }

 private:
  int value_ = -1;
};

// A regular file's bytes in memory, read-only: writing through a pointer into it is a segmentation fault. The file must
// not be shortened while it is mapped; nothing here ever does, since a new version is a new file under the old name.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // throws Error when it is missing, unreadable or not a regular file
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The whole of a file, pipe or device; throws Error when it is longer than max_bytes.
std::string read_text(const std::string& path, size_t max_bytes = size_t{1} << 30);

// What write_atomically hands to its callback. Unbuffered: hand over large pieces.
class FileWriter {
 public:
  void write(std::span<const std::byte> bytes);  // throws Error (environment) on a full disk and the like
  void write(std::string_view text);
  uint64_t written() const { return written_; }  // bytes

 private:
  friend void write_atomically(const std::string& path, const std::function<void(FileWriter&)>& write);
  FileWriter(int descriptor, const std::string& path) : descriptor_(descriptor), path_(path) {}

  int descriptor_;
  const std::string& path_;
  uint64_t written_ = 0;
};

// Writes the file as a whole or not at all, and durably: when this returns it survives a power cut. Missing parent
// folders are made. A symbolic link is followed; a pipe or device is written to directly. When anything fails, `write`
// included, the temporary is removed, an older file stays as it was, and Error says what: environment for a full disk,
// missing permission or a read-only file system, bad input for a path that cannot be a file.
void write_atomically(const std::string& path, const std::function<void(FileWriter&)>& write);
void write_atomically(const std::string& path, std::string_view text);
// Throws what write_atomically would, before there is anything to write: a long computation asks first. Missing parent
// folders are made.
void require_writable(const std::string& path);

// Makes the folder and its missing parents; throws Error when it cannot or when something else has the name.
void make_folder(const std::string& path);

// Held by the process that writes a run folder; released when this goes, and by the system when the process dies.
class RunLock {
 public:
  // Makes the folder when it is missing, and removes temporaries that a killed process left in it.
  // Throws Error (bad input), naming the other process, when one holds the folder.
  explicit RunLock(const std::string& folder);

 private:
  FileDescriptor descriptor_;
};

// One field of a CSV line (RFC 4180): quoted when it holds a comma, a quote or a line break.
std::string csv_field(std::string_view text);

// A CSV file that grows by whole lines, each handed to the system at once: a reader never sees half a number, and what
// a killed process wrote stays. The first column is an integer that grows (the step).
class CsvAppender {
 public:
  // Starts the file anew with this header.
  static CsvAppender create(const std::string& path, const std::vector<std::string>& columns);
  // Goes on after the line of `last_step`: later lines, and a torn last one, are cut off. A missing file is created.
  // Throws Error when the file has another header.
  static CsvAppender resume(const std::string& path, const std::vector<std::string>& columns, int64_t last_step);

  // One line. Numbers are written so that they read back to the same bits.
  template <class... Fields>
  void row(const Fields&... fields) {
    std::string line;
    (append_field(line, fields), ...);
    write_line(std::move(line), sizeof...(fields));
  }
  void sync();  // to the disk: call before a checkpoint is written that relies on these lines

 private:
  CsvAppender(const std::string& path, size_t columns);
  void write_line(std::string line, size_t fields);

  template <class Field>
  static void append_field(std::string& line, const Field& field) {
    if constexpr (std::is_convertible_v<Field, std::string_view>)
      line += csv_field(field);
    else
      fmt::format_to(std::back_inserter(line), "{}", field);
    line += ',';
  }

  std::string path_;
  size_t columns_;
  FileDescriptor descriptor_;
};

}  // namespace sextant
