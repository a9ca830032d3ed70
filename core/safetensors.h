// The safetensors format (huggingface.co/docs/safetensors): 8 bytes little-endian header length, a JSON header that
// gives for each tensor its dtype, shape and place, then the numbers. It carries no code, and everything in it is
// checked on opening. Files written here also carry a CRC-32 of themselves, so that a flipped bit anywhere is found.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/file.h"
#include "core/tensor.h"

namespace sextant {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

using Metadata = std::map<std::string, std::string>;

// Writes the file atomically (core/file.h). The same tensors and metadata give the same bytes, in whatever order they
// come. Throws Error on a name that comes twice, is "__metadata__" or is not UTF-8.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata = {});

struct SafetensorsEntry {
  std::string dtype;            // the format's name: F32, F64, I64, U8, BF16, ...
  std::vector<int64_t> sizes;   // outermost first; any number of them
  uint64_t begin = 0, end = 0;  // in bytes, from the start of the numbers
};

// An open file. Opening reads and checks all of it and throws Error (bad input), naming the file and the offset or the
// key, unless every rule of the format holds and the checksum, where there is one, is right.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::string& path) { return SafetensorsFile(path); }

  const std::string& path() const { return file_.path(); }
  const std::vector<std::string>& names() const { return names_; }  // sorted
  bool has(const std::string& name) const { return entries_.contains(name); }
  const Metadata& metadata() const { return metadata_; }  // without the keys that serve the checksum
  const std::string& metadata(const std::string& key) const;

  // A view onto the mapped file, not to be written to, dead when this object is; a copy only where a foreign writer did
  // not align the numbers. Throws Error unless the dtype is F32 or F64.
  Tensor tensor(const std::string& name);

  // Any tensor as it stands in the file: dtype and sizes, and little-endian numbers.
  const std::string& dtype(const std::string& name) const { return entry(name).dtype; }
  const std::vector<int64_t>& sizes(const std::string& name) const { return entry(name).sizes; }
  std::span<const std::byte> bytes(const std::string& name) const;

 private:
  explicit SafetensorsFile(const std::string& path);
  const SafetensorsEntry& entry(const std::string& name) const;

  MappedFile file_;
  uint64_t data_start_ = 0;
  std::map<std::string, SafetensorsEntry> entries_;
  std::vector<std::string> names_;
  Metadata metadata_;
  std::unique_ptr<Arena> copies_;
};

}  // namespace sextant
