// What an operation computes and what its backward does, in a line each, kept where the operation stands: `sextant
// tape` shows them with the place in the source. A test fails when an operation on any tape has none.
//
//   FORMULA("exp", "y = e^x", "dx = dy y");
//   Variable exp(Variable x) { ... record("exp", ...) ... }
#pragma once

#include <source_location>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

struct Formula {
  std::string operation;  // as it is recorded
  std::string forward, backward;
  std::string file;  // "autograd/elementwise.cpp"
  unsigned line = 0;
  std::string place() const { return file + ":" + std::to_string(line); }
};

const std::vector<Formula>& formulas();                 // in order of registration
const Formula* formula_of(std::string_view operation);  // null when it has none

struct RegisterFormula {
  RegisterFormula(const char* operation, const char* forward, const char* backward,
                  std::source_location place = std::source_location::current());
};

#define SEXTANT_JOINED_(a, b) a##b
#define SEXTANT_JOINED(a, b) SEXTANT_JOINED_(a, b)
#define FORMULA(operation, forward, backward) \
  static const ::sextant::RegisterFormula SEXTANT_JOINED(register_formula_, __LINE__)(operation, forward, backward)

}  // namespace sextant
