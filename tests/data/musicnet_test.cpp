// MusicNet label files: as published, and with everything that may be different.
#include "data/musicnet.h"

#include "tests/data/temporary.h"

namespace sextant {
namespace {

const std::string published_header = "start_time,end_time,instrument,note,start_beat,end_beat,note_value\n";

TEST(MusicNet, AsPublished) {
  const auto notes = parse_musicnet(
      published_header + "44100,88200,1,59,1.0,1.5,Eighth\n88200,132300,41,60,1.5,2.0,Dotted Half\n", "1727.csv");
  EXPECT_EQ(notes, (std::vector<Note>{{1, 2, 59, 64}, {2, 3, 60, 64}}));
}

TEST(MusicNet, UnsortedCrlfQuotesMarkAndBlankLines) {
  std::string text =
      published_header + "88200,132300,41,60,1.5,2.0,\"Half, dotted\"\n\n\"44100\",88200,1,59,1.0,1.5,Eighth";
  std::string crlf = "\xEF\xBB\xBF";
  for (const char c : text) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  const std::vector<Note> expected = {{1, 2, 59, 64}, {2, 3, 60, 64}};
  EXPECT_EQ(parse_musicnet(text, "a"), expected);
  EXPECT_EQ(parse_musicnet(crlf, "a"), expected);
}

TEST(MusicNet, ColumnsByNameOptionalOnesMayBeMissing) {
  EXPECT_EQ(parse_musicnet("note,end_time,start_time\n59,88200,44100\n", "a"), (std::vector<Note>{{1, 2, 59, 64}}));
  EXPECT_TRUE(has_musicnet_header("note,end_time,start_time\r\n"));
  EXPECT_FALSE(has_musicnet_header("id,composer,composition\n"));
  EXPECT_FALSE(has_musicnet_header(""));
}

TEST(MusicNet, WhatIsWrongIsSaidWithItsLine) {
  EXPECT_ERROR(parse_musicnet("", "a.csv"), "a.csv", "line 1", "start_time");
  EXPECT_ERROR(parse_musicnet("start_time,end_time,pitch\n1,2,3\n", "a.csv"), "a.csv", "line 1", "'note'");
  EXPECT_ERROR(parse_musicnet(published_header, "a.csv"), "a.csv", "no notes");
  EXPECT_ERROR(parse_musicnet(published_header + "1,2,3\n", "a.csv"), "line 2", "3 fields", "'note'");
  EXPECT_ERROR(parse_musicnet(published_header + "1,2,1,60,0,0,x\n1,z,1,60,0,0,x\n", "a.csv"), "line 3", "end_time",
               "'z'");
  EXPECT_ERROR(parse_musicnet(published_header + "5,2,1,60,0,0,x\n", "a.csv"), "line 2", "5 to 2");
  EXPECT_ERROR(parse_musicnet(published_header + "-5,2,1,60,0,0,x\n", "a.csv"), "line 2", "-5");
  EXPECT_ERROR(parse_musicnet(published_header + "1,2,1,128,0,0,x\n", "a.csv"), "line 2", "128");
  EXPECT_ERROR(parse_musicnet(published_header + "1,2,1,60.5,0,0,x\n", "a.csv"), "line 2", "60.5");
  EXPECT_ERROR(parse_musicnet(published_header + "1,nan,1,60,0,0,x\n", "a.csv"), "line 2", "nan");
  EXPECT_ERROR(parse_musicnet(published_header + "1,1e300,1,60,0,0,x\n", "a.csv"), "line 2", "24 hours");
}

}  // namespace
}  // namespace sextant
