// SHA-256 (FIPS 180-4): the identity of data. Manifests, caches and downloads name content by it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sextant {

class Sha256 {
 public:
  Sha256();
  void update(std::span<const uint8_t> bytes);
  void update(std::string_view text);
  std::array<uint8_t, 32> digest() const;  // of what was given so far; more may follow
  std::string hex() const;                 // the digest as 64 lower-case hexadecimal digits

 private:
  void compress(const uint8_t* blocks, size_t count);

  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> pending_{};  // the bytes of a block that is not yet full
  uint64_t length_ = 0;                // bytes given so far
};

std::string sha256_hex(std::span<const uint8_t> bytes);
std::string sha256_hex(std::string_view text);

}  // namespace sextant
