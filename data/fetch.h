// The named sets and their download: https by curl, resumed where it broke off, checked by SHA-256, moved into place
// whole.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace sextant {

struct Download {
  std::vector<std::string> urls;  // the same file in several places, tried in order
  std::string sha256;  // empty where the publisher gives none: the first download's is then written to the lock file
  std::string place;   // a file below the root for a plain file; a folder for an archive (.zip, .tar.gz, .tar.xz)
};

struct NamedSet {
  std::string name, description, licence;
  std::vector<std::string> places;  // files or a folder below the root; the set is there when they are
  double train = 0.9, validation = 0.1;
  std::string split_rule = "by range";
  std::vector<Download> downloads;
};

const std::vector<NamedSet>& named_sets();

// The root of what was fetched, laid out like a folder SEXTANT_DATA: text/..., music/...
std::filesystem::path fetched_directory();

struct FetchOptions {
  double stall_seconds = 30;                    // give up when nothing arrives for so long
  int attempts = 3;                             // of each URL; a later one goes on where the earlier broke off
  bool allow_loopback = false;                  // plain http, from 127.0.0.1 only
  std::function<void(const std::string&)> say;  // progress, one line a call
};

// Downloads one file to `target` (a plain file, whatever it is) and returns its SHA-256. What arrived of a broken
// download stays beside it as `target`.download and is gone on with at the next call. Throws Error: bad input for a
// wrong hash (what was downloaded is removed) and an answer such as 404; environment without network or curl, when
// nothing arrives, when the disk is full.
std::string download(const Download& what, const std::filesystem::path& target, const FetchOptions& options);

// All of a set, into the cache; does nothing for what is already there. Throws Error, also for an unknown name.
void fetch(const std::string& name, const FetchOptions& options);
void fetch_set(const NamedSet& set, const FetchOptions& options);

}  // namespace sextant
