// Text as bytes: plain files, `.gz`, and JSONL with a named field (`.jsonl`, `.jsonl.gz`: the shards of
// OpenWebText-like sets). Plain files are mapped where they are; the others are decompressed and extracted once, as a
// stream, into the cache and mapped there.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/corpus.h"

namespace sextant {

// One file, by range: `train` and `validation` are shares, the rest is test. Throws Error on a file that is empty or of
// one byte (no token could be predicted), damaged gzip (with the byte offset), or a line that is no JSON object with
// the field (with line and offset).
std::shared_ptr<Corpus> open_text_file(const std::string& name, const std::filesystem::path& path,
                                       const std::string& field, double train, double validation,
                                       const std::string& rule = "by range");

// Several files, relative to `folder`, by file. Empty ones are passed over with a warning.
std::shared_ptr<Corpus> open_text_files(const std::string& name, const std::filesystem::path& folder,
                                        const std::vector<std::string>& names, const std::string& field);

}  // namespace sextant
