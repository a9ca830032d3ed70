// The seed corpora of the fuzzers, made here: SEXTANT_FUZZ_SEEDS=FOLDER writes them to FOLDER/midi, FOLDER/csv and
// FOLDER/safetensors. Each seed is checked to be what it is meant to be, readable or not.
#include "core/file.h"
#include "core/safetensors.h"
#include "data/midi.h"
#include "data/musicnet.h"
#include "tests/data/midi_bytes.h"
#include "tests/data/temporary.h"

namespace sextant {
namespace {

class FuzzSeeds : public DataTest {
 protected:
  // Where the seed is; kept when SEXTANT_FUZZ_SEEDS says so.
  std::string seed(const std::string& name, const std::string& bytes) const {
    if (const char* kept = std::getenv("SEXTANT_FUZZ_SEEDS")) write_atomically(std::string(kept) + "/" + name, bytes);
    return write(name, bytes);
  }
  static std::string text(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }
};

TEST_F(FuzzSeeds, Midi) {
  const Bytes note = {0, 0x90, 60, 64, 100, 60, 0};
  const Bytes pedal = {0, 0xB0, 64, 127, 0, 0x90, 62, 64, 20, 0x80, 62, 0, 60, 0xB0, 64, 0};
  const Bytes other = {0, 0xC0, 5, 0, 0xE0, 1, 2, 0, 0xF0, 3, 1, 2, 0xF7, 0, 0xFF, 1, 2, 'h', 'i', 0, 0xB0, 123, 0};
  const auto file = [&](int format, uint32_t division) {
    return join({header(format, 2, division), track(join({tempo(400000), note, end_of_track})),
                 track(join({other, pedal, tempo(300000, 9), note, end_of_track}))});
  };
  const std::vector<std::pair<std::string, Bytes>> seeds = {
      {"format0", join({header(0, 1, 480), track(join({note, end_of_track}))})},
      {"format1", file(1, 100)},
      {"format2", file(2, 100)},
      {"smpte25", file(1, 0xE728)},
      {"smpte29", file(1, 0xE364)},
      {"hanging", join({header(0, 1, 96), track(join({{0, 0x90, 60, 64}, end_of_track}))})},
      {"length_short", join({header(0, 1, 96), track(join({note, end_of_track}), 3)})},
      {"length_long",
       join({header(1, 2, 96), track(join({note, end_of_track}), 99), track(join({note, end_of_track}))})},
      {"written", write_midi(std::vector<Note>{{0, 1, 60, 64}, {0.5, 0.7, 60, 1}, {3, 9, 127, 127}})}};
  for (const auto& [name, bytes] : seeds) {
    seed("midi/" + name, text(bytes));
    MidiFile parsed = parse_midi(bytes, name);
    EXPECT_FALSE(midi_notes(parsed, {}, name).empty()) << name;
  }
  const std::string early = text(file(1, 100)).substr(0, 60);
  seed("midi/ends_early", early);
  MidiFile cut = parse_midi(Bytes(early.begin(), early.end()), "early");
  EXPECT_FALSE(cut.warnings.empty());
}

TEST_F(FuzzSeeds, Csv) {
  const std::string header_line = "start_time,end_time,instrument,note,start_beat,end_beat,note_value";
  const std::string rows = "90078,115166,1,59,0.0,1.0,Half\n78814,108510,1,66,0.0,0.5,\"Dotted, Quarter\"\n";
  for (const auto& [name, content] : std::initializer_list<std::pair<std::string, std::string>>{
           {"published", header_line + "\n" + rows},
           {"crlf", "\xEF\xBB\xBF" + header_line + "\r\n78814,108510,1,66,0.0,0.5,Half\r\n"},
           {"order", "note,end_time,start_time\n60,100,50\n"}}) {
    seed("csv/" + name, content);
    EXPECT_FALSE(parse_musicnet(content, name).empty());
  }
  EXPECT_ERROR(parse_musicnet(content(seed("csv/short", header_line + "\n1,2\n")), "short"), "line 2");
}

TEST_F(FuzzSeeds, Safetensors) {
  const auto file = [&](const std::string& json, size_t bytes) {
    std::string length(8, '\0');
    for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(json.size() >> (8 * i));
    return length + json + std::string(bytes, '\x3f');
  };
  const std::string one =
      seed("safetensors/one", file(R"({"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24));
  EXPECT_EQ(SafetensorsFile::open(one).names().size(), 1u);
  const std::string more = seed(
      "safetensors/more",
      file(
          R"({"__metadata__":{"k":"v"},"x":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
          R"("y":{"dtype":"I64","shape":[1],"data_offsets":[8,16]},"z":{"dtype":"BF16","shape":[0],"data_offsets":[16,16]}})",
          16));
  EXPECT_EQ(SafetensorsFile::open(more).names().size(), 3u);
  Arena arena;
  const Tensor x = zeros(arena, {3});
  write_safetensors(in("own"), {{"x", x}}, {{"config", "{}"}});
  EXPECT_EQ(SafetensorsFile::open(seed("safetensors/own", content(in("own")))).metadata("config"), "{}");
  EXPECT_FALSE(error_of([&] {
                 SafetensorsFile::open(
                     seed("safetensors/cut", file(R"({"x":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}})", 20)));
               }).empty());
}

}  // namespace
}  // namespace sextant
