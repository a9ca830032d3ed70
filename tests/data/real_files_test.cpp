// All files of MAESTRO and MusicNet that are at hand: each loads, and read -> tokens -> MIDI -> tokens is the identity
// on tokens.
#include <map>
#include <set>

#include "data/files.h"
#include "data/midi.h"
#include "data/music.h"
#include "tests/data/temporary.h"

namespace sextant {
namespace {

class RealFiles : public DataTest {
 protected:
  void SetUp() override {
    DataTest::SetUp();
    const auto place = real_data();
    if (!place) GTEST_SKIP() << "no real files here: set SEXTANT_DATA";
    data = *place;
    setenv("SEXTANT_DATA", data.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("SEXTANT_DATA");
    DataTest::TearDown();
  }
  fs::path data;
};

TEST_F(RealFiles, EveryMidiFileLoadsAndComesBack) {
  int files = 0;
  for (const std::string& name : list_files(data / "music")) {
    for (const bool pedal : {false, true}) {
      std::vector<std::string> warnings;
      const auto tokens = encode_events(read_music(data / "music" / name, pedal, warnings));
      ASSERT_GT(tokens.size(), 20u) << name;
      const auto bytes = write_midi(decode_events(tokens));
      MidiFile written = parse_midi(bytes, name);
      ASSERT_EQ(encode_events(midi_notes(written, {}, name)), tokens) << name;
      ASSERT_TRUE(written.warnings.empty()) << name;
    }
    ++files;
  }
  EXPECT_GE(files, 1);
  std::printf("%d files\n", files);
}

TEST_F(RealFiles, NamedSetsOpen) {
  const auto shakespeare = open_corpus("tiny-shakespeare");
  EXPECT_EQ(shakespeare->sha256(), "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed");
  EXPECT_EQ(shakespeare->size(Split::train), 1003854);
  for (const char* name : {"war-and-peace", "wikitext-2", "maestro", "musicnet"})
    EXPECT_GT(open_corpus(name)->size(Split::validation), 100000) << name;
}

TEST_F(RealFiles, NoPieceIsInTwoSplits) {
  std::map<std::string, std::set<Split>> splits;
  const auto maestro = open_corpus("maestro");
  for (const CorpusFile& file : maestro->files()) splits[file.name.substr(0, file.name.rfind('_'))].insert(file.split);
  EXPECT_GT(splits.size(), 100u);
  for (const auto& [piece, of] : splits) EXPECT_EQ(of.size(), 1u) << piece;
}

}  // namespace
}  // namespace sextant
