// open_corpus: text in all its forms, folders and their splits, names, and everything that can be wrong with them.
#include <zlib.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/sha256.h"
#include "data/canon.h"
#include "data/corpus.h"
#include "data/events.h"
#include "data/midi.h"
#include "tests/data/temporary.h"

namespace sextant {
namespace {

class OpenTest : public DataTest {
 protected:
  static std::string gzip(const std::string& text) {
    std::string out(text.size() + 200, '\0');
    z_stream stream{};
    EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream.avail_in = static_cast<uInt>(text.size());
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
    out.resize(stream.total_out);
    deflateEnd(&stream);
    return out;
  }
  static std::string all(const Corpus& corpus, Split split) {
    std::vector<int32_t> tokens(static_cast<size_t>(corpus.size(split)));
    corpus.read(split, 0, tokens);
    std::string text;
    for (const int32_t token : tokens) text += static_cast<char>(token);
    return text;
  }
  static std::string all(const Corpus& corpus) {
    return all(corpus, Split::train) + all(corpus, Split::validation) + all(corpus, Split::test);
  }
  std::string midi(const std::string& name, int pitch) const {
    const auto bytes = write_midi(std::vector<Note>{{0, 1, pitch, 66}});
    return write(name, {bytes.begin(), bytes.end()});
  }
};

TEST_F(OpenTest, OneFileOfBytesByRange) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i % 256);
  const auto corpus = open_corpus(write("a.txt", text));
  EXPECT_EQ(corpus->kind(), TokenKind::bytes);
  EXPECT_EQ(corpus->vocabulary(), 256);
  EXPECT_EQ(corpus->sha256(), sha256_hex(text));
  EXPECT_EQ(corpus->split_rule(), "by range");
  EXPECT_EQ(all(*corpus, Split::train), text.substr(0, 900));
  EXPECT_EQ(all(*corpus, Split::validation), text.substr(900));
  EXPECT_EQ(corpus->size(Split::test), 0);
  std::vector<int32_t> last(1);
  corpus->read(Split::train, 255, last);
  EXPECT_EQ(last[0], 255);  // bytes are not signed
}

TEST_F(OpenTest, GzipIsTheSameAsThePlainFile) {
  std::string text;
  for (int64_t i = 0; i < 300000; ++i) text += fmt::format("{} ", i * 7919 % 1000);  // 1.2 MB: more than one piece
  const auto plain = open_corpus(write("a.txt", text));
  const auto packed = open_corpus(write("b.txt.gz", gzip(text)));
  EXPECT_EQ(packed->sha256(), plain->sha256());
  EXPECT_EQ(all(*packed), text);
  const auto members = open_corpus(write("c.gz", gzip("first ") + gzip("") + gzip("second")));
  EXPECT_EQ(all(*members), "first second");
}

TEST_F(OpenTest, DamagedGzipSaysWhere) {
  const std::string packed = gzip(std::string(100000, 'x') + "the end");
  EXPECT_ERROR(open_corpus(write("cut.gz", packed.substr(0, packed.size() - 9))), "cut.gz", "ends early",
               fmt::format("byte {}", packed.size() - 9));
  EXPECT_ERROR(open_corpus(write("no.gz", "this is no gzip")), "no.gz", "damaged gzip data near byte");
  std::string flipped = packed;
  flipped[packed.size() - 6] ^= 1;  // of the CRC
  EXPECT_ERROR(open_corpus(write("flipped.gz", flipped)), "flipped.gz", "damaged gzip data");
  EXPECT_ERROR(open_corpus(write("trailing.gz", packed + "garbage behind")), "trailing.gz", "damaged gzip data");
  EXPECT_TRUE(!fs::exists(in("cache/sextant/text")) ||
              fs::is_empty(in("cache/sextant/text")));  // nothing half-made stays
}

TEST_F(OpenTest, JsonLinesByField) {
  const std::string lines =
      "{\"text\": \"one\", \"id\": 1}\n\n{\"id\": 2, \"text\": \"zw\\u00f6lf\\n\", \"body\": \"b\"}\r\n{\"text\":\"\"}";
  EXPECT_EQ(all(*open_corpus(write("a.jsonl", lines))), "one\n\nzw\xC3\xB6lf\n\n\n\n\n");
  EXPECT_EQ(all(*open_corpus(write("b.jsonl.gz", gzip(lines)))), "one\n\nzw\xC3\xB6lf\n\n\n\n\n");
  const std::string bodies = write("c.jsonl", "{\"body\": \"xyz\"}\n");
  EXPECT_EQ(all(*open_corpus(bodies + "#body")), "xyz\n\n");
  EXPECT_EQ(all(*open_corpus(bodies, {.field = "body"})), "xyz\n\n");
  EXPECT_ERROR(open_corpus(bodies), "c.jsonl", "line 1", "'text'", "#FIELD");
  EXPECT_ERROR(open_corpus(write("d.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\n")), "d.jsonl", "line 2", "byte 14");
  EXPECT_ERROR(open_corpus(write("e.jsonl", "[1]\n")), "line 1", "not a JSON object");
  EXPECT_ERROR(open_corpus(write("f.jsonl", "{\"text\": 5}\n")), "line 1", "'text'");
}

TEST_F(OpenTest, FoldersByFileWhateverTheOrder) {
  // The same files made in two orders give the same corpus.
  std::vector<std::string> names;
  for (int i = 0; i < 20; ++i) names.push_back(fmt::format("piece{}.txt", static_cast<char>('a' + i)));
  for (const std::string& name : names) write("one/" + name, name + "\n");
  std::reverse(names.begin(), names.end());
  for (const std::string& name : names) write("two/" + name, name + "\n");
  write("two/.hidden", "not this");
  const auto one = open_corpus(in("one")), two = open_corpus(in("two"));
  EXPECT_EQ(one->sha256(), two->sha256());
  for (const Split split : all_splits) EXPECT_EQ(all(*one, split), all(*two, split));
  EXPECT_EQ(one->size(Split::validation), 2 * 11);
  EXPECT_EQ(one->size(Split::test), 2 * 11);
  EXPECT_EQ(one->size(Split::train), 16 * 11);
  EXPECT_EQ(one->files().size(), 20u);
}

TEST_F(OpenTest, FilesOfOnePieceStayTogether) {
  std::map<std::string, std::set<Split>> splits;
  for (int i = 0; i < 30; ++i) midi(fmt::format("m/sonata{}_{:02}.mid", i / 3, i % 3 + 1), 40 + i);
  const auto corpus = open_corpus(in("m"));
  for (const CorpusFile& file : corpus->files()) splits[file.name.substr(0, file.name.find('_'))].insert(file.split);
  EXPECT_EQ(splits.size(), 10u);
  for (const auto& [piece, of] : splits) EXPECT_EQ(of.size(), 1u) << piece;
}

TEST_F(OpenTest, PublishedSplits) {
  for (const char* split : {"train", "valid", "test"})
    write(fmt::format("w/wiki.{}.tokens", split), std::string(split) + "!");
  const auto corpus = open_corpus(in("w"));
  EXPECT_EQ(corpus->split_rule(), "published");
  EXPECT_EQ(all(*corpus, Split::train), "train!");
  EXPECT_EQ(all(*corpus, Split::validation), "valid!");
  EXPECT_EQ(all(*corpus, Split::test), "test!");
  // MAESTRO's table wins over the names' hashes.
  midi("maestro/2004/a.midi", 60);
  midi("maestro/2004/b.midi", 61);
  midi("maestro/2006/c.midi", 62);
  write("maestro/maestro-v3.0.0.csv",
        "canonical_composer,canonical_title,split,year,midi_filename,audio_filename,duration\nX,\"T, in "
        "C\",test,2004,2004/a.midi,a.wav,1\nX,T,train,2004,"
        "2004/b.midi,b.wav,1\nX,T,validation,2006,2006/c.midi,c.wav,1\n");
  const auto maestro = open_corpus(in("maestro"));
  EXPECT_EQ(maestro->split_rule(), "published");
  std::vector<int32_t> first(3);
  maestro->read(Split::test, 0, first);
  EXPECT_EQ(first[2], event_note_on + 60);
  maestro->read(Split::validation, 0, first);
  EXPECT_EQ(first[2], event_note_on + 62);
}

TEST_F(OpenTest, MusicIsTokenizedOnceIntoTheCache) {
  midi("m/a.mid", 60);
  midi("m/b.mid", 61);
  const auto first = open_corpus(in("m"));
  const auto entries = [&] {
    return std::distance(fs::directory_iterator(in("cache/sextant/tokens")), fs::directory_iterator());
  };
  EXPECT_EQ(entries(), 1);
  const fs::path cached = fs::directory_iterator(in("cache/sextant/tokens"))->path();
  const std::string tokens = content(cached);
  const auto second = open_corpus(in("m"));
  EXPECT_EQ(all(*first), all(*second));
  EXPECT_EQ(entries(), 1);
  // A damaged cache is made anew, not believed.
  for (const std::string& damaged :
       {std::string(), tokens.substr(0, tokens.size() - 2), tokens.substr(0, tokens.size() - 1) + "\x7f"}) {
    fs::remove(cached);  // not truncated in place: it is mapped
    std::ofstream(cached, std::ios::binary) << damaged;
    EXPECT_EQ(all(*open_corpus(in("m"))), all(*first));
    EXPECT_EQ(content(cached), tokens);
  }
  // Other content is another entry, and so is the pedal.
  midi("m/b.mid", 62);
  EXPECT_NE(open_corpus(in("m"))->sha256(), first->sha256());
  open_corpus(in("m"), {.pedal = true});
  EXPECT_EQ(entries(), 3);
}

TEST_F(OpenTest, WithoutACacheTheTokensStayInMemory) {
  midi("m/a.mid", 60);
  write("blocked", "a file where the cache's folder should be");
  setenv("XDG_CACHE_HOME", in("blocked").c_str(), 1);
  const auto corpus = open_corpus(in("m/a.mid"));
  EXPECT_EQ(corpus->size(Split::train) + corpus->size(Split::validation), 6);
  ASSERT_EQ(corpus->warnings().size(), 1u);
  EXPECT_NE(corpus->warnings()[0].find("kept in memory"), std::string::npos);
}

TEST_F(OpenTest, MusicNetLabelsByContent) {
  write("labels/train_labels/1.csv", "start_time,end_time,instrument,note\n0,44100,1,60\n");
  write("labels/test_labels/2.csv", "start_time,end_time,instrument,note\n0,44100,1,61\n");
  write("labels/musicnet_metadata.csv", "id,composer\n1,Bach\n");
  const auto corpus = open_corpus(in("labels"));
  EXPECT_EQ(corpus->kind(), TokenKind::events);
  EXPECT_EQ(corpus->split_rule(), "published");
  EXPECT_EQ(corpus->size(Split::train), 6);
  EXPECT_EQ(corpus->size(Split::test), 6);
  EXPECT_EQ(open_corpus(in("labels/train_labels/1.csv"))->kind(), TokenKind::events);
}

TEST_F(OpenTest, Names) {
  EXPECT_EQ(open_corpus("canon")->sha256(), make_canon()->sha256());
  EXPECT_ERROR(open_corpus("tiny-shakespeare"), "tiny-shakespeare", "data fetch tiny-shakespeare", "SEXTANT_DATA");
  setenv("SEXTANT_DATA", in("data").c_str(), 1);
  write("data/text/tiny-shakespeare.txt", std::string(1000, 'x'));
  const auto shakespeare = open_corpus("tiny-shakespeare");
  EXPECT_EQ(shakespeare->name(), "tiny-shakespeare");
  EXPECT_EQ(shakespeare->size(Split::validation), 50);
  EXPECT_EQ(shakespeare->size(Split::test), 50);
  // What was fetched completes what the folder lacks.
  write("data/text/wikitext-2.valid.tokens", "v");
  EXPECT_EQ(open_corpus("wikitext-2")->size(Split::validation), 1);
  EXPECT_EQ(open_corpus("wikitext-2")->size(Split::train), 0);
  for (const char* split : {"train", "valid", "test"})
    write(fmt::format("cache/sextant/datasets/text/wikitext-2.{}.tokens", split), "fetched");
  EXPECT_EQ(open_corpus("wikitext-2")->size(Split::train), 7);
  midi("data/music/maestro/x_01.mid", 60);
  midi("data/music/maestro/y_01.mid", 60);
  EXPECT_EQ(open_corpus("maestro")->kind(), TokenKind::events);
}

TEST_F(OpenTest, WhatIsWrongIsOneLine) {
  EXPECT_ERROR(open_corpus(""), "empty");
  EXPECT_ERROR(open_corpus("shakespeare"), "shakespeare", "tiny-shakespeare");
  EXPECT_ERROR(open_corpus("cannon"), "canon");
  EXPECT_ERROR(open_corpus(in("missing.txt")), "missing.txt", "no such file");
  EXPECT_ERROR(open_corpus(write("empty.txt", "")), "empty.txt", "empty");
  EXPECT_ERROR(open_corpus(write("empty.mid", "")), "empty.mid", "empty");
  EXPECT_ERROR(open_corpus(write("empty.gz", "")), "empty.gz", "empty");
  EXPECT_ERROR(open_corpus(write("one.txt", "x")), "one.txt", "1 byte ", "at least 2");
  EXPECT_ERROR(open_corpus(write("one.mid", "M")), "one.mid", "MThd");
  fs::create_directory(in("nothing"));
  EXPECT_ERROR(open_corpus(in("nothing")), "nothing", "no files");
  write("empties/a.txt", "");
  EXPECT_ERROR(open_corpus(in("empties")), "empties");
  midi("bad/a.mid", 60);
  write("bad/b.mid", "no midi");
  EXPECT_ERROR(open_corpus(in("bad")), "b.mid", "MThd");
  EXPECT_ERROR(open_corpus("/dev/null"), "/dev/null");
  EXPECT_EQ(open_corpus(write("two.txt", "ab"))->size(Split::train), 1);
}

TEST_F(OpenTest, UnreadableFiles) {
  const std::string path = write("secret.txt", "secret");
  fs::permissions(path, fs::perms::none);
  if (access(path.c_str(), R_OK) == 0) GTEST_SKIP() << "this user may read everything";
  EXPECT_ERROR(open_corpus(path), "secret.txt", "ermission");
}

}  // namespace
}  // namespace sextant
