// What the parts of a page say: marked cells, bars, and words for those who do not see the plot.
#include "experiments/page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "tests/experiments/program.h"

namespace sextant::test {
namespace {

Plot bars() {
  return {.title = "Mass",
          .x_label = "",
          .y_label = "share",
          .series = {{.label = "FJ", .x = {}, .y = {0.25, 0.5}}, {.label = "LC", .x = {}, .y = {0.75, std::nan("")}}},
          .categories = {"text 1", "text \"2\""},
          .stacked = true};
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Page, MarkdownMarksTheBestCell) {
  const Table table{{"strategy", "loss"}, {{"rope", "2.1"}, {"alibi", "2.0"}}, false, {{1, 1}}};
  EXPECT_EQ(table.markdown(), "| strategy | loss |\n| --- | --- |\n| rope | 2.1 |\n| alibi | **2.0** |\n");
  EXPECT_EQ(table.csv(), "strategy,loss\nrope,2.1\nalibi,2.0\n") << "numbers for programs stay numbers";
  const Folder folder;
  Page page(folder.path("page.html"), "A page");
  page.table(table);
  page.write();
  EXPECT_EQ(count(read_file(folder.path("page.html")), "<b>"), 1);
  EXPECT_NE(read_file(folder.path("page.html")).find("<b>2.0</b>"), std::string::npos);
}

bool has_gnuplot() {
  return std::system("gnuplot --version > /dev/null 2>&1") == 0;
}

TEST(Page, BarsAreNamedByCategory) {
  EXPECT_EQ(csv(bars()),
            "series,x,y\nFJ,text 1,0.25\nFJ,\"text \"\"2\"\"\",0.5\nLC,text 1,0.75\nLC,\"text \"\"2\"\"\",nan\n");
  EXPECT_EQ(description(bars()),
            "Bars: Mass: share; FJ: text 1 0.25, text \"2\" 0.5; LC: text 1 0.75, text \"2\" nan.");
  // Pages are made without pictures where gnuplot is missing, which is optional; the test scripts install it.
  if (!has_gnuplot()) GTEST_SKIP() << "gnuplot is not installed";
  const auto picture = draw(bars());
  ASSERT_TRUE(picture.has_value());
  EXPECT_NE(picture->find("text 1"), std::string::npos);
}

TEST(Page, APlotSaysItselfInWords) {
  const Folder folder;
  Page page(folder.path("page.html"), "A page");
  page.plot(
      {.title = "Loss", .x_label = "length", .y_label = "nats", .series = {{.label = "a<b", .x = {1, 2}, .y = {3, 4}}}},
      "loss");
  page.write();
  const std::string text = read_file(folder.path("page.html"));
  // As above. With gnuplot a page without its picture is a fault.
  if (!has_gnuplot()) GTEST_SKIP() << "gnuplot is not installed";
  EXPECT_NE(text.find("<svg"), std::string::npos);
  EXPECT_NE(text.find("aria-label=\"Line plot: Loss: nats against length; a&lt;b from 3 to 4.\""), std::string::npos);
}

}  // namespace
}  // namespace sextant::test
