// A corpus: token ids in three fixed splits, read by offset. Text is bytes (vocabulary 256), music and `canon` are
// events (data/events.h). The tokens stay where they are (a mapped file, the mapped cache, or memory for what is
// generated) and are widened to int32 when read, so a corpus may be larger than memory.
//
// The stream of a split is the concatenation of its files in the order of their names. A window may therefore span two
// files of one split, never two splits; pieces of music are told apart by their `end` and `begin` tokens. Which file
// belongs to which split:
//   published     where the set's authors fixed it: a folder named train*, valid*, test* above the file (or such a word
//   in a text
//                 file's own name), or the `split` column of MAESTRO's table
//   by range      a single file: the first 90 % train, the rest validation, no test
//   by file       a folder: files of one group (a stem without its trailing `_NN`: performances or movements of one
//   piece) stay
//                 together; the groups are ordered by the SHA-256 of their name, the first tenth (rounded up) is
//                 validation, the next test (from three groups on), the rest train. The order of the folder plays no
//                 part.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

enum class Split { train, validation, test };
constexpr std::array<Split, 3> all_splits = {Split::train, Split::validation, Split::test};
const char* name_of(Split split);         // "train", "validation", "test"
Split split_from(std::string_view name);  // throws Error

enum class TokenKind { bytes, events };

// What one file (or one range of it) contributes to a split's stream.
struct CorpusFile {
  std::string name;  // relative to the corpus
  Split split = Split::train;
  int64_t offset = 0;  // of its first token in the split's stream
  int64_t tokens = 0;
};

class Corpus {
 public:
  // One run of tokens of `width` bytes each (1 or 2, native byte order), alive as long as `owner`.
  struct Run {
    std::string file;
    Split split = Split::train;
    const void* data = nullptr;
    int64_t tokens = 0;
    int width = 1;
    std::shared_ptr<const void> owner;
  };

  // The runs are concatenated per split in the order given. Tokens are below `vocabulary`: whoever builds a corpus
  // checks it.
  Corpus(std::string name, TokenKind kind, int64_t vocabulary, std::string sha256, std::string split_rule,
         std::vector<Run> runs, std::vector<std::string> warnings = {});

  const std::string& name() const { return name_; }
  TokenKind kind() const { return kind_; }
  int64_t vocabulary() const { return vocabulary_; }
  const std::string& sha256() const { return sha256_; }          // of the content, 64 hexadecimal digits
  const std::string& split_rule() const { return split_rule_; }  // "published", "by range", "by file", for the record
  const std::vector<CorpusFile>& files() const { return files_; }
  const std::vector<std::string>& warnings() const {
    return warnings_;
  }  // of the loaders: file, byte offset, what was done

  int64_t size(Split split) const;  // tokens
  // Tokens [offset, offset + out.size()) of the split's stream. Throws Error when they are not all inside the split. No
  // allocation.
  void read(Split split, int64_t offset, std::span<int32_t> out) const;

 private:
  std::string name_;
  TokenKind kind_;
  int64_t vocabulary_;
  std::string sha256_, split_rule_;
  std::array<std::vector<Run>, 3> runs_;
  std::array<std::vector<int64_t>, 3> begins_;  // of each run in its stream, and the stream's size at the end
  std::vector<CorpusFile> files_;
  std::vector<std::string> warnings_;
};

struct CorpusOptions {
  std::string field = "text";  // of JSONL records
  bool pedal = false;          // music: notes sound until the sustain pedal is released
};

// A file or folder, or a name: canon, tiny-shakespeare, wikitext-2, war-and-peace, maestro, musicnet, openwebtext.
// Names are looked up in the folder $SEXTANT_DATA (text/tiny-shakespeare.txt, music/maestro, ...), then among what
// `data fetch` brought. A path may name the JSONL field as `shard.jsonl#field`. Throws Error: unknown names (with the
// nearest ones and how to get the data), missing, empty or unreadable files.
std::shared_ptr<Corpus> open_corpus(const std::string& name_or_path, const CorpusOptions& options = {});

}  // namespace sextant
