// Event tokens: written out by hand, quantisation errors, identity on tokens, and sequences no encoder would write.
#include "data/events.h"

#include <cmath>
#include <map>

#include "core/random.h"
#include "data/midi.h"
#include "tests/data/temporary.h"

namespace sextant {
namespace {

std::vector<int32_t> through_midi(std::span<const int32_t> tokens) {
  const auto bytes = write_midi(decode_events(tokens));
  MidiFile file = parse_midi(bytes, "written");
  EXPECT_TRUE(file.warnings.empty());
  return encode_events(midi_notes(file, {}, "written"));
}

TEST(Events, WrittenOutByHand) {
  // Middle C for 0.5 s, the E above from 0.25 s to 2.75 s, softer.
  const std::vector<Note> notes = {{0, 0.5, 60, 100}, {0.25, 2.75, 64, 40}};
  const std::vector<int32_t> expected = {388, 356 + 25, 128 + 60, 256 + 24, 356 + 10, 128 + 64, 256 + 24,
                                         60,  256 + 99, 256 + 99, 256 + 24, 64,       389};
  EXPECT_EQ(encode_events(notes), expected);
  EXPECT_EQ(decode_events(expected), (std::vector<Note>{{0, 0.5, 60, 102}, {0.25, 2.75, 64, 42}}));
  EXPECT_EQ(event_name(388), "begin");
  EXPECT_EQ(event_name(256 + 24), "shift 0.25 s");
  EXPECT_EQ(event_name(188), "note-on 60");
  EXPECT_EQ(event_name(60), "note-off 60");
  EXPECT_EQ(event_name(387), "velocity 31");
}

TEST(Events, NoNotesAreBeginAndEnd) {
  EXPECT_EQ(encode_events({}), (std::vector<int32_t>{388, 389}));
  EXPECT_TRUE(decode_events({}).empty());
}

TEST(Events, QuantisationErrorIsAsStated) {
  const Random random(3, "events");
  std::vector<Note> notes;
  for (uint64_t i = 0; i < 128; ++i) {  // each pitch once, so that none cuts another
    const double start = 600 * random.uniform(3 * i), length = 0.011 + 3 * random.uniform(3 * i + 1);
    notes.push_back({start, start + length, static_cast<int>(i), 1 + static_cast<int>(random.below(3 * i + 2, 127))});
  }
  std::map<int, Note> back;
  for (const Note& note : decode_events(encode_events(notes))) back[note.pitch] = note;
  ASSERT_EQ(back.size(), notes.size());
  double worst = 0;
  for (const Note& note : notes) {
    worst = std::max({worst, std::abs(back[note.pitch].start - note.start), std::abs(back[note.pitch].end - note.end)});
    EXPECT_LE(std::abs(back[note.pitch].velocity - note.velocity), 2);
  }
  EXPECT_LE(worst, 0.005 + 1e-9);
  EXPECT_GT(worst, 0.004);  // that it is the bound
}

TEST(Events, APitchSoundsOnceAtATime) {
  // The second C cuts the first; two that start together are one, the longer and louder.
  const auto cut = decode_events(encode_events(std::vector<Note>{{0, 1, 60, 80}, {0.5, 0.7, 60, 80}}));
  EXPECT_EQ(cut, (std::vector<Note>{{0, 0.5, 60, 82}, {0.5, 0.7, 60, 82}}));
  const auto merged = decode_events(encode_events(std::vector<Note>{{0, 0.3, 60, 20}, {0.001, 1, 60, 10}}));
  EXPECT_EQ(merged, (std::vector<Note>{{0, 1, 60, 22}}));
  const auto shortest = decode_events(encode_events(std::vector<Note>{{1, 1, 60, 20}}));
  EXPECT_EQ(shortest, (std::vector<Note>{{1, 1.01, 60, 22}}));
}

TEST(Events, AnyTokensDecodeAndOnceEncodedStay) {
  const Random random(5, "tokens");
  for (uint64_t sequence = 0; sequence < 50; ++sequence) {
    std::vector<int32_t> tokens;
    for (uint64_t i = 0; i < 400; ++i)
      tokens.push_back(static_cast<int32_t>(random.below(sequence * 400 + i, event_vocabulary)));
    const auto canonical = encode_events(decode_events(tokens));
    EXPECT_EQ(encode_events(decode_events(canonical)), canonical);
    EXPECT_EQ(through_midi(canonical), canonical);
  }
}

TEST(Events, OddSequences) {
  using V = std::vector<int32_t>;
  EXPECT_TRUE(decode_events(V{60, 256, 61}).empty());                            // note-offs alone
  EXPECT_EQ(decode_events(V{188, 265}), (std::vector<Note>{{0, 0.1, 60, 66}}));  // never ended
  EXPECT_EQ(decode_events(V{188}), (std::vector<Note>{{0, 0.01, 60, 66}}));      // and no time passes
  EXPECT_TRUE(decode_events(V{188, 60}).empty());                                // zero length
  EXPECT_EQ(decode_events(V{188, 256, 188, 256, 60}),
            (std::vector<Note>{{0, 0.01, 60, 66}, {0.01, 0.02, 60, 66}}));  // struck again
}

TEST(Events, PiecesOfAStream) {
  using V = std::vector<int32_t>;
  using P = std::vector<std::array<int64_t, 2>>;
  EXPECT_EQ(split_pieces(V{388, 1, 389, 388, 2, 389}), (P{{0, 3}, {3, 6}}));
  EXPECT_EQ(split_pieces(V{1, 2, 389, 388, 3}), (P{{0, 3}, {3, 5}}));  // a window's torn ends
  EXPECT_EQ(split_pieces(V{388, 1, 388, 2}), (P{{0, 2}, {2, 4}}));
  EXPECT_EQ(split_pieces(V{}), (P{}));
}

TEST(Events, WhatCannotBeEncoded) {
  const auto encode = [](Note note) { encode_events(std::span(&note, 1)); };
  EXPECT_ERROR(encode({0, 1, 128, 64}), "pitch 128");
  EXPECT_ERROR(encode({0, 1, -1, 64}), "pitch -1");
  EXPECT_ERROR(encode({0, 1, 60, 0}), "velocity 0");
  EXPECT_ERROR(encode({-0.1, 1, 60, 64}), "-0.1");
  EXPECT_ERROR(encode({0, 1e9, 60, 64}), "24 hours");
  EXPECT_ERROR(encode({0, std::nan(""), 60, 64}), "24 hours");
  EXPECT_ERROR(decode_events(std::vector<int32_t>{5, 390}), "390", "place 1");
  EXPECT_ERROR(decode_events(std::vector<int32_t>{-1}), "-1");
}

TEST(Events, ClassesPartTheVocabulary) {
  int32_t next = 0;
  for (const EventClass& of : event_classes) {
    EXPECT_EQ(of.first, next) << of.name;
    next = of.first + of.tokens;
  }
  EXPECT_EQ(next, event_vocabulary);
}

TEST(Events, PitchNames) {
  EXPECT_EQ(pitch_name(0), "C-1");
  EXPECT_EQ(pitch_name(21), "A0");  // the ends of a piano
  EXPECT_EQ(pitch_name(60), "C4");
  EXPECT_EQ(pitch_name(108), "C8");
  EXPECT_EQ(pitch_name(127), "G9");
}

}  // namespace
}  // namespace sextant
