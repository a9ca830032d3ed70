// MIDI files written byte by byte, for the tests of the parser and as seeds of its fuzzer.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace sextant {

using Bytes = std::vector<uint8_t>;

inline Bytes number(uint32_t value, int width) {
  Bytes out;
  for (int i = width - 1; i >= 0; --i) out.push_back(static_cast<uint8_t>(value >> (8 * i)));
  return out;
}

inline Bytes join(std::initializer_list<Bytes> parts) {
  Bytes out;
  for (const Bytes& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

inline Bytes header(int format, int tracks, uint32_t division) {
  return join({{'M', 'T', 'h', 'd'},
               number(6, 4),
               number(static_cast<uint32_t>(format), 2),
               number(static_cast<uint32_t>(tracks), 2),
               number(division, 2)});
}

inline Bytes track(const Bytes& events, int64_t declared = -1) {
  return join({{'M', 'T', 'r', 'k'},
               number(declared < 0 ? static_cast<uint32_t>(events.size()) : static_cast<uint32_t>(declared), 4),
               events});
}

const Bytes end_of_track = {0, 0xFF, 0x2F, 0};

inline Bytes tempo(uint32_t microseconds, uint8_t delta = 0) {
  return join({{delta, 0xFF, 0x51, 3}, number(microseconds, 3)});
}

}  // namespace sextant
