#include "experiments/study.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/file.h"
#include "experiments/interrupt.h"
#include "experiments/manifest.h"
#include "experiments/study_page.h"
#include "positional/spec.h"

namespace sextant::study {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::vector<Study>& registry() {
  static std::vector<Study> all;
  return all;
}

std::string result_path(const std::string& folder, const std::string& key) {
  return folder + "/results/" + key + ".json";
}

// The stored result of a piece; nothing when there is none yet. Throws Error when it was made with other settings.
std::optional<json> stored_result(const std::string& folder, const Piece& piece) {
  const std::string path = result_path(folder, piece.key);
  std::error_code missing;
  const auto size = fs::file_size(path, missing);
  if (missing || size == 0) return {};
  json stored = read_json(path);
  require(stored.is_object() && stored.contains("settings") && stored.contains("result"),
          "{}: is no result of an experiment; remove it, or choose another --out", path);
  require(stored.at("settings") == piece.settings,
          "{}: was made with other settings ({}) than are asked for now ({}); choose another folder", path,
          stored.at("settings").dump(), piece.settings.dump());
  return stored.at("result");
}

// A result is seen as a whole or not at all, but not forced to the disk: there may be hundreds, each of milliseconds,
// and one that a power cut takes is worked off again (trained weights have their own, durable checkpoints).
void store_result(const Plan& plan, const Piece& piece, double seconds, const json& result) {
  const std::string path = result_path(plan.out, piece.key), temporary = path + ".part";
  make_folder(fs::path(path).parent_path().string());
  std::ofstream file(temporary);
  file << json{{"settings", piece.settings}, {"seconds", seconds}, {"result", result}}.dump(2) << "\n";
  file.close();
  std::error_code error;
  if (file) fs::rename(temporary, path, error);
  if (!file || error) fail_environment("cannot write {}", path);
}

json work_off(const Piece& piece, const Plan& plan, Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  json result = piece.work({plan.out + "/runs/" + piece.key, plan.command, &progress});
  store_result(plan, piece, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), result);
  progress.update(1, 1, "done");
  return result;
}

std::vector<Piece> chosen_pieces(const Study& study, const Plan& plan) {
  const std::vector<Piece> all = study.pieces(plan);
  std::vector<Piece> chosen;
  std::string keys;
  for (const Piece& piece : all) {
    keys += (keys.empty() ? "" : ", ") + piece.key;
    if (piece.key.find(plan.only) != std::string::npos) chosen.push_back(piece);
  }
  require(!chosen.empty(), "--only {}: no piece of {} has that in its name; they are {}", plan.only, study.name, keys);
  return chosen;
}

// Results that `plan.from` has and OUT has not are copied, so that OUT is whole without it.
void take_over(const Study& study, const Plan& plan) {
  if (plan.from.empty()) return;
  require(fs::is_directory(plan.from + "/results"), "--from {}: there are no results of an experiment", plan.from);
  for (const Piece& piece : study.pieces(plan))
    if (!stored_result(plan.out, piece))
      if (stored_result(plan.from, piece))
        write_atomically(result_path(plan.out, piece.key), read_text(result_path(plan.from, piece.key)));
}

// Which of the pieces that are not there this rank works off: the dearest first, each goes to who has least to do. All
// ranks go by what rank 0 sees, and so come to the same.
std::vector<size_t> own_share(const std::vector<Piece>& pieces, const Results& results, Communicator& ranks) {
  std::string missing;
  for (const Piece& piece : pieces) missing += results.contains(piece.key) ? '0' : '1';
  missing = ranks.gather(missing).front();
  std::vector<size_t> order, own;
  for (size_t i = 0; i < pieces.size(); ++i)
    if (missing[i] == '1') order.push_back(i);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return pieces[a].cost > pieces[b].cost; });
  std::vector<double> load(static_cast<size_t>(ranks.size()), 0.0);
  for (const size_t i : order) {
    const auto least = std::ranges::min_element(load);
    if (least - load.begin() == ranks.rank()) own.push_back(i);
    *least += pieces[i].cost;
  }
  std::ranges::sort(own);
  return own;
}

// Works off `own`, in order, until the end or a signal.
void work_off_all(const Study& study, const std::vector<Piece>& pieces, const std::vector<size_t>& own,
                  const Plan& plan, std::FILE* output, Results& results, Report& report) {
  report.skipped = static_cast<int64_t>(results.size());
  if (report.skipped > 0 && !plan.quiet)
    fmt::print(output, "{} of {} pieces are finished and are not worked off again\n", report.skipped, pieces.size());
  if (study.forecast && !own.empty() && !plan.quiet && plan.scale != Scale::smoke) {
    std::vector<Piece> left;
    for (const size_t i : own) left.push_back(pieces[i]);
    const std::string forecast = study.forecast(plan, left);
    if (!forecast.empty()) fmt::print(output, "{}\n", forecast);
    std::fflush(output);
  }
  const Interrupt interrupt;
  Progress whole(plan.quiet ? nullptr : output, static_cast<int>(3 * own.size()));
  double cost = 0, worked = 0;
  for (const size_t i : own) cost += pieces[i].cost;
  for (const size_t i : own) {
    const Piece& piece = pieces[i];
    if ((report.signal = Interrupt::signal()) != 0) return;
    Progress part(whole, worked / cost, (worked + piece.cost) / cost,
                  fmt::format("[{}/{}] {}  ", i + 1, pieces.size(), piece.key));
    try {
      results[piece.key] = work_off(piece, plan, part);
    } catch (const Interrupted& stopped) {
      report.signal = stopped.signal;
      return;
    }
    ++report.worked;
    worked += piece.cost;
  }
}

// What all ranks did.
void gather_counts(Communicator& ranks, Report& report) {
  const json own = {report.worked, report.signal};
  report.worked = 0;
  for (const std::string& text : ranks.gather(own.dump())) {
    const json each = json::parse(text);
    report.worked += each.at(0).get<int64_t>();
    report.signal = std::max(report.signal, each.at(1).get<int>());
  }
}

// What else lies in the folder from earlier calls with another --only belongs on the page, too.
void add_earlier(const Study& study, const Plan& plan, Results& results) {
  for (const Piece& piece : study.pieces(plan))
    if (!results.contains(piece.key))
      if (const auto stored = stored_result(plan.out, piece)) results[piece.key] = *stored;
}

}  // namespace

const char* name_of(Scale scale) {
  return scale == Scale::smoke ? "smoke" : scale == Scale::quick ? "quick" : "paper";
}

Scale scale_from(const std::string& name) {
  for (const Scale scale : {Scale::smoke, Scale::quick, Scale::paper})
    if (name == name_of(scale)) return scale;
  fail("--scale {}: is none of smoke, quick, paper; the nearest is '{}'", name,
       nearest(name, {"smoke", "quick", "paper"}));
}

std::vector<uint64_t> Plan::seeds(int64_t count) const {
  std::vector<uint64_t> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(seed + static_cast<uint64_t>(i));
  return all;
}

const std::vector<Study>& studies() {
  return registry();
}

const Study& study_named(const std::string& name) {
  std::vector<std::string> names;
  for (const Study& study : registry()) {
    if (study.name == name) return study;
    names.push_back(study.name);
  }
  fail("there is no experiment '{}'; the nearest is '{}' (`sextant experiment list` names them)", name,
       nearest(name, names));
}

RegisterStudy::RegisterStudy(Study study) {
  std::vector<Study>& all = registry();
  const auto after = std::ranges::upper_bound(all, study.name, {}, &Study::name);
  all.insert(after, std::move(study));
}

Report run(const Study& study, const Plan& plan, std::FILE* output, Communicator& ranks) {
  const std::vector<Piece> pieces = chosen_pieces(study, plan);
  const json environment = environment_json();  // before the lock, see manifest.h
  std::optional<RunLock> lock;
  on_first(ranks, [&] { lock.emplace(plan.out); });
  const json asked = {{"experiment", study.name}, {"scale", name_of(plan.scale)}, {"seed", plan.seed},
                      {"data", plan.data},        {"command", plan.command},      {"environment", environment}};
  Report report;
  Results results;
  on_first(ranks, [&] { take_over(study, plan); });
  together(ranks, [&] {
    for (const Piece& piece : pieces)
      if (const auto stored = stored_result(plan.out, piece)) results[piece.key] = *stored;
  });
  const std::vector<size_t> own = own_share(pieces, results, ranks);
  together(ranks, [&] { work_off_all(study, pieces, own, plan, output, results, report); });
  gather_counts(ranks, report);
  on_first(ranks, [&] {
    add_earlier(study, plan, results);
    write_atomically(plan.out + "/experiment.json", asked.dump(2) + "\n");
    report.outcome = study.outcome(plan, results);
    report.files = write_page(study, plan, report.outcome, static_cast<int64_t>(results.size()), asked);
    report.page = report.files.front();
  });
  report.outcome.passed = ranks.gather(report.outcome.passed ? "1" : "0").front() == "1";
  return report;
}

std::vector<const json*> results_of(const Results& results, const std::string& prefix) {
  std::vector<const json*> found;
  for (const auto& [key, result] : results)
    if (key == prefix || key.starts_with(prefix + "/")) found.push_back(&result);
  return found;
}

double number_at(const json& object, const std::string& where) {
  const json::json_pointer pointer(where);
  return object.contains(pointer) && object.at(pointer).is_number() ? object.at(pointer).get<double>() : std::nan("");
}

Sample sample_at(const Results& results, const std::string& prefix, const std::string& where) {
  std::vector<double> values;
  for (const json* result : results_of(results, prefix))
    if (const double value = number_at(*result, where); std::isfinite(value)) values.push_back(value);
  return sample_of(values);
}

Sample sample_of(const std::vector<double>& values) {
  Sample sample{.count = static_cast<int64_t>(values.size())};
  for (const double value : values) sample.mean += value / static_cast<double>(values.size());
  if (values.size() < 2) return sample;
  double squares = 0;
  for (const double value : values) squares += (value - sample.mean) * (value - sample.mean);
  sample.deviation = std::sqrt(squares / static_cast<double>(values.size() - 1));
  return sample;
}

std::string number_text(double value, int digits) {
  return fmt::format("{:.{}g}", value, digits);
}

std::string text_of(const Sample& sample, int digits) {
  if (sample.count == 0) return "";
  return sample.count == 1 ? fmt::format("{:.{}f}", sample.mean, digits)
                           : fmt::format("{:.{}f} +- {:.{}f}", sample.mean, digits, sample.deviation, digits);
}

std::string count_of(int64_t part, int64_t whole, const std::string& what) {
  return fmt::format("{} of {} {}", part, whole, what);
}

}  // namespace sextant::study
