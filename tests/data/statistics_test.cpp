// Statistics, samples and the piano roll of small corpora whose numbers are known.
#include "data/statistics.h"

#include <map>

#include "data/canon.h"
#include "data/midi.h"
#include "tests/data/temporary.h"

namespace sextant {
namespace {

class StatisticsTest : public DataTest {};

TEST_F(StatisticsTest, OfText) {
  const auto corpus = open_corpus(write("a.txt", std::string(30, 'a') + std::string(10, 'b') + "\x01"));
  const CorpusStatistics s = statistics(*corpus);
  EXPECT_EQ(s.files, 1);
  EXPECT_EQ(s.tokens, 41);
  EXPECT_EQ(s.histogram['a'], 30);
  EXPECT_EQ(s.histogram['b'], 10);
  EXPECT_EQ(s.histogram[1], 1);
  EXPECT_EQ(s.split_tokens[0], 36);
  EXPECT_EQ(s.notes, 0);
  EXPECT_EQ(sample(*corpus, 31), std::string(30, 'a') + "b");
  EXPECT_ERROR(piece_notes(*corpus, Split::train, 0), "text");
}

TEST_F(StatisticsTest, OfMusic) {
  const auto midi = [&](const std::string& name, std::vector<Note> notes) {
    const auto bytes = write_midi(notes);
    write(name, {bytes.begin(), bytes.end()});
  };
  midi("m/a.mid", {{0, 1, 60, 64}, {0.5, 3, 72, 64}});
  midi("m/b.mid", {{1, 2, 48, 64}});
  const auto corpus = open_corpus(in("m"));
  const CorpusStatistics s = statistics(*corpus);
  EXPECT_EQ(s.files, 2);
  EXPECT_EQ(s.pieces, 2);
  EXPECT_EQ(s.notes, 3);
  EXPECT_DOUBLE_EQ(s.seconds, 5);
  EXPECT_EQ(s.lowest_pitch, 48);
  EXPECT_EQ(s.highest_pitch, 72);
  int64_t sum = 0;
  for (const int64_t count : s.histogram) sum += count;
  EXPECT_EQ(sum, s.tokens);
  const Split of_a = corpus->files()[0].split;
  EXPECT_EQ(piece_notes(*corpus, of_a, 0), (std::vector<Note>{{0, 1, 60, 66}, {0.5, 3, 72, 66}}));
  EXPECT_ERROR(piece_notes(*corpus, of_a, 1), "1 pieces", "no piece 1");
  EXPECT_ERROR(piece_notes(*corpus, of_a, -1), "-1");
}

TEST_F(StatisticsTest, APieceCutByTheSplitIsWhole) {
  std::vector<Note> notes;
  for (int i = 0; i < 100; ++i) notes.push_back({25 * i / 100.0, (25 * i + 20) / 100.0, 40 + i % 40, 66});
  const auto bytes = write_midi(notes);
  const auto corpus = open_corpus(write("one.mid", {bytes.begin(), bytes.end()}));
  ASSERT_GT(corpus->size(Split::validation), 0);
  EXPECT_EQ(piece_notes(*corpus, Split::train, 0), notes);
  EXPECT_ERROR(piece_notes(*corpus, Split::train, 1), "1 pieces", "no piece 1");
  EXPECT_ERROR(piece_notes(*corpus, Split::validation, 0), "0 pieces");
}

TEST_F(StatisticsTest, OfCanon) {
  const auto corpus = make_canon();
  const CorpusStatistics s = statistics(*corpus);
  EXPECT_EQ(s.pieces, canon_pieces);
  EXPECT_EQ(s.notes, canon_pieces * 512);
  EXPECT_NEAR(s.seconds, canon_pieces * 256 * 0.2375, 1e-6);  // 0.32 + 0.18 + 0.25 + 0.20 s a beat of 4 steps
  // A piece has 256 steps: in each two notes end, two begin, each after its velocity, and the clock moves on once.
  const std::map<std::string, int64_t> a_piece = {{"note-off", 512}, {"note-on", 512}, {"time-shift", 256},
                                                  {"velocity", 512}, {"begin", 1},     {"end", 1}};
  for (const EventClass& of : event_classes) {
    int64_t count = 0;
    for (int32_t token = of.first; token < of.first + of.tokens; ++token)
      count += s.histogram[static_cast<size_t>(token)];
    EXPECT_EQ(count, canon_pieces * a_piece.at(of.name)) << of.name;
  }
  EXPECT_TRUE(sample(*corpus, 3).starts_with("begin, velocity 8, note-on"));
  EXPECT_EQ(piece_notes(*corpus, Split::validation, 1).size(), 512u);
}

TEST_F(StatisticsTest, PianoRollHasABarForEachNoteInsideThePicture) {
  const std::vector<Note> notes = {{0, 1, 60, 64}, {0.5, 3, 72, 127}, {3, 3.01, 0, 1}};
  const std::string svg = piano_roll_svg(notes, "a < b & c");
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  size_t bars = 0;
  for (size_t at = svg.find("fill-opacity"); at != std::string::npos; at = svg.find("fill-opacity", at + 1)) ++bars;
  EXPECT_EQ(bars, notes.size());
  EXPECT_NE(svg.find(">C4<"), std::string::npos);  // pitch 60
  EXPECT_ERROR(piano_roll_svg({}, "x"), "no notes");
}

}  // namespace
}  // namespace sextant
