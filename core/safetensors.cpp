#include "core/safetensors.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/parallel.h"

namespace sextant {

static_assert(std::endian::native == std::endian::little,
              "safetensors holds little-endian numbers, which are used as they stand");

namespace {

using nlohmann::json;

constexpr size_t length_bytes = 8;                   // of the header length, which the file starts with
constexpr uint64_t most_header_bytes = 100'000'000;  // as in the format's reference implementation
constexpr int deepest_nesting = 3;                   // header, tensor, its shape

// Both keys stand in what is written here: a flip that destroys either leaves the other, which then finds it.
constexpr std::string_view checksum_key = "checksum", writer_key = "writer", writer_name = "sextant";
constexpr std::string_view checksum_prefix = "crc32:", no_digits = "00000000";

size_t element_bytes(std::string_view dtype) {  // 0 for an unknown one
  static const std::map<std::string_view, size_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8}};
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

// A name as it can stand in a message of one line, whatever is in it.
std::string in_quotes(const std::string& name) {
  const std::string text = json(name).dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= 200 ? text : text.substr(0, 200) + "...\"";
}

// ---------------------------------------------------------------- checksum

struct Checksum {
  uLong crc = ::crc32(0, nullptr, 0);

  // By chunks whose sums are then combined in order: the same result as in one go, on all threads.
  void add(std::span<const std::byte> bytes) {
    constexpr size_t chunk_bytes = size_t{1} << 22;
    std::vector<uLong> sums((bytes.size() + chunk_bytes - 1) / chunk_bytes);
    const auto chunk_at = [&](size_t chunk) {
      return bytes.subspan(chunk * chunk_bytes, std::min(chunk_bytes, bytes.size() - chunk * chunk_bytes));
    };
    parallel_chunks(static_cast<int64_t>(sums.size()), [&](int64_t index) {
      const auto chunk = chunk_at(static_cast<size_t>(index));
      sums[static_cast<size_t>(index)] =
          ::crc32_z(::crc32(0, nullptr, 0), reinterpret_cast<const Bytef*>(chunk.data()), chunk.size());
    });
    for (size_t chunk = 0; chunk < sums.size(); ++chunk)
      crc = ::crc32_combine(crc, sums[chunk], static_cast<z_off_t>(chunk_at(chunk).size()));
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text.data(), text.size()))); }
  std::string digits() const { return fmt::format("{:08x}", crc); }
};

// Where the checksum's digits stand in the header; npos when there are none. Inside a JSON string every quote is
// escaped, so that these bytes cannot occur elsewhere.
size_t checksum_place(std::string_view header) {
  const std::string start = fmt::format("\"{}\":\"{}", checksum_key, checksum_prefix);
  const size_t found = header.find(start);
  return found == std::string_view::npos || found + start.size() + no_digits.size() > header.size()
             ? std::string_view::npos
             : found + start.size();
}

// ---------------------------------------------------------------- reading

// The header as JSON. The parser keeps the last of two equal keys and follows any nesting, so both are refused as it
// goes.
json parse_header(const std::string& path, std::string_view header) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start)
      require(depth < deepest_nesting, "{}: the header is nested deeper than {} levels", path, deepest_nesting);
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      require(keys.back().insert(key).second, "{}: key {} occurs twice in the header", path, in_quotes(key));
    }
    return true;
  };
  // To the parser a zero byte is the end of its input, whatever follows.
  const size_t zero = header.find('\0');
  require(zero == std::string_view::npos, "{}: the header is not JSON at byte {}", path, length_bytes + zero);
  try {
    json parsed = json::parse(header.begin(), header.end(), check);
    require(parsed.is_object(), "{}: the header at byte {} is not a JSON object", path, length_bytes);
    return parsed;
  } catch (const json::parse_error& error) {
    fail("{}: the header is not JSON at byte {}", path, length_bytes + std::max<size_t>(error.byte, 1) - 1);
  } catch (const json::exception&) {
    fail("{}: the header holds a number that no JSON reader can hold", path);
  }
}

Metadata parse_metadata(const std::string& path, const json& value) {
  require(value.is_object(), "{}: __metadata__ is not an object", path);
  Metadata metadata;
  for (const auto& [key, text] : value.items()) {
    require(text.is_string(), "{}: __metadata__ key {} is not a string", path, in_quotes(key));
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

// How many bytes the numbers take; Error where the count is beyond 63 bits, also when only a zero size hides that.
uint64_t bytes_needed(const std::string& where, const SafetensorsEntry& entry) {
  int64_t bytes = static_cast<int64_t>(element_bytes(entry.dtype));
  bool none = false;
  for (const int64_t size : entry.sizes) {
    none = none || size == 0;
    require(!__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes), "{}: shape overflows 63 bits", where);
  }
  return none ? 0 : static_cast<uint64_t>(bytes);
}

SafetensorsEntry parse_entry(const std::string& where, const json& value) {
  require(value.is_object(), "{} is not an object", where);
  for (const char* key : {"dtype", "shape", "data_offsets"}) require(value.contains(key), "{} has no {}", where, key);
  require(value.size() == 3, "{} has keys other than dtype, shape and data_offsets", where);

  SafetensorsEntry entry;
  require(value["dtype"].is_string(), "{}: dtype is not a string", where);
  entry.dtype = value["dtype"].get<std::string>();
  require(element_bytes(entry.dtype) != 0, "{}: unknown dtype {}", where, in_quotes(entry.dtype));

  const json& shape = value["shape"];
  require(shape.is_array(), "{}: shape is not a list", where);
  for (const json& size : shape) {
    require(size.is_number_unsigned() && size.get<uint64_t>() <= std::numeric_limits<int64_t>::max(),
            "{}: shape holds {}, not a size", where, size.is_number() ? size.dump() : "something");
    entry.sizes.push_back(size.get<int64_t>());
  }
  const json& offsets = value["data_offsets"];
  require(
      offsets.is_array() && offsets.size() == 2 && offsets[0].is_number_unsigned() && offsets[1].is_number_unsigned(),
      "{}: data_offsets is not a pair of byte offsets", where);
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  require(entry.begin <= entry.end, "{}: data_offsets end at {}, before their begin {}", where, entry.end, entry.begin);
  const uint64_t needed = bytes_needed(where, entry);
  require(entry.end - entry.begin == needed, "{}: data_offsets span {} bytes, its dtype {} and shape {} need {}", where,
          entry.end - entry.begin, entry.dtype, shape.dump(), needed);
  return entry;
}

// The tensors must tile the data from its first byte to its last.
void check_places(const std::string& path, const std::map<std::string, SafetensorsEntry>& entries,
                  uint64_t data_bytes) {
  std::vector<const std::pair<const std::string, SafetensorsEntry>*> order;
  for (const auto& item : entries) order.push_back(&item);
  std::ranges::sort(order, {}, [](const auto* item) { return std::pair(item->second.begin, item->second.end); });
  uint64_t reached = 0;
  for (const auto* item : order) {
    const auto& [name, entry] = *item;
    require(entry.end <= data_bytes,
            "{}: tensor {} ends at data byte {} of {}: the file is cut off or its header is wrong", path,
            in_quotes(name), entry.end, data_bytes);
    require(entry.begin >= reached, "{}: tensor {} at data byte {} overlaps the one before, which ends at {}", path,
            in_quotes(name), entry.begin, reached);
    require(entry.begin == reached, "{}: data bytes {} to {}, before tensor {}, belong to no tensor", path, reached,
            entry.begin, in_quotes(name));
    reached = entry.end;
  }
  require(reached == data_bytes, "{}: data bytes {} to {}, after the last tensor, belong to no tensor", path, reached,
          data_bytes);
}

// Checks the file against the checksum in its metadata, where it was written here, and drops the keys that served for
// that.
void verify_checksum(const MappedFile& file, std::string_view header, Metadata& metadata) {
  const auto value_of = [&](std::string_view key) {
    const auto found = metadata.find(std::string(key));
    return found == metadata.end() ? std::string() : found->second;
  };
  const std::string stated = value_of(checksum_key);
  if (!stated.starts_with(checksum_prefix) && value_of(writer_key) != writer_name) return;

  const size_t place = checksum_place(header);
  Checksum sum;
  if (place != std::string_view::npos) {
    const size_t in_file = length_bytes + place;
    sum.add(file.bytes().first(in_file));
    sum.add(no_digits);
    sum.add(file.bytes().subspan(in_file + no_digits.size()));
  }
  const std::string found = std::string(checksum_prefix) + sum.digits();
  require(place != std::string_view::npos && stated == found,
          "{}: damaged, or rewritten by another program that kept the old checksum: {} is {}, its metadata says \"{}\"",
          file.path(), checksum_key, found, stated);
  metadata.erase(std::string(checksum_key));
  metadata.erase(std::string(writer_key));
}

// ---------------------------------------------------------------- writing

// The tensors by falling size of their numbers, so that all are aligned, and by name.
std::vector<NamedTensor> in_file_order(const std::string& path, std::vector<NamedTensor> tensors, Arena& copies) {
  std::ranges::sort(tensors, [](const NamedTensor& a, const NamedTensor& b) {
    return std::pair(size_of(b.tensor.dtype()), std::string_view(a.name)) <
           std::pair(size_of(a.tensor.dtype()), std::string_view(b.name));
  });
  std::set<std::string_view> seen;
  for (NamedTensor& item : tensors) {
    require(seen.insert(item.name).second, "{}: two tensors named {}", path, in_quotes(item.name));
    require(item.name != "__metadata__", "{}: a tensor cannot be named __metadata__", path);
    require(item.tensor.defined(), "{}: tensor {} has no numbers", path, in_quotes(item.name));
    item.tensor = contiguous(copies, item.tensor);
  }
  return tensors;
}

std::string make_header(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
  json header = json::object();
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    json sizes = json::array();
    for (int dim = 0; dim < tensor.rank(); ++dim) sizes.push_back(tensor.size(dim));
    header[name] = {{"dtype", tensor.dtype() == DType::f32 ? "F32" : "F64"},
                    {"shape", sizes},
                    {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  json& notes = header["__metadata__"] = json::object();
  for (const auto& [key, value] : metadata) {
    require(key != checksum_key && key != writer_key, "{}: metadata key {} is kept for the checksum", path, key);
    notes[key] = value;
  }
  notes[std::string(checksum_key)] = fmt::format("{}{}", checksum_prefix, no_digits);
  notes[std::string(writer_key)] = writer_name;
  try {
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    require(text.size() <= most_header_bytes, "{}: the header would take {} bytes, at most {} can be", path,
            text.size(), most_header_bytes);
    return text;
  } catch (const json::exception&) {
    fail("{}: a name or metadata is not UTF-8", path);
  }
}

std::string little_endian(uint64_t value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::span<const std::byte> bytes_of(const Tensor& x) {
  return dispatch(x.dtype(),
                  [&](auto type) { return std::as_bytes(std::span<const decltype(type)>(x.span<decltype(type)>())); });
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
  Arena copies;
  const std::vector<NamedTensor> order = in_file_order(path, tensors, copies);
  std::string header = make_header(path, order, metadata);
  const std::string length = little_endian(header.size());
  Checksum sum;
  sum.add(length);
  sum.add(header);
  for (const NamedTensor& item : order) sum.add(bytes_of(item.tensor));
  header.replace(checksum_place(header), no_digits.size(), sum.digits());
  write_atomically(path, [&](FileWriter& writer) {
    writer.write(length);
    writer.write(header);
    for (const NamedTensor& item : order) writer.write(bytes_of(item.tensor));
  });
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path), copies_(std::make_unique<Arena>()) {
  const size_t file_bytes = file_.bytes().size();
  require(file_bytes > length_bytes, "{}: {} bytes are too few for a safetensors file", path, file_bytes);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file_.bytes().data(), length_bytes);
  require(header_bytes <= file_bytes - length_bytes,
          "{}: not a safetensors file, or cut off: the header length at byte 0 is {}, the file has {} bytes", path,
          header_bytes, file_bytes);
  require(header_bytes <= most_header_bytes, "{}: the header length at byte 0 is {}, at most {} can be", path,
          header_bytes, most_header_bytes);
  const std::string_view header = file_.text().substr(length_bytes, header_bytes);
  require(header.starts_with('{'), "{}: not a safetensors file: the header at byte {} does not start with {{", path,
          length_bytes);
  data_start_ = length_bytes + header_bytes;

  const json parsed = parse_header(path, header);
  for (const auto& [name, value] : parsed.items()) {
    if (name == "__metadata__") {
      metadata_ = parse_metadata(path, value);
    } else {
      entries_[name] = parse_entry(fmt::format("{}: tensor {}", path, in_quotes(name)), value);
      names_.push_back(name);
    }
  }
  check_places(path, entries_, file_bytes - data_start_);
  verify_checksum(file_, header, metadata_);
}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  require(found != entries_.end(), "{} holds no tensor {}", path(), in_quotes(name));
  return found->second;
}

const std::string& SafetensorsFile::metadata(const std::string& key) const {
  const auto found = metadata_.find(key);
  require(found != metadata_.end(), "{} has no metadata key {}", path(), in_quotes(key));
  return found->second;
}

std::span<const std::byte> SafetensorsFile::bytes(const std::string& name) const {
  const SafetensorsEntry& e = entry(name);
  return file_.bytes().subspan(data_start_ + e.begin, e.end - e.begin);
}

Tensor SafetensorsFile::tensor(const std::string& name) {
  const SafetensorsEntry& e = entry(name);
  require(e.dtype == "F32" || e.dtype == "F64", "{}: tensor {} is {}; only F32 and F64 can be computed with", path(),
          in_quotes(name), e.dtype);
  require(e.sizes.size() <= Shape::max_rank, "{}: tensor {} has {} dimensions, at most {} can be", path(),
          in_quotes(name), e.sizes.size(), Shape::max_rank);
  Shape shape;
  for (const int64_t size : e.sizes) shape.append(size);
  const DType dtype = e.dtype == "F32" ? DType::f32 : DType::f64;
  const std::span<const std::byte> numbers = bytes(name);
  if (reinterpret_cast<uintptr_t>(numbers.data()) % size_of(dtype) == 0)
    return Tensor::wrap(const_cast<std::byte*>(numbers.data()), shape, dtype);
  const Tensor copy = empty(*copies_, shape, dtype);
  if (!numbers.empty())
    std::memcpy(dispatch(dtype, [&](auto t) -> void* { return copy.data<decltype(t)>(); }), numbers.data(),
                numbers.size());
  return copy;
}

}  // namespace sextant
