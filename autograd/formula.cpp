#include "autograd/formula.h"

#include <algorithm>
#include <filesystem>

namespace sextant {

namespace {
std::vector<Formula>& registry() {
  static std::vector<Formula> all;
  return all;
}
}  // namespace

const std::vector<Formula>& formulas() {
  return registry();
}

const Formula* formula_of(std::string_view operation) {
  const auto found = std::ranges::find(registry(), operation, &Formula::operation);
  return found == registry().end() ? nullptr : &*found;
}

RegisterFormula::RegisterFormula(const char* operation, const char* forward, const char* backward,
                                 std::source_location place) {
  // Folder and file alone: the rest of the path is the machine's on which this was compiled.
  const std::filesystem::path path(place.file_name());
  registry().push_back(
      {operation, forward, backward, (path.parent_path().filename() / path.filename()).generic_string(), place.line()});
}

}  // namespace sextant
