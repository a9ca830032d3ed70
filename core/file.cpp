#include "core/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>

#include "core/error.h"

namespace sextant {

namespace {

constexpr std::string_view temporary_suffix = ".partial";

// A path that can never be a file is the caller's to mend; everything else is the machine's.
Status status_of(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EEXIST:
    case ENAMETOOLONG:
    case ELOOP:
    case EINVAL:
    case ENXIO:
      return Status::bad_input;
    default:
      return Status::environment;
  }
}

const char* remedy(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "; free some space or write elsewhere";
    case EACCES:
    case EPERM:
      return "; check the permissions of the file and its folder";
    case EROFS:
      return "; write elsewhere";
    default:
      return "";
  }
}

[[noreturn]] void fail_errno(const char* action, const std::string& path, int error) {
  throw Error(status_of(error), fmt::format("cannot {} {}: {}{}", action, path, std::strerror(error), remedy(error)));
}

FileDescriptor open_or_fail(const char* action, const std::string& path, int flags, mode_t mode = 0) {
  int descriptor;
  do descriptor = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) fail_errno(action, path, errno);
  return FileDescriptor(descriptor);
}

void write_all(int descriptor, const std::string& path, const char* data, size_t size) {
  constexpr size_t most_at_once = size_t{1} << 30;  // Linux moves at most 2 GiB a call
  while (size > 0) {
    const ssize_t written = ::write(descriptor, data, std::min(size, most_at_once));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_errno("write", path, errno);
    data += written;
    size -= static_cast<size_t>(written);
  }
}

void flush(int descriptor, const std::string& path) {
  // EINVAL: the file system has nothing to flush.
  if (::fsync(descriptor) != 0 && errno != EINVAL) fail_errno("flush", path, errno);
}

void flush_folder(const std::string& folder) {
  const FileDescriptor descriptor = open_or_fail("open", folder, O_RDONLY | O_DIRECTORY);
  flush(descriptor.get(), folder);
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// The file that a chain of symbolic links ends at, also when that does not exist yet.
std::string followed(std::string path) {
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(std::filesystem::symlink_status(path, error)); ++links) {
    if (links == 40) fail_errno("write", path, ELOOP);
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) fail_errno("read the link", path, error.value());
    path = (std::filesystem::path(path).parent_path() / target).string();
  }
  return path;
}

// A file beside `path` under a name of its own, removed again unless it was renamed into place. Its lock tells that its
// writer lives.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& path) : target_(path) {
    static std::atomic<unsigned> counter{0};
    const std::string start = std::filesystem::path(path).filename().string().substr(0, 200);  // names end at 255 bytes
    name_ = fmt::format("{}/.{}.{}.{}{}", folder_of(path), start, ::getpid(), counter++, temporary_suffix);
    descriptor_ = FileDescriptor(::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!descriptor_.open()) fail_errno("write", path, errno);
    ::flock(descriptor_.get(), LOCK_EX | LOCK_NB);
  }
  ~TemporaryFile() {
    if (descriptor_.open() && !renamed_) ::unlink(name_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  int descriptor() const { return descriptor_.get(); }
  void rename_into_place() {
    flush(descriptor_.get(), target_);
    if (::rename(name_.c_str(), target_.c_str()) != 0) fail_errno("write", target_, errno);
    renamed_ = true;
    flush_folder(folder_of(target_));
  }

 private:
  std::string target_, name_;
  FileDescriptor descriptor_;
  bool renamed_ = false;
};

// Removes the temporaries in a folder whose writer is gone, which their lock tells.
void remove_abandoned_temporaries(const std::string& folder) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with('.') || !name.ends_with(temporary_suffix)) continue;
    const FileDescriptor descriptor(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (descriptor.open() && ::flock(descriptor.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(entry.path().c_str());
  }
}

std::string header_of(const std::vector<std::string>& columns) {
  std::string line;
  for (const std::string& column : columns) line += (line.empty() ? "" : ",") + csv_field(column);
  return line + '\n';
}

// The integer that a CSV line starts with.
std::optional<int64_t> step_of(std::string_view line) {
  int64_t step = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
  const bool whole = end == line.data() + line.size() || *end == ',';
  return error == std::errc() && whole ? std::optional(step) : std::nullopt;
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (value_ >= 0) ::close(value_);
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(value_, other.value_);
  return *this;
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a pipe would otherwise wait for its writer before we can say that it is none of ours.
  const FileDescriptor descriptor = open_or_fail("read", path, O_RDONLY | O_NONBLOCK);
  struct stat facts {};
  if (::fstat(descriptor.get(), &facts) != 0) fail_errno("read", path, errno);
  if (S_ISDIR(facts.st_mode)) fail_errno("read", path, EISDIR);
  require(S_ISREG(facts.st_mode), "cannot read {}: not a regular file", path);
  size_ = static_cast<size_t>(facts.st_size);
  if (size_ == 0) return;  // nothing to map, which mmap would call an error
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
  if (data == MAP_FAILED) fail_environment("cannot map {} ({} bytes): {}", path, size_, std::strerror(errno));
  data_ = static_cast<std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::string read_text(const std::string& path, size_t max_bytes) {
  const FileDescriptor descriptor = open_or_fail("read", path, O_RDONLY);
  std::string text;
  constexpr size_t piece = size_t{1} << 16;
  for (;;) {
    const size_t before = text.size();
    text.resize(before + piece);
    const ssize_t count = ::read(descriptor.get(), text.data() + before, piece);
    if (count < 0 && errno != EINTR) fail_errno("read", path, errno);
    text.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    require(text.size() <= max_bytes, "{} is longer than {} bytes, the most that is read of such a file", path,
            max_bytes);
    if (count == 0) return text;
  }
}

void FileWriter::write(std::span<const std::byte> bytes) {
  write_all(descriptor_, path_, reinterpret_cast<const char*>(bytes.data()), bytes.size());
  written_ += bytes.size();
}

void FileWriter::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

namespace {
struct Target {
  std::string path;  // links followed
  bool device;       // or a pipe: what is there and no regular file
};
Target target_of(const std::string& path) {
  require(!path.empty(), "cannot write a file without a name");
  const std::string target = followed(path);
  struct stat facts {};
  const bool exists = ::stat(target.c_str(), &facts) == 0;
  if ((exists && S_ISDIR(facts.st_mode)) || target.ends_with('/')) fail_errno("write", path, EISDIR);
  return {target, exists && !S_ISREG(facts.st_mode)};
}
}  // namespace

void require_writable(const std::string& path) {
  const Target target = target_of(path);
  if (target.device) return;  // to open a pipe would wait for its reader
  make_folder(folder_of(target.path));
  const TemporaryFile removed_again(target.path);
}

void write_atomically(const std::string& path, const std::function<void(FileWriter&)>& write) {
  const Target target = target_of(path);
  if (target.device) {
    const FileDescriptor device = open_or_fail("write", path, O_WRONLY);
    FileWriter writer(device.get(), path);
    write(writer);
    return;
  }
  make_folder(folder_of(target.path));
  TemporaryFile temporary(target.path);
  FileWriter writer(temporary.descriptor(), path);
  write(writer);
  temporary.rename_into_place();
}

void write_atomically(const std::string& path, std::string_view text) {
  write_atomically(path, [text](FileWriter& writer) { writer.write(text); });
}

void make_folder(const std::string& path) {
  require(!path.empty(), "cannot make a folder without a name");
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail_errno("make the folder", path, error.value());
  if (!std::filesystem::is_directory(path, error)) fail_errno("make the folder", path, ENOTDIR);
}

RunLock::RunLock(const std::string& folder) {
  make_folder(folder);
  const std::string path = folder + "/.lock";
  descriptor_ = open_or_fail("lock", path, O_RDWR | O_CREAT, 0666);
  if (::flock(descriptor_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) fail_errno("lock", path, errno);
    std::string holder = read_text(path, 4096);
    while (!holder.empty() && holder.back() == '\n') holder.pop_back();
    fail("{} is being written by another process{}; wait for it or choose another folder", folder,
         holder.empty() ? "" : fmt::format(" ({})", holder));
  }
  // The file stays when the lock goes: removing it could take it from under a process that is about to lock it.
  if (::ftruncate(descriptor_.get(), 0) != 0) fail_errno("lock", path, errno);
  const std::string holder = fmt::format("{}\n", ::getpid());
  write_all(descriptor_.get(), path, holder.data(), holder.size());
  remove_abandoned_temporaries(folder);
}

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

CsvAppender::CsvAppender(const std::string& path, size_t columns)
    : path_(path), columns_(columns), descriptor_(open_or_fail("write", path, O_WRONLY | O_APPEND)) {}

CsvAppender CsvAppender::create(const std::string& path, const std::vector<std::string>& columns) {
  write_atomically(path, header_of(columns));
  return CsvAppender(path, columns.size());
}

CsvAppender CsvAppender::resume(const std::string& path, const std::vector<std::string>& columns, int64_t last_step) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return create(path, columns);
  const std::string header = header_of(columns), text = read_text(path);
  require(text.starts_with(header), "{}: line 1 is not the header {}", path, header.substr(0, header.size() - 1));
  size_t kept = header.size();
  for (size_t end; (end = text.find('\n', kept)) != std::string::npos; kept = end + 1) {
    const std::optional<int64_t> step = step_of(std::string_view(text).substr(kept, end - kept));
    require(step.has_value(), "{}: the line at byte {} does not start with a step number", path, kept);
    if (*step > last_step) break;
  }
  CsvAppender appender(path, columns.size());
  if (::ftruncate(appender.descriptor_.get(), static_cast<off_t>(kept)) != 0) fail_errno("cut", path, errno);
  appender.sync();
  return appender;
}

void CsvAppender::write_line(std::string line, size_t fields) {
  require(fields == columns_, "{}: a row of {} fields in a table of {} columns", path_, fields, columns_);
  line.back() = '\n';
  write_all(descriptor_.get(), path_, line.data(), line.size());
}

void CsvAppender::sync() {
  flush(descriptor_.get(), path_);
}

}  // namespace sextant
