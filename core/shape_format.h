// A Shape as an argument of fmt, and so of require() and fail(). Its text is then made only when a message is, which
// the checks of hot operations hardly ever come to; apart from shape.h, which needs no fmt.
#pragma once

#include <fmt/core.h>

#include <algorithm>

#include "core/shape.h"

template <>
struct fmt::formatter<sextant::Shape> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  template <class Context>
  auto format(const sextant::Shape& shape, Context& context) const {
    const std::string text = shape.text();
    return std::copy(text.begin(), text.end(), context.out());
  }
};
