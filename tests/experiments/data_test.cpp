// `sextant data`: what it shows of text and music, and the piano roll.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "data/canon.h"
#include "data/events.h"
#include "data/midi.h"
#include "experiments/histogram.h"
#include "tests/experiments/program.h"

namespace sextant::test {
namespace {

using nlohmann::json;

// A line of the text that begins with `start`, blanks in front not counted.
std::string line_of(const std::string& text, const std::string& start) {
  for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
    const std::string line = text.substr(begin, text.find('\n', begin) - begin);
    const size_t first = line.find_first_not_of(' ');
    if (first != std::string::npos && line.substr(first).starts_with(start)) return line;
    if (text.find('\n', begin) == std::string::npos) break;
  }
  return "";
}

class DataCommand : public testing::Test {
 protected:
  std::string midi(const std::string& name, const std::vector<Note>& notes) const {
    const std::vector<uint8_t> bytes = write_midi(notes);
    return folder_.write(name, {bytes.begin(), bytes.end()});
  }
  ProgramRun show(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"data", "show"});
    return sextant(arguments, {"XDG_CACHE_HOME=" + folder_.path("cache")});
  }
  Folder folder_;
};

TEST_F(DataCommand, ShowsEveryByteOfAText) {
  const std::string path =
      folder_.write("a.txt", std::string(60, 'a') + std::string(30, ' ') + "\n\t\x01\xff" + "bcdefg");
  const ProgramRun text = show({path});
  EXPECT_EQ(text.status, 0) << text.err;
  for (const char* part : {"a          60 60.000 %", "space          30", "\\n           1", "\\t           1",
                           "0x01           1  1.000 %", "0xff           1", "g           1", "12 of 256"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << " is not in\n" << text.out;
  const json object = json::parse(show({path, "--json"}).out);
  EXPECT_EQ(object["histogram"].size(), 256u);
  EXPECT_EQ(object["histogram"][97], 60);
  EXPECT_EQ(object["histogram"][255], 1);
  const auto counts = object["histogram"].get<std::vector<int64_t>>();
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 100);
  const ProgramRun plot = show({path, "--plot", folder_.path("a.svg")});
  EXPECT_EQ(plot.status, 2);
  EXPECT_EQ(plot.out, "");
  EXPECT_NE(plot.err.find("no notes"), std::string::npos) << plot.err;
}

TEST_F(DataCommand, ShowsMusicByClassOfEvents) {
  const std::string path = midi("a.mid", {{0, 1, 60, 64}, {0.5, 3, 72, 64}, {3, 75.05, 21, 9}});
  const ProgramRun text = show({path});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find("notes          3\n"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("duration       1 min 15 s\n"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("pitches        21..72 (A0..C5)\n"), std::string::npos) << text.out;
  const json object = json::parse(show({path, "--json"}).out);
  std::map<std::string, int64_t> count;
  int64_t all = 0;
  for (const json& of : object["classes"]) {
    count[of["name"]] = of["count"];
    int64_t sum = 0;
    for (size_t token = of["first"]; token < of["first"].get<size_t>() + of["tokens"].get<size_t>(); ++token)
      sum += object["histogram"][token].get<int64_t>();
    EXPECT_EQ(of["count"], sum) << of["name"];
    all += sum;
  }
  EXPECT_EQ(all, object["tokens"]);
  // Shifts: 0.5 s, 0.5 s, 2 s and, in whole seconds and the rest, 72.05 s.
  EXPECT_EQ(
      count,
      (std::map<std::string, int64_t>{
          {"note-off", 3}, {"note-on", 3}, {"time-shift", 2 + 2 + 73}, {"velocity", 2}, {"begin", 1}, {"end", 1}}));
  EXPECT_NE(line_of(text.out, "time-shift").find(" 77 "), std::string::npos) << text.out;
  EXPECT_NE(line_of(text.out, "1000 ms").find(" 74 "), std::string::npos) << text.out;
  EXPECT_NE(line_of(text.out, "30..50 ms").find(" 1 "), std::string::npos) << text.out;
  EXPECT_NE(line_of(text.out, "C4..B4").find(" 1 "), std::string::npos) << text.out;
}

TEST_F(DataCommand, PlotsAPieceOfThePickedSplit) {
  const std::string picture = folder_.path("roll.svg");
  const ProgramRun run = sextant({"data", "show", "canon", "--plot", picture, "--split", "test", "--piece", "3"});
  EXPECT_EQ(run.status, 0) << run.err;
  const std::string svg = read_file(picture);
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg.substr(0, 100);
  EXPECT_NE(svg.find("canon, test piece 3"), std::string::npos);
  size_t bars = 0;
  for (size_t at = svg.find("fill-opacity"); at != std::string::npos; at = svg.find("fill-opacity", at + 1)) ++bars;
  EXPECT_EQ(bars, 512u);  // two notes in each of 256 steps
  for (const auto& [split, piece, part] : std::vector<std::array<std::string, 3>>{
           {"test", "128", "128 pieces"}, {"tset", "0", "tset"}, {"test", "-1", "--piece"}}) {
    const ProgramRun wrong = sextant({"data", "show", "canon", "--plot", picture, "--split", split, "--piece", piece});
    EXPECT_EQ(wrong.status, 2);
    EXPECT_NE(wrong.err.find(part), std::string::npos) << wrong.err;
  }
}

TEST(Histogram, OfNothing) {
  EXPECT_EQ(histogram_text(TokenKind::bytes, std::vector<int64_t>(256, 0)), "");
  const std::string events = histogram_text(TokenKind::events, std::vector<int64_t>(event_vocabulary, 0));
  EXPECT_NE(line_of(events, "note-on").find("0 of 128"), std::string::npos) << events;
}

TEST(Histogram, RangesCoverEachClass) {
  // Each token a different number of times: the ranges add up to the class only when none is left out or counted twice.
  std::vector<int64_t> counts(event_vocabulary);
  for (size_t token = 0; token < counts.size(); ++token) counts[token] = static_cast<int64_t>(1 + token * token);
  const std::string text = histogram_text(TokenKind::events, counts);
  const auto of_class = [&](int32_t first, int32_t tokens) {
    return std::accumulate(counts.begin() + first, counts.begin() + first + tokens, int64_t{0});
  };
  std::vector<int64_t> sums;  // of the lines below each title
  for (size_t begin = text.find("pitches of"); begin < text.size(); begin = text.find('\n', begin) + 1) {
    if (text[begin] != ' ')
      sums.push_back(0);
    else
      sums.back() += std::atoll(text.c_str() + begin + 16);
  }
  EXPECT_EQ(sums, (std::vector<int64_t>{of_class(event_note_on, 128), of_class(event_time_shift, longest_shift),
                                        of_class(event_velocity, velocity_bins)}));
}

}  // namespace
}  // namespace sextant::test
