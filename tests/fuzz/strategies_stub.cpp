// Strategies for the parser to know, in place of the real ones, which would bring the whole library along: every kind
// of key, words, numbers, flags, and names that begin alike.
#include "positional/strategy.h"

namespace sextant {

const std::vector<StrategyInfo>& strategies() {
  static const std::vector<StrategyInfo> all = [] {
    std::vector<StrategyInfo> infos(5);
    infos[0].name = "none";
    infos[1].name = "rope";
    infos[1].keys = {{"base", "10000", "", {}},
                     {"scaling", "none", "", {"none", "linear", "ntk", "dynamic-ntk", "yarn"}},
                     {"factor", "", "", {}}};
    infos[2].name = "pj-bias";
    infos[2].keys = {{"jets", "1", "", {}}, {"affine", "1", "", {}}, {"scale", "", "", {}}};
    infos[3].name = "pj-rotary";
    infos[3].keys = {{"order", "2", "", {}}, {"chart", "raw", "", {"raw", "lc"}}};
    infos[4].name = "transport";
    infos[4].keys = {{"kind", "random", "", {"random", "learned", "path"}}, {"values", "0", "", {}}};
    return infos;
  }();
  return all;
}

}  // namespace sextant
