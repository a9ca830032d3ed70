// What both kinds of corpora share: listing a folder and dividing its files into splits.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/corpus.h"

namespace sextant {

struct SplitFiles {
  std::string rule;           // for Corpus::split_rule
  std::vector<Split> splits;  // one a name
};

// Regular files below `folder`, at any depth, as paths relative to it, sorted by byte value; names that begin with a
// dot are passed over.
std::vector<std::string> list_files(const std::filesystem::path& folder);

std::string lower_case(std::string text);
bool ends_with_any(const std::string& name,
                   std::initializer_list<std::string_view> suffixes);  // of the lower-case name

// The rules of data/corpus.h for at least two names: published when every name carries a split's word, by file
// otherwise.
SplitFiles split_by_file(const std::vector<std::string>& names);

// The first `train` of `size`, then `validation`, the rest test, as runs of one file.
std::vector<Corpus::Run> split_by_range(const std::string& file, const void* data, int64_t size, int width,
                                        std::shared_ptr<const void> owner, double train, double validation);

}  // namespace sextant
