// Music as events: Standard MIDI Files and MusicNet labels, tokenized once into the cache, keyed by content and
// version, and mapped there.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/events.h"

namespace sextant {

bool is_music_file(const std::string& name);  // .mid, .midi, by name

// A MusicNet label file or a Standard MIDI File, by content; warnings are appended. Throws Error, also when there are
// no notes.
std::vector<Note> read_music(const std::filesystem::path& path, bool pedal, std::vector<std::string>& warnings);

// One file, by range, or the named files of a folder, by file (data/corpus.h). A file without notes is an Error that
// names it.
std::shared_ptr<Corpus> open_music(const std::string& name, const std::filesystem::path& folder,
                                   const std::vector<std::string>& names, bool pedal);

}  // namespace sextant
