// Reading single values of JSON that others may have written.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <utility>

namespace sextant {

// Gives `value` what `json` holds, and tells whether it holds just that: true or false, a text, a number, or a whole
// number within T's range. nlohmann's own get<T>() takes true for 1 and 1.5 for 1, wraps -1 around, and for 1e300 is
// undefined.
template <class T>
bool read_value(const nlohmann::json& json, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) return false;
  } else if constexpr (std::is_integral_v<T>) {
    if (!json.is_number_integer()) return false;
    if (json.is_number_unsigned() ? !std::in_range<T>(json.get<uint64_t>()) : !std::in_range<T>(json.get<int64_t>()))
      return false;
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!json.is_number()) return false;
  } else {
    static_assert(std::is_same_v<T, std::string>);
    if (!json.is_string()) return false;
  }
  json.get_to(value);
  return true;
}

}  // namespace sextant
