// Whatever is differentiable is audited. What there is, is read from the sources and from tapes; there is no list here
// that one could forget to extend.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "autograd/fault.h"
#include "autograd/formula.h"
#include "autograd/gradient_check.h"
#include "nn/transformer.h"
#include "positional/strategy.h"

namespace sextant {
namespace {

using Names = std::set<std::string>;

std::string sources(const std::string& folder, const std::string& extension) {
  std::ostringstream text;
  for (const auto& file : std::filesystem::directory_iterator(std::string(SEXTANT_SOURCE_DIR) + "/" + folder))
    if (file.path().extension() == extension) text << std::ifstream(file.path()).rdbuf() << "\n";
  return text.str();
}

Names matches(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  Names names;
  for (std::sregex_iterator at(text.begin(), text.end(), expression), end; at != end; ++at) names.insert((*at)[1]);
  return names;
}

// Operations whose backward an audit case runs and compares, in the function itself or in its twin.
const Names& audited_operations() {
  static const Names names = [] {
    Names all;
    for (const AuditEntry& entry : audit_entries()) {
      Arena arena;
      for (const AuditCase& audit : entry.cases(arena)) {
        if (!audit.differentiable_here) continue;
        for (const TapeFunction& function : {audit.function, audit.composed}) {
          if (!function) continue;
          Tape tape;
          ContributionList list;
          tape.set_witness(&list);
          std::vector<Variable> inputs;
          for (const Tensor& input : audit.inputs) inputs.push_back(tape.variable(input));
          const Variable output = function(tape, inputs);
          if (output.needs_gradient()) tape.backward(output, full(arena, output.shape(), 1.0, output.dtype()));
          for (const auto& [operation, input] : list.all()) all.insert(operation);
        }
      }
    }
    return all;
  }();
  return names;
}

Names entries(const std::string& family) {
  Names names;
  for (const AuditEntry& entry : audit_entries())
    if (family.empty() || entry.family == family) names.insert(entry.name);
  return names;
}

Names missing(const Names& wanted, const Names& present) {
  Names result;
  std::ranges::set_difference(wanted, present, std::inserter(result, result.end()));
  return result;
}

constexpr const char* recorded_name = R"re(\brecord(?:_many<\w+>)?\(\s*"([^"]+)")re";

TEST(RegistrationTest, EveryRecordedOperationIsAudited) {
  Names recorded;
  for (const char* folder : {"autograd", "positional", "nn"})
    recorded.merge(matches(sources(folder, ".cpp"), recorded_name));
  EXPECT_GT(recorded.size(), 20u);
  EXPECT_EQ(missing(recorded, audited_operations()), Names{});
}

TEST(RegistrationTest, AnUnregisteredOperationWouldBeSeen) {
  const std::string source =
      "  return tape.record_many<2>(\n      \"forgotten one\", {x}, y, backward);  tape.record(\"add\", {a}, b, c);";
  EXPECT_EQ(missing(matches(source, recorded_name), audited_operations()), Names{"forgotten one"});
}

// By its own name as an entry, or as an operation on the tape of one.
TEST(RegistrationTest, EveryPublicOperationIsAudited) {
  const std::string headers = sources("autograd", ".h");
  Names functions = matches(headers, R"re((?:^|\n)Variable (\w+)\()re");
  functions.merge(matches(headers, R"re((?:^|\n)std::array<Variable, \w+> (\w+)\()re"));
  std::erase_if(functions, [](const std::string& name) { return name.ends_with("_composed"); });
  EXPECT_GT(functions.size(), 35u);
  Names present = entries("");
  present.insert(audited_operations().begin(), audited_operations().end());
  EXPECT_EQ(missing(functions, present), Names{});
}

TEST(RegistrationTest, EveryRecordedOperationHasItsFormulaBesideIt) {
  Names recorded = audited_operations();
  for (const char* folder : {"autograd", "positional", "nn"})
    recorded.merge(matches(sources(folder, ".cpp"), recorded_name));
  Names described;
  for (const Formula& formula : formulas()) {
    EXPECT_TRUE(described.insert(formula.operation).second) << formula.operation << " has two formulas";
    EXPECT_FALSE(formula.forward.empty() || formula.backward.empty()) << formula.operation;
    // The place is where it stands.
    std::ifstream file(std::string(SEXTANT_SOURCE_DIR) + "/" + formula.file);
    std::string line, next;
    for (unsigned i = 0; i < formula.line; ++i) std::getline(file, line);
    std::getline(file, next);  // where the formatter has broken the line
    EXPECT_TRUE(line.starts_with("FORMULA(")) << formula.place() << ": " << line;
    EXPECT_NE((line + next).find("\"" + formula.operation + "\""), std::string::npos)
        << formula.place() << ": " << line;
  }
  EXPECT_EQ(missing(recorded, described), Names{}) << "recorded without a FORMULA";
  EXPECT_EQ(missing(described, recorded), Names{}) << "FORMULAs of nothing";
}

TEST(RegistrationTest, EveryLayerIsAudited) {
  const std::string headers = sources("nn", ".h");
  const std::regex class_body(R"re(\nclass (\w+)[^;{]*\{([\s\S]*?)\n\};)re");
  Names layers;
  for (std::sregex_iterator at(headers.begin(), headers.end(), class_body), end; at != end; ++at)
    if (std::regex_search((*at)[2].str(), std::regex(R"re(\n  Variable \w+( ?\(\))?\()re"))) layers.insert((*at)[1]);
  EXPECT_GE(layers.size(), 5u);
  EXPECT_EQ(missing(layers, entries("layer")), Names{});
}

TEST(RegistrationTest, EveryStrategyIsAudited) {
  Names names;
  for (const StrategyInfo& info : strategies()) {
    names.insert(info.name);
    EXPECT_FALSE(info.examples.empty()) << info.name;
  }
  EXPECT_EQ(missing(names, entries("strategy")), Names{});
}

TEST(RegistrationTest, ATrainingStepRunsAuditedOperationsOnly) {
  for (const StrategyInfo& info : strategies()) {
    for (const std::string& spec : info.examples) {
      Transformer model({.vocab = 7, .layers = 2, .width = 16, .heads = 2, .context = 6, .position = spec, .data = ""});
      const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5};
      Tape tape;
      ContributionList list;
      tape.set_witness(&list);
      tape.backward(model.loss(tape, tokens, tokens, 2, 6));
      Names names;
      for (const auto& [operation, input] : list.all()) names.insert(operation);
      EXPECT_GE(names.size(), 5u);
      EXPECT_EQ(missing(names, audited_operations()), Names{}) << spec;
    }
  }
}

}  // namespace
}  // namespace sextant
