// `sextant tape`: one step as text, as a graph, as JSON and as a page.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "autograd/formula.h"
#include "experiments/page.h"
#include "tests/experiments/program.h"

namespace sextant {
namespace {

TEST(TapeCommandTest, SaysWhoReadsAndWhatFlowsBack) {
  const test::ProgramRun run = test::sextant({"tape", "--position", "rope+affine", "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  const auto rows = nlohmann::json::parse(run.out)["rows"];
  ASSERT_GT(rows.size(), 20u);
  for (const auto& row : rows) {
    for (const auto& input : row["inputs"]) {  // who reads and who is read agree
      const auto& readers = rows[input.get<size_t>()]["read_by"];
      EXPECT_NE(std::find(readers.begin(), readers.end(), row["index"]), readers.end()) << row;
    }
    if (!row["inputs"].empty()) {
      EXPECT_TRUE(row["formula"].is_string() && row["backward"].is_string()) << row;
    }
    if (row["name"] == "blocks.0.position.affine.slope") {
      EXPECT_GT(row["gradient_norm"].get<double>(), 0.0);
    }
  }
  EXPECT_EQ(rows.back()["name"], "cross_entropy");
  EXPECT_DOUBLE_EQ(rows.back()["gradient_norm"].get<double>(), 1.0);
  EXPECT_NE(test::sextant({"tape"}).out.find("read by"), std::string::npos);
}

TEST(TapeCommandTest, ThePageShowsEachOperationsFormulaBackwardAndPlace) {
  const test::Folder folder;
  const std::string path = folder.path("tape.html");
  const test::ProgramRun run =
      test::sextant({"tape", "--position", "transport(kind=path,gate=1)+pj-bias", "--json", "--html", path});
  ASSERT_EQ(run.status, 0) << run.err;
  const std::string page = test::read_file(path);
  for (const auto& row : nlohmann::json::parse(run.out)["rows"]) {
    if (row["inputs"].empty()) continue;
    const Formula* formula = formula_of(row["name"].get<std::string>());
    ASSERT_NE(formula, nullptr) << row["name"];
    for (const std::string& part : {formula->forward, formula->backward, formula->place()})
      EXPECT_NE(page.find(html_escaped(part)), std::string::npos) << part;
  }
  EXPECT_NE(page.find("width=device-width"), std::string::npos);
  EXPECT_NE(test::read_file(folder.path("tape-nodes.csv")).find("|gradient|"), std::string::npos);
}

TEST(TapeCommandTest, TheGraphHasANodeAndItsEdgesALineEach) {
  const test::Folder folder;
  const test::ProgramRun run = test::sextant({"tape", "--dot", "--html", folder.path("tape.html")});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(run.out.starts_with("digraph tape {\n")) << run.out.substr(0, 80);
  EXPECT_TRUE(run.out.ends_with("}\n"));  // nothing but the graph: it goes to `dot`
  EXPECT_NE(run.out.find("linear"), std::string::npos);
  EXPECT_NE(run.out.find(" -> "), std::string::npos);
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '{'), std::count(run.out.begin(), run.out.end(), '}'));
}

TEST(TapeCommandTest, RefusesWhatCannotBe) {
  EXPECT_EQ(test::sextant({"tape", "--position", "rop"}).status, 2);
  EXPECT_EQ(test::sextant({"tape", "--width", "7", "--heads", "2"}).status, 2);
  EXPECT_NE(test::sextant({"tape", "--html", std::string(SEXTANT_PROGRAM) + "/tape.html"}).status, 0);  // in a file
}

}  // namespace
}  // namespace sextant
