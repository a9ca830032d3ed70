// ALiBi's slopes, for whoever compares with them.
#pragma once

#include <cstdint>
#include <vector>

namespace sextant {

// m_1 .. m_H (arXiv 2108.12409, section 3), for any number of heads.
std::vector<double> alibi_slopes(int64_t heads);

}  // namespace sextant
