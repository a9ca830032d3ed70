#include "data/fetch.h"

#include <algorithm>
#include <fstream>

#include "core/error.h"
#include "core/file.h"
#include "data/archive.h"
#include "data/cache.h"
#include "data/process.h"

namespace sextant {

namespace fs = std::filesystem;

// Hashes: Tiny Shakespeare, MAESTRO (its publisher's), WikiText-2 and MusicNet (as several independent projects pin
// them) are known; Project Gutenberg corrects its texts now and then, and the sample of OpenWebText has no published
// hash, so these are locked on first use.
const std::vector<NamedSet>& named_sets() {
  static const std::vector<NamedSet> sets = {
      {"tiny-shakespeare",
       "the plays, 1.1 MB, as in char-rnn",
       "public domain",
       {"text/tiny-shakespeare.txt"},
       0.9,
       0.05,
       "published: train 90 %, validation 5 %, test 5 %",
       {{{"https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"},
         "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
         "text/tiny-shakespeare.txt"}}},
      {"wikitext-2",
       "WikiText-2, word-level text with <unk>, 13 MB",
       "CC BY-SA 3.0",
       {"text/wikitext-2.train.tokens", "text/wikitext-2.valid.tokens", "text/wikitext-2.test.tokens"},
       0.9,
       0.1,
       "published",
       {{{"https://wikitext.smerity.com/wikitext-2-v1.zip",
          "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip"},
         "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
         "text/"}}},
      {"war-and-peace",
       "Tolstoy, in English, 3.2 MB",
       "public domain",
       {"text/war-and-peace.txt"},
       0.9,
       0.1,
       "by range",
       {{{"https://www.gutenberg.org/files/2600/2600-0.txt", "https://www.gutenberg.org/cache/epub/2600/pg2600.txt"},
         "",
         "text/war-and-peace.txt"}}},
      {"maestro",
       "MAESTRO 3.0.0, 1,276 piano performances as MIDI, 57 MB",
       "CC BY-NC-SA 4.0",
       {"music/maestro"},
       0.9,
       0.1,
       "by range",
       {{{"https://storage.googleapis.com/magentadata/datasets/maestro/v3.0.0/maestro-v3.0.0-midi.zip"},
         "70470ee253295c8d2c71e6d9d4a815189e35c89624b76d22fce5a019d5dde12c",
         "music/maestro"}}},
      {"musicnet",
       "MusicNet, 323 scores of its recordings as MIDI, 2.6 MB",
       "CC BY 4.0",
       {"music/musicnet"},
       0.9,
       0.1,
       "by range",
       {{{"https://zenodo.org/records/5120004/files/musicnet_midis.tar.gz",
          "https://zenodo.org/record/5120004/files/musicnet_midis.tar.gz"},
         "943cc47731ec5f397bd6fbab4dff78342472890cd484bd30ffb2e16047eef908",
         "music/musicnet"}}},
      {"openwebtext",
       "a sample of OpenWebText, its first 10,000 documents, 50 MB",
       "CC0 (the collection)",
       {"text/openwebtext"},
       0.9,
       0.1,
       "by range",
       {{{"https://cdn-datasets.huggingface.co/nlp/datasets/openwebtext/openwebtext-10k.tar.xz"},
         "",
         "text/openwebtext"}}}};
  return sets;
}

fs::path fetched_directory() {
  return cache_directory() / "datasets";
}

namespace {

// What curl's exit status means to the user; see its manual, "EXIT CODES".
std::string curl_problem(int status, const std::string& http_code) {
  switch (status) {
    case 6:
      return "the host's name cannot be resolved: there is no network, or it needs a proxy (https_proxy)";
    case 7:
      return "the host cannot be reached";
    case 18:
      return "the transfer ended before the file was whole";
    case 22:
      return "the server answered " + http_code;
    case 23:
      return "the file cannot be written: is the disk full?";
    case 28:
      return "nothing arrived for too long";
    case 35:
    case 60:
      return "no secure connection could be made";
    case 56:
      return "the connection broke";
    default:
      return fmt::format("curl ended with status {}", status);
  }
}

bool worth_another_attempt(int status) {
  return status == 18 || status == 28 || status == 52 || status == 56 || status == 92;
}

ProgramResult run_curl(const std::string& url, const fs::path& part, const FetchOptions& options, bool resume) {
  const bool loopback = options.allow_loopback && url.starts_with("http://127.0.0.1:");
  std::vector<std::string> arguments = {"curl",
                                        "--silent",
                                        "--fail",
                                        "--location",
                                        "--proto",
                                        loopback ? "=http" : "=https",
                                        "--connect-timeout",
                                        "20",
                                        "--speed-limit",
                                        "1",
                                        "--speed-time",
                                        fmt::format("{}", std::max(1, static_cast<int>(options.stall_seconds))),
                                        "--output",
                                        part.string(),
                                        "--write-out",
                                        "%{http_code}"};
  if (loopback) arguments.insert(arguments.end(), {"--noproxy", "*"});
  if (resume) arguments.insert(arguments.end(), {"--continue-at", "-"});
  arguments.insert(arguments.end(), {"--", url});
  return run_program(arguments);
}

struct Outcome {
  bool done;
  Status status;
  std::string problem;
};

// Tries one URL until the file is whole, going on where the attempt before broke off.
Outcome try_url(const std::string& url, const fs::path& part, const FetchOptions& options) {
  Outcome outcome{false, Status::environment, ""};
  for (int attempt = 0; attempt < options.attempts; ++attempt) {
    const bool resume = fs::exists(part) && fs::file_size(part) > 0;
    if (options.say) options.say(fmt::format("{} {}", resume ? "going on with" : "downloading", url));
    const ProgramResult result = run_curl(url, part, options, resume);
    // curl takes "416 Range Not Satisfiable" for "there is no more", which it need not mean.
    const bool cannot_resume = resume && (result.status == 33 || result.status == 36 || result.output == "416");
    if (cannot_resume) {
      fs::remove(part);
      continue;
    }
    if (result.status == 0) return {true, Status::done, ""};
    outcome = {false, result.status == 22 ? Status::bad_input : Status::environment,
               curl_problem(result.status, result.output)};
    if (!worth_another_attempt(result.status)) break;
  }
  return outcome;
}

}  // namespace

std::string download(const Download& what, const fs::path& target, const FetchOptions& options) {
  require(!what.urls.empty(), "{}: there is no address to download it from", target.string());
  make_folder(target.parent_path());
  const fs::path part = target.string() + ".download";
  std::string problems;
  Status status = Status::environment;
  for (size_t place = 0; place < what.urls.size(); ++place) {
    const std::string& url = what.urls[place];
    const bool resumed = fs::exists(part);
    // A download that was complete but not yet moved when it was interrupted needs no server.
    if (!(resumed && !what.sha256.empty() && sha256_of_file(part) == what.sha256)) {
      const Outcome outcome = try_url(url, part, options);
      if (fs::exists(part) && fs::file_size(part) == 0) fs::remove(part);
      if (!outcome.done) {
        problems += fmt::format("{}{}: {}", problems.empty() ? "" : "; ", url, outcome.problem);
        status = outcome.status;
        continue;
      }
    }
    require(fs::exists(part), "{}: the server sent an empty file", url);
    const std::string hash = sha256_of_file(part);
    if (what.sha256.empty() || hash == what.sha256) {
      fs::rename(part, target);
      return hash;
    }
    fs::remove(part);
    if (resumed) {
      --place;  // what was there before may have been another file's: once more, from its start
      continue;
    }
    problems += fmt::format("{}{}: its SHA-256 is {}, not {}; what was downloaded is removed",
                            problems.empty() ? "" : "; ", url, hash, what.sha256);
    status = Status::bad_input;
  }
  const bool kept = fs::exists(part);
  throw Error(status, fmt::format("cannot download {}: {}{}", target.filename().string(), problems,
                                  kept ? "; what arrived is kept, and the next call goes on from there" : ""));
}

namespace {

// hashes.lock: lines "SHA-256  URL", of downloads whose publisher gives no hash, as first seen.
std::string locked_hash(const std::string& url) {
  std::ifstream lock(fetched_directory() / "hashes.lock");
  std::string hash, known_url;
  while (lock >> hash >> known_url)
    if (known_url == url) return hash;
  return "";
}

void lock_hash(const std::string& url, const std::string& hash) {
  const fs::path path = fetched_directory() / "hashes.lock";
  const std::string before = fs::exists(path) ? read_text(path) : "";
  write_atomically(path, before + hash + "  " + url + "\n");
}

std::string file_name(const std::string& url) {
  return url.substr(url.rfind('/') + 1);
}

// Project Gutenberg's file to plain text: the book between its START and END lines, LF line ends, no byte-order mark.
void normalise_gutenberg(const fs::path& path) {
  std::string text = read_text(path);
  std::erase(text, '\r');
  if (const size_t start = text.find("*** START OF"); start != std::string::npos)
    text.erase(0, text.find('\n', start) + 1);
  if (const size_t end = text.find("*** END OF"); end != std::string::npos) text.erase(end);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  write_atomically(path, text);
}

// WikiText's archive has wikitext-2/wiki.train.tokens and so on; here they are called text/wikitext-2.train.tokens.
void install(const NamedSet& set, const Download& what, const fs::path& file, const fs::path& root) {
  const std::string name = file.filename().string();
  if (!is_archive(name)) {
    if (set.name == "war-and-peace") normalise_gutenberg(file);
    fs::rename(file, root / what.place);
    return;
  }
  const fs::path unpacked = file.string() + ".unpacked";
  fs::remove_all(unpacked);
  unpack(file, unpacked);
  if (set.name == "wikitext-2") {
    for (const char* split : {"train", "valid", "test"})
      fs::rename(unpacked / "wikitext-2" / fmt::format("wiki.{}.tokens", split),
                 root / "text" / fmt::format("wikitext-2.{}.tokens", split));
    fs::remove_all(unpacked);
  } else {
    fs::remove_all(root / what.place);
    fs::rename(unpacked, root / what.place);
  }
  fs::remove(file);
}

bool is_here(const NamedSet& set, const fs::path& root) {
  return std::all_of(set.places.begin(), set.places.end(),
                     [&](const std::string& place) { return fs::exists(root / place); });
}

}  // namespace

void fetch(const std::string& name, const FetchOptions& options) {
  const auto& sets = named_sets();
  const auto set = std::find_if(sets.begin(), sets.end(), [&](const NamedSet& s) { return s.name == name; });
  std::string names;
  for (const NamedSet& s : sets) names += (names.empty() ? "" : ", ") + s.name;
  require(name != "canon", "canon is generated and needs no download");
  require(set != sets.end(), "no data set '{}' can be fetched; there are {}", name, names);
  fetch_set(*set, options);
}

void fetch_set(const NamedSet& set, const FetchOptions& options) {
  const fs::path root = fetched_directory();
  const auto say = [&](const std::string& line) {
    if (options.say) options.say(line);
  };
  if (is_here(set, root)) {
    say(fmt::format("{} is here already: {}", set.name, (root / set.places.front()).string()));
    return;
  }
  for (Download what : set.downloads) {
    const bool published = !what.sha256.empty();
    if (!published) what.sha256 = locked_hash(what.urls.front());
    const bool locked = !what.sha256.empty();
    const fs::path file = root / "downloads" / file_name(what.urls.front());
    const std::string hash = download(what, file, options);
    if (!locked) {
      lock_hash(what.urls.front(), hash);
      say(fmt::format("no SHA-256 is published for {}; this one's, {}, is recorded in {} and checked from now on",
                      file_name(what.urls.front()), hash, (root / "hashes.lock").string()));
    }
    make_folder(root / fs::path(what.place).parent_path());
    install(set, what, file, root);
  }
  say(fmt::format("{} is in {}", set.name, (root / set.places.front()).string()));
}

}  // namespace sextant
