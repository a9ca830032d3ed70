// The MIDI parser on files written byte by byte; what each means is worked out by hand.
#include "data/midi.h"

#include "tests/data/midi_bytes.h"
#include "tests/data/temporary.h"

namespace sextant {
namespace {

struct Read {
  std::vector<Note> notes;
  std::vector<std::string> warnings;
};

Read read(const Bytes& bytes, bool pedal = false) {
  MidiFile file = parse_midi(bytes, "x.mid");
  Read result{midi_notes(file, {pedal}, "x.mid"), {}};
  result.warnings = file.warnings;
  return result;
}

using Notes = std::vector<Note>;

// 100 ticks a quarter of 500 ms: a tick is 5 ms.
const Bytes one_note = {0, 0x90, 60, 64, 100, 0x80, 60, 0};

TEST(Midi, OneNote) {
  const Read r = read(join({header(0, 1, 100), track(join({one_note, end_of_track}))}));
  EXPECT_EQ(r.notes, (Notes{{0, 0.5, 60, 64}}));
  EXPECT_TRUE(r.warnings.empty());
}

TEST(Midi, RunningStatusAndVelocityZero) {
  const Bytes events = {0, 0x90, 60, 64, 0, 64, 65, 100, 60, 0, 100, 64, 0};
  const Read r = read(join({header(0, 1, 100), track(join({events, end_of_track}))}));
  EXPECT_EQ(r.notes, (Notes{{0, 0.5, 60, 64}, {0, 1, 64, 65}}));
  EXPECT_TRUE(r.warnings.empty());
}

TEST(Midi, OtherMessagesArePassedOver) {
  // Program change and channel pressure (one data byte), pitch bend, key pressure, sysex, a text, a sequencer event;
  // then running status.
  const Bytes before = {0, 0xC0, 5,    0, 0xD0, 9, 0,    0xE0, 1,    2, 0, 0xA0, 60,  3, 0,    0xF0, 3,
                        1, 2,    0xF7, 0, 0xF7, 1, 0x7F, 0,    0xFF, 1, 2, 'h',  'i', 0, 0xFF, 0x7F, 0};
  const Bytes events = {0, 0x90, 60, 64, 50, 0xFF, 6, 1, 'm', 50, 60, 0};
  const Read r = read(join({header(0, 1, 100), track(join({before, events, end_of_track}))}));
  EXPECT_EQ(r.notes, (Notes{{0, 0.5, 60, 64}}));
  EXPECT_TRUE(r.warnings.empty());
}

TEST(Midi, LongDeltaTimes) {
  // 0x81 0x48 = 200 ticks = 1 s; 0x87 0x68 = 1000 ticks = 5 s.
  const Bytes events = {0x81, 0x48, 0x90, 60, 64, 0x87, 0x68, 0x80, 60, 0};
  EXPECT_EQ(read(join({header(0, 1, 100), track(join({events, end_of_track}))})).notes, (Notes{{1, 6, 60, 64}}));
}

TEST(Midi, TempoMapOfFormat1ComesFromAnyTrack) {
  // 500 ms a quarter, at tick 100 1000 ms, at tick 200 250 ms. The note lasts from tick 50 to 300: 0.25 s .. 0.5 + 1 +
  // 0.25 s.
  const Bytes tempos = join({tempo(500000), tempo(1000000, 100), tempo(250000, 100), end_of_track});
  const Bytes events = {50, 0x91, 60, 64, 0x81, 0x7A, 0x81, 60, 0};
  const Read r = read(join({header(1, 2, 100), track(tempos), track(join({events, end_of_track}))}));
  EXPECT_EQ(r.notes, (Notes{{0.25, 1.75, 60, 64}}));
}

TEST(Midi, ManyTempoChangesDoNotDrift) {
  // 10,000 quarters of 333,333 microseconds, a change at each: exactly 3333.33 s.
  Bytes events;
  for (int i = 0; i < 10000; ++i)
    events = i == 0 ? tempo(333333) : (events.insert(events.end(), {100, 0xFF, 0x51, 3, 0x05, 0x16, 0x15}), events);
  events = join({events, one_note, end_of_track});
  const Read r = read(join({header(0, 1, 100), track(events)}));
  EXPECT_EQ(r.notes[0].start, 9999.0 * 333333 / 1e6);
}

TEST(Midi, SmpteDivision) {
  const auto at = [](uint8_t frames, uint8_t ticks) {
    return read(join({header(0, 1, static_cast<uint32_t>((256 - frames) << 8 | ticks)),
                      track(join({tempo(1), one_note, end_of_track}))}))
        .notes[0]
        .end;
  };
  EXPECT_EQ(at(24, 10), 100 / 240.0);
  EXPECT_EQ(at(25, 40), 0.1);
  EXPECT_EQ(at(30, 80), 100 / 2400.0);
  EXPECT_DOUBLE_EQ(at(29, 100), 1001 / 30000.0);  // drop frame: 29.97 frames a second
}

TEST(Midi, Format2PlaysTracksOneAfterAnotherEachWithItsTempo) {
  const Bytes first = join({tempo(1000000), one_note, end_of_track});
  const Read r = read(join({header(2, 2, 100), track(first), track(join({one_note, end_of_track}))}));
  EXPECT_EQ(r.notes, (Notes{{0, 1, 60, 64}, {1, 1.5, 60, 64}}));
}

TEST(Midi, OverlappingNotesEndInTheOrderTheyBegan) {
  const Bytes events = {0, 0x90, 60, 10, 20, 60, 20, 20, 60, 0, 20, 60, 0};
  EXPECT_EQ(read(join({header(0, 1, 100), track(join({events, end_of_track}))})).notes,
            (Notes{{0, 0.2, 60, 10}, {0.1, 0.3, 60, 20}}));
  // On two channels they have nothing to do with each other.
  const Bytes channels = {0, 0x90, 60, 10, 20, 0x91, 60, 20, 20, 0x91, 60, 0, 20, 0x90, 60, 0};
  EXPECT_EQ(read(join({header(0, 1, 100), track(join({channels, end_of_track}))})).notes,
            (Notes{{0, 0.3, 60, 10}, {0.1, 0.2, 60, 20}}));
}

TEST(Midi, HangingNotesLastToTheEndOfTheirTrack) {
  const Bytes events = {0, 0x90, 60, 10, 100, 0xFF, 0x2F, 0};
  const Read r = read(join({header(0, 1, 100), track(events)}));
  EXPECT_EQ(r.notes, (Notes{{0, 0.5, 60, 10}}));
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_NE(r.warnings[0].find("1 notes are never ended"), std::string::npos);
}

TEST(Midi, NoteOffWithoutNoteOnIsNothing) {
  const Bytes events = {0, 0x80, 61, 0};
  EXPECT_EQ(read(join({header(0, 1, 100), track(join({events, one_note, end_of_track}))})).notes.size(), 1u);
}

TEST(Midi, AllNotesOff) {
  const Bytes events = {0, 0x90, 60, 10, 0, 64, 10, 20, 0xB0, 123, 0, 100, 0xFF, 0x2F, 0};
  const Read r = read(join({header(0, 1, 100), track(events)}));
  EXPECT_EQ(r.notes, (Notes{{0, 0.1, 60, 10}, {0, 0.1, 64, 10}}));
  EXPECT_TRUE(r.warnings.empty());
}

TEST(Midi, PedalIsAnOption) {
  // Down at 20, key up at 40, pedal half (down) again at 60, up at 100; the second note ends without pedal.
  const Bytes events = {0,  0x90, 60, 64,   20, 0xB0, 64, 127,  20, 0x80, 60, 0,    20, 0xB0,
                        64, 64,   40, 0xB0, 64, 63,   0,  0x90, 62, 64,   20, 0x80, 62, 0};
  const Bytes file = join({header(0, 1, 100), track(join({events, end_of_track}))});
  EXPECT_EQ(read(file).notes, (Notes{{0, 0.2, 60, 64}, {0.5, 0.6, 62, 64}}));
  EXPECT_EQ(read(file, true).notes, (Notes{{0, 0.5, 60, 64}, {0.5, 0.6, 62, 64}}));
  // Never released: to the end. Another channel's pedal does nothing.
  const Bytes held = {0, 0xB0, 64, 127, 0,  0x90, 60, 64, 20, 0x80, 60,   0,
                      0, 0x91, 62, 64,  20, 0x81, 62, 0,  60, 0xFF, 0x2F, 0};
  EXPECT_EQ(read(join({header(0, 1, 100), track(held)}), true).notes, (Notes{{0, 0.5, 60, 64}, {0.1, 0.2, 62, 64}}));
}

TEST(Midi, UnknownChunksAndLongHeadersArePassedOver) {
  const Bytes long_header = join({{'M', 'T', 'h', 'd'}, number(8, 4), {0, 0, 0, 1, 0, 100, 9, 9}});
  const Bytes unknown = join({{'X', 'F', 'I', 'H'}, number(3, 4), {1, 2, 3}});
  EXPECT_EQ(read(join({long_header, unknown, track(join({one_note, end_of_track})), unknown})).notes.size(), 1u);
}

TEST(Midi, InsideRiff) {
  const Bytes file = join({header(0, 1, 100), track(join({one_note, end_of_track}))});
  EXPECT_EQ(read(join({{'R', 'I', 'F', 'F', 50, 0, 0, 0, 'R', 'M', 'I', 'D', 'd', 'a', 't', 'a', 30, 0, 0, 0}, file}))
                .notes.size(),
            1u);
}

TEST(Midi, TracksWithAWrongLength) {
  const Bytes events = join({one_note, end_of_track});
  const Notes both = {{0, 0.5, 60, 64}, {0, 0.5, 60, 64}};
  for (const int64_t wrong : {0, 3, 11, 13, 100, 780}) {
    const Read r = read(join({header(1, 2, 100), track(events, wrong), track(events)}));
    EXPECT_EQ(r.notes, both) << wrong;
    ASSERT_FALSE(r.warnings.empty());
    EXPECT_NE(r.warnings[0].find("x.mid: byte "), std::string::npos) << r.warnings[0];
  }
}

TEST(Midi, FilesThatEndEarlyGiveWhatIsWhole) {
  const Bytes second = {0, 0x90, 62, 64, 100, 0x80, 62, 0};
  const Bytes file = join({header(0, 1, 100), track(join({one_note, second, end_of_track}))});
  const size_t first_event = 22;  // 14 of the header, 8 of the track's
  for (size_t size = first_event + one_note.size(); size < file.size(); ++size) {
    const Read r = read(Bytes(file.begin(), file.begin() + static_cast<int64_t>(size)));
    ASSERT_GE(r.notes.size(), 1u) << size;
    EXPECT_EQ(r.notes[0], (Note{0, 0.5, 60, 64})) << size;
    EXPECT_EQ(r.notes.size(), size >= first_event + one_note.size() + 4 ? 2u : 1u) << size;
    ASSERT_FALSE(r.warnings.empty()) << size;
  }
  // The torn event begins at byte 30, its delta time.
  const Read torn = read(Bytes(file.begin(), file.begin() + 33));
  EXPECT_EQ(torn.warnings.back(), "x.mid: byte 30: an event breaks off; the 2 whole events before it are used");
}

TEST(Midi, DamageStopsATrackNotTheFile) {
  const auto damaged = [](const Bytes& bad) {
    return read(
        join({header(1, 2, 100), track(join({one_note, bad, end_of_track})), track(join({one_note, end_of_track}))}));
  };
  for (const Bytes& bad :
       {Bytes{0, 0x90, 60, 0xFF, 0xFF}, Bytes{0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, Bytes{0, 0xF0, 0xFF, 0x7F}}) {
    const Read r = damaged(bad);
    EXPECT_EQ(r.notes.size(), 2u);
    ASSERT_FALSE(r.warnings.empty());
    EXPECT_NE(r.warnings[0].find("byte 30: "), std::string::npos) << r.warnings[0];
  }
  const Read no_status = read(join({header(1, 2, 100), track({0, 60, 64}), track(join({one_note, end_of_track}))}));
  EXPECT_EQ(no_status.notes.size(), 1u);
  EXPECT_NE(no_status.warnings[0].find("no status is running"), std::string::npos);
}

TEST(Midi, WrongTrackCountIsAWarning) {
  const Bytes good = track(join({one_note, end_of_track}));
  for (const int count : {0, 1, 3}) {
    const Read r = read(join({header(1, count, 100), good, good}));
    EXPECT_EQ(r.notes.size(), 2u);
    EXPECT_NE(r.warnings.at(0).find(fmt::format("byte 10: the header says {} tracks, there are 2", count)),
              std::string::npos);
  }
}

TEST(Midi, WhatIsNoMidiFile) {
  const Bytes good = track(join({one_note, end_of_track}));
  EXPECT_ERROR(read({}), "x.mid", "MThd");
  EXPECT_ERROR(read({'M'}), "x.mid", "MThd");
  EXPECT_ERROR(read({'M', 'T', 'h', 'd', 0, 0, 0, 6, 0}), "byte 9", "ends early");
  EXPECT_ERROR(read(join({header(3, 1, 100), good})), "byte 8", "format 3");
  EXPECT_ERROR(read(join({header(0, 1, 0), good})), "byte 12", "division");
  EXPECT_ERROR(read(join({header(0, 1, 0x8001), good})), "byte 12", "128 frames");
  EXPECT_ERROR(read(join({header(0, 1, 0xE700), good})), "byte 12", "0 ticks");
  EXPECT_ERROR(read(header(0, 1, 100)), "byte 14", "no track");
  EXPECT_ERROR(read(join({header(0, 1, 100), track(end_of_track)})), "no notes");
  EXPECT_ERROR(read(join({header(0, 1, 100), track({})})), "no notes");
}

TEST(Midi, NothingLastsMoreThanADay) {
  const Bytes long_delta = {0, 0x90, 60, 64, 0xFF, 0xFF, 0xFF, 0x7F, 0x80, 60, 0};
  EXPECT_ERROR(read(join({header(0, 1, 1), track(join({tempo(0xFFFFFF), long_delta, end_of_track}))})), "24 hours");
}

TEST(Midi, WrittenFilesAreStandard) {
  const std::vector<Note> notes = {{0.01, 0.5, 60, 64}, {20, 300.25, 0, 1}, {20, 21, 127, 127}};
  const Bytes bytes = write_midi(notes);
  EXPECT_EQ(Bytes(bytes.begin(), bytes.begin() + 14), header(0, 1, 500));
  EXPECT_EQ(read(bytes).notes, notes);
  EXPECT_TRUE(read(bytes).warnings.empty());
  EXPECT_ERROR(write_midi(std::vector<Note>{{1, 0, 60, 64}}), "cannot be written");
}

}  // namespace
}  // namespace sextant
