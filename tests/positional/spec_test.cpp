// The SPEC language: what parses, what a term then holds, and the one line that bad SPECs get.
#include "positional/spec.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "positional/strategy.h"

namespace sextant {
namespace {

// The layer for a SPEC at a head dimension, or the message.
std::string built(const std::string& spec, int64_t head_dim = 16, int64_t heads = 4) {
  Arena weights;
  PositionTables tables;
  PositionSettings settings;
  settings.heads = heads;
  settings.head_dim = head_dim;
  settings.width = heads * head_dim;
  settings.weights = &weights;
  settings.tables = &tables;
  settings.prefix = "blocks.0.position.";
  try {
    Position position(spec, settings);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::bad_input) << spec;
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << spec;
    return error.what();
  }
}

TEST(Spec, HasNameAndValuesGivenAndDefault) {
  const auto terms = parse_spec(" rope( base = 5e+5 , pairing=half ) + alibi ");
  ASSERT_EQ(terms.size(), 2u);
  EXPECT_EQ(terms[0].name(), "rope");
  EXPECT_EQ(terms[0].number("base", 1, 1e9), 5e5);
  EXPECT_EQ(terms[0].word("pairing"), "half");
  EXPECT_EQ(terms[0].word("scaling"), "none");
  EXPECT_EQ(terms[1].text(), "alibi");
}

TEST(Spec, CanonicalTextParsesToItself) {
  for (const StrategyInfo& info : strategies()) {
    for (const std::string& example : info.examples) {
      const std::string text = parse_spec(example).front().text();
      EXPECT_EQ(parse_spec(text).front().text(), text) << example;
    }
  }
}

TEST(Spec, EveryStrategyExampleBuildsAndTheyUseEveryKey) {
  for (const StrategyInfo& info : strategies()) {
    std::string all;
    for (const std::string& example : info.examples) {
      EXPECT_EQ(built(example), "") << example;
      all += example;
    }
    for (const SpecKey& key : info.keys)
      EXPECT_NE(all.find(key.name + "="), std::string::npos) << info.name << " " << key.name;
    EXPECT_FALSE(info.summary.empty());
  }
}

TEST(Spec, TheDocumentedOnesBuild) {
  for (const char* spec : {"none",
                           "rope",
                           "rope(base=500000,scaling=none,factor=1,pairing=interleaved)",
                           "rope(scaling=linear)",
                           "rope(scaling=ntk,factor=8)",
                           "rope(scaling=dynamic-ntk)",
                           "rope(scaling=yarn,factor=4)",
                           "rope(pairing=half)",
                           "alibi",
                           "affine",
                           "affine(scale=64)",
                           "jordan(order=2,scale=64,mode=exact,damping=0.01,anchored=1)",
                           "jordan(order=4,mode=scaled,anchored=0)",
                           "jordan(mode=stabilized)",
                           "jordan(mode=stabilized,damping=0.5)",
                           "jordan(damping=2.2)",
                           "jordan(damping=10,anchored=0)",
                           "pj-bias(jets=3,lc-jets=2,affine=1,frequencies=4,scale=128,learn-frequencies=1)",
                           "pj-bias(jets=0,lc-jets=1,affine=0)",
                           "pj-rotary(order=2,scale=64,affine=1,chart=raw)",
                           "pj-rotary(order=2,affine=0,chart=lc)",
                           "rope(scaling=dynamic-ntk)+affine",
                           "rope+affine+gate",
                           "transport(kind=learned,values=1)+alibi",
                           "rope+transport(kind=learned)",
                           "pj-bias+rope+alibi",
                           "none+affine"})
    EXPECT_EQ(built(spec), "") << spec;
}

struct Bad {
  std::string spec;
  std::vector<std::string> says;  // what, where, what would be right
};

TEST(Spec, BadOnesAreAnsweredInOneLine) {
  for (const Bad& bad :
       std::vector<Bad>{{"", {"empty term", "offset 0"}},
                        {"rop", {"'rop'", "offset 0", "'rope'"}},
                        {"rope+alibbi", {"'alibbi'", "offset 5", "'alibi'"}},
                        {"rope+", {"empty term", "offset 5"}},
                        {"rope++alibi", {"empty term", "offset 5"}},
                        {"rope(bse=1)", {"'bse'", "offset 5", "'base'"}},
                        {"alibi(slope=1)", {"'slope'", "takes none"}},
                        {"rope(base=10,base=20)", {"'base'", "twice", "offset 13"}},
                        {"rope(base)", {"'base'", "lacks '='"}},
                        {"rope(base=)", {"'base'", "no value", "offset 10"}},
                        {"rope(base=ten)", {"base=ten", "number from 1"}},
                        {"rope(base=nan)", {"base=nan", "number from 1"}},
                        {"rope(base=1e400)", {"base=1e400", "number from 1"}},
                        {"rope(base=0x10)", {"base=0x10", "number from 1"}},
                        {"rope(base=0x1p9)", {"base=0x1p9", "number from 1"}},
                        {std::string("rope(base=10\0x)", 15), {"base=10"}},  // what() ends at the NUL
                        {"jordan(order=0x2)", {"order=0x2", "whole number"}},
                        {"rope(base=0.5)", {"base=0.5", "from 1 to"}},
                        {"rope(base=10000", {"not closed", "')'"}},
                        {"rope)", {"')'", "offset 4"}},
                        {"rope(scaling=yrn)", {"scaling=yrn", "'yarn'", "dynamic-ntk"}},
                        {"affine(scale=0)", {"scale=0", "from 1e-06"}},
                        {"affine(scale=-3)", {"scale=-3"}},
                        {"pj-bias(jets=1.5)", {"jets=1.5", "whole number"}},
                        {"pj-bias(jets=0,lc-jets=0,affine=0)", {"no sector"}},
                        {"pj-bias(affine=2)", {"affine=2", "0, 1"}},
                        {"jordan(order=3)", {"order=3", "6 divides", "16"}},
                        {"pj-rotary(order=3,affine=0)", {"order=3", "multiple of 6", "16"}},
                        {"pj-rotary(order=16)", {"order=16", "at least 34", "16"}},
                        {"jordan(mode=stabilized,anchored=1)", {"stabilized", "anchored", "no group"}},
                        {"jordan(damping=10)", {"damping=10", "f32", "2.23 or less", "f64"}},
                        {"jordan(damping=2.1,order=8,mode=exact)", {"damping=2.1", "1.99 or less"}},
                        {"rope+jordan", {"rope", "jordan", "do not commute"}},
                        {"jordan+pj-rotary", {"do not commute"}},
                        {"rope(pairing=half)+transport(kind=learned)", {"pairing=half", "transport", "do not commute"}},
                        {"rope+alibi+rope", {"'rope'", "twice"}}}) {
    const std::string message = built(bad.spec);
    for (const std::string& part : bad.says)
      EXPECT_NE(message.find(part), std::string::npos) << bad.spec << ": " << message;
  }
  EXPECT_NE(built("rope", 15).find("must be even"), std::string::npos);
  EXPECT_NE(built("pj-rotary", 15).find("must be even"), std::string::npos);
}

TEST(Spec, NearestIsByEdits) {
  EXPECT_EQ(nearest("ropes", {"alibi", "rope", "gate"}), "rope");
  EXPECT_EQ(nearest("", {"abc", "a"}), "a");
  EXPECT_EQ(nearest("ROPE", {"gate", "rope", "alibi"}), "rope");
}

}  // namespace
}  // namespace sextant
