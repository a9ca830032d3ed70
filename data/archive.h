// Unpacking what was downloaded: .zip here (stored and deflated members), tar archives by the program tar.
#pragma once

#include <filesystem>
#include <string>

namespace sextant {

bool is_archive(const std::string& name);  // .zip, .tar.gz, .tgz, .tar.xz, by name

// Every file below `folder`, which is made. Throws Error: a damaged archive (with the byte offset; CRCs are checked),
// or a member whose path leads out of the folder.
void unpack(const std::filesystem::path& archive, const std::filesystem::path& folder);

}  // namespace sextant
