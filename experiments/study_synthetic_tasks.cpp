// synthetic-tasks: sequences whose labels a teacher's attention kernel decides; which sectors a model that has to learn
// that kernel puts to use. The teacher is one head, so the loss has a known lower bound.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/elementwise.h"
#include "data/synthetic.h"
#include "experiments/interrupt.h"
#include "experiments/study_kernels.h"
#include "experiments/study_sectors.h"
#include "nn/optimizer.h"
#include "positional/diagnostics.h"

namespace sextant::study {

namespace {

using nlohmann::json;

constexpr int64_t context = 128, batch = 16, shown_lags = 128;

struct Strategy {
  const char *name, *spec, *sector;  // sector: the only one it has
  double price = 0;                  // nats a unit of effective mass, in training
};
constexpr const char* all_sectors = "pj-bias(jets=3,lc-jets=2,affine=1)";
constexpr Strategy strategies_tried[] = {{"none", "none", ""},
                                         {"rope", "rope", ""},
                                         {"alibi", "alibi", ""},
                                         {"affine", "affine", "affine"},
                                         {"fj", "pj-bias(jets=3,lc-jets=0,affine=0)", "FJ"},
                                         {"lc", "pj-bias(jets=0,lc-jets=2,affine=0)", "LC"},
                                         {"fj+affine", "pj-bias(jets=3,lc-jets=0,affine=1)", ""},
                                         {"lc+affine", "pj-bias(jets=0,lc-jets=2,affine=1)", ""},
                                         {"all", all_sectors, ""},
                                         {"all+price-0.001", all_sectors, "", 0.001},
                                         {"all+price-0.01", all_sectors, "", 0.01},
                                         {"all+price-0.03", all_sectors, "", 0.03}};

struct Teacher {
  const char *task, *sector, *paper;
};
constexpr Teacher teachers[] = {{"affine", "affine", "affine teachers activate recency"},
                                {"phase", "FJ", "(not stated for phases) a phase teacher activates FJ"},
                                {"jet-1", "FJ", "signed jet teachers activate FJ"},
                                {"jet-2", "FJ", "signed jet teachers activate FJ"},
                                {"light-cone", "LC", "(not stated for the light cone) its teacher activates LC"}};

ModelConfig config_of(const SyntheticTask& task, const Strategy& strategy, uint64_t seed) {
  ModelConfig config;
  config.vocab = task.vocabulary();
  config.layers = 1;
  config.width = 32;
  config.heads = 2;
  config.context = context;
  config.position = strategy.spec;
  config.tied = false;
  config.data = task.name();
  config.seed = seed;
  return config;
}

void train(Transformer& model, const SyntheticTask& task, int64_t steps, double price, uint64_t seed,
           Progress& progress) {
  AdamW optimizer(model.parameters(), {});
  const std::vector<Parameter*> parameters = model.parameters();
  const Schedule schedule{.peak = 1e-2, .floor = 1e-3, .warmup = steps / 20, .steps = steps};
  Tape tape;
  Batch examples;
  for (int64_t step = 0; step < steps; ++step) {
    Interrupt::check();
    tape.reset();
    const double bayes = task.fill(seed, step, batch, context, examples);
    const Variable loss = model.loss(tape, examples.inputs, examples.targets, batch, context);
    const double nats = loss.value().item();
    tape.backward(price > 0 ? add(loss, scale(effective_mass(tape, model.position(0)), price)) : loss);
    const double norm = gradient_norm(parameters);
    optimizer.step(schedule.at(step), norm > 1 ? 1 / norm : 1.0);
    progress.update(step + 1, steps, fmt::format("step {}/{}  loss {:.4f} above Bayes", step + 1, steps, nats - bayes));
  }
}

// Mean loss above the Bayes-optimal one on fresh sequences, nats a token.
double excess(Transformer& model, const SyntheticTask& task, int64_t length, int64_t batches) {
  constexpr uint64_t held_out = uint64_t{1} << 40;  // a seed that no training uses
  Tape tape;
  const NoGrad none(tape);
  Batch examples;
  double sum = 0;
  for (int64_t i = 0; i < batches; ++i) {
    Interrupt::check();
    tape.reset();
    const double bayes = task.fill(held_out, i, batch, length, examples);
    sum += model.loss(tape, examples.inputs, examples.targets, batch, length).value().item() - bayes;
  }
  return sum / static_cast<double>(batches);
}

json learned_kernel(Transformer& model) {
  Tape tape;
  const NoGrad none(tape);
  const Variable bias =
      model.position(0).lag_bias({&tape, {}, {}, 1, shown_lags, 0, shown_lags, false, nullptr}, shown_lags, nullptr);
  json heads = json::array();
  if (!bias.defined()) return heads;
  for (int64_t head = 0; head < model.config().heads; ++head) {
    json values = json::array();
    for (int64_t lag = 0; lag < shown_lags; ++lag) values.push_back(bias.value().at({head, lag}));
    heads.push_back(values);
  }
  return heads;
}

json worked(const SyntheticTask& task, const Strategy& strategy, int64_t steps, int64_t batches, uint64_t seed,
            Progress& progress) {
  Transformer model(config_of(task, strategy, seed));
  Position* const layer = &model.position(0);
  const auto before = sector_diagnostics(*layer, model.config().heads, context);
  train(model, task, steps, strategy.price, seed, progress);
  const auto after = sector_diagnostics(*layer, model.config().heads, context);
  const auto left_out = leave_one_out({&layer, 1}, [&] { return excess(model, task, context, 1); });
  json sectors = json::array();
  for (size_t i = 0; i < after.size(); ++i)
    sectors.push_back({{"sector", after[i].sector},
                       {"order", after[i].order},
                       {"share_before", before[i].mass_share},
                       {"mass_share", after[i].mass_share},
                       {"centred_energy", after[i].centred_energy},
                       {"leave_one_out_nats_per_token", left_out[i].change}});
  return {{"excess", excess(model, task, context, batches)},
          {"excess_long", excess(model, task, 4 * context, std::max<int64_t>(1, batches / 8))},
          {"sectors", sectors},
          {"kernel", learned_kernel(model)}};
}

std::vector<Piece> pieces(const Plan& plan) {
  const int64_t steps = plan.choose<int64_t>(20, 1500, 6000), batches = plan.choose<int64_t>(1, 16, 64);
  const std::vector<uint64_t> seeds = plan.seeds(plan.choose<int64_t>(1, 3, 5));
  std::vector<Piece> all;
  for (const uint64_t seed : seeds)
    for (const Teacher& teacher : teachers)
      for (const Strategy& strategy : strategies_tried) {
        json settings = {
            {"task", teacher.task}, {"spec", strategy.spec}, {"steps", steps}, {"batches", batches}, {"seed", seed}};
        if (strategy.price > 0) settings["price_of_mass"] = strategy.price;
        all.push_back(
            {fmt::format("{}/{}/seed-{}", strategy.name, teacher.task, seed), settings, 1, [=](const Workplace& place) {
               return worked(synthetic_task(teacher.task), strategy, steps, batches, seed, *place.progress);
             }});
      }
  return all;
}

std::string prefix_of(const Strategy& strategy, const Teacher& teacher) {
  return fmt::format("{}/{}", strategy.name, teacher.task);
}

std::string all_of(const Teacher& teacher) {
  return fmt::format("all/{}", teacher.task);
}

// PJ-bias with all sectors, for the task alone or with a price on mass: nothing in the task alone says which of several
// overlapping sectors is to carry a kernel.
template <class F>
void for_all_sectors(F f) {
  for (const Strategy& strategy : strategies_tried)
    if (strategy.spec == std::string_view(all_sectors)) f(strategy);
}

Finding mass_moves(const Results& results, const Strategy& all, const Teacher& teacher, bool smoke) {
  const std::string claim =
      all.price > 0 ? fmt::format("(not in the paper) with mass at {} nats a unit, the {} teacher activates {}",
                                  all.price, teacher.task, teacher.sector)
                    : fmt::format("{} teacher: {}", teacher.task, teacher.paper);
  Finding finding{claim,
                  "",
                  fmt::format("of PJ-bias with all sectors, {} gains share of the mass in training and has the largest "
                              "share of the kernel's energy without its mean (mean over seeds)",
                              teacher.sector),
                  {}};
  const std::string prefix = prefix_of(all, teacher);
  if (results_of(results, prefix).empty()) return finding;
  const auto share = [&](const char* what, const std::string& of) {
    return share_over_seeds(results, prefix, what, [&](const std::string& sector, int) { return sector == of; });
  };
  std::string largest;
  double most = -1;
  for (const char* sector : {"FJ", "affine", "LC"})
    if (const double energy = share("centred_energy", sector).mean; energy > most) most = energy, largest = sector;
  const double before = share("share_before", teacher.sector).mean, after = share("mass_share", teacher.sector).mean;
  finding.here = fmt::format("mass of {}: {:.3f} before, {:.3f} after; most energy: {} ({:.3f})", teacher.sector,
                             before, after, largest, most);
  if (!smoke) finding.agrees = after > before && largest == teacher.sector;
  return finding;
}

Finding own_sector_fits_best(const Results& results, const Teacher& teacher, bool smoke) {
  Finding finding{
      fmt::format("(not in the paper) {} teacher: the strategy of its own sector alone learns it best", teacher.task),
      "",
      "of the strategies with one sector, its own has the lowest mean loss above Bayes",
      {}};
  std::string best;
  double lowest = INFINITY;
  for (const Strategy& strategy : strategies_tried) {
    const Sample loss = sample_at(results, prefix_of(strategy, teacher), "/excess");
    if (*strategy.sector == '\0' || loss.count == 0) continue;
    finding.here += fmt::format("{}{} {}", finding.here.empty() ? "" : ", ", strategy.name, text_of(loss, 4));
    if (loss.mean < lowest) lowest = loss.mean, best = strategy.sector;
  }
  if (!smoke && !best.empty()) finding.agrees = best == teacher.sector;
  return finding;
}

Section losses(const Results& results, const char* what, const std::string& title) {
  Section section{.name = what, .title = title, .text = {}};
  section.text =
      "Nats a token above the Bayes-optimal loss, mean and deviation over seeds; the lowest of each teacher is marked.";
  Table table{{"strategy"}, {}};
  for (const Strategy& strategy : strategies_tried) table.rows.push_back({strategy.name});
  for (size_t column = 0; column < std::size(teachers); ++column) {
    table.header.push_back(teachers[column].task);
    double lowest = INFINITY;
    size_t best = 0;
    for (size_t row = 0; row < std::size(strategies_tried); ++row) {
      const Sample loss =
          sample_at(results, prefix_of(strategies_tried[row], teachers[column]), fmt::format("/{}", what));
      table.rows[row].push_back(text_of(loss, 4));
      if (loss.count > 0 && loss.mean < lowest) lowest = loss.mean, best = row;
    }
    if (std::isfinite(lowest)) table.best.insert({best, column + 1});
  }
  section.table = table;
  return section;
}

Section mass_of_teachers(const Results& results, const Strategy& all) {
  Plot plot{.title = "Share of the kernel's energy by teacher",
            .x_label = "",
            .y_label = "share of energy",
            .series = {},
            .y_top = 1.0,
            .stacked = true};
  Section section{.name = "sectors", .title = "What PJ-bias with all sectors uses", .text = {}};
  if (all.price > 0) {
    section.name += fmt::format("-price-{}", all.price);
    section.title += fmt::format(" when a unit of mass costs {} nats", all.price);
  }
  section.text =
      "Mass is what the parameters allocate, energy what is realised over the training length, left out the rise of "
      "the loss when the component is set to zero.";
  section.table = Table{{"teacher", "component", "mass before", "mass", "energy", "left out, nats"}, {}};
  for (const Teacher& teacher : teachers) {
    const std::string prefix = prefix_of(all, teacher);
    const auto runs = results_of(results, prefix);
    if (runs.empty()) continue;
    plot.categories.push_back(teacher.task);
    const json& rows = runs.front()->at("sectors");
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::string sector = rows[i].at("sector"),
                        name = fmt::format("{} {}", sector, rows[i].at("order").get<int>());
      const int order = rows[i].at("order");
      const auto number = [&](const char* what) { return component(results, prefix, sector, order, what); };
      const Sample energy = share_over_seeds(results, prefix, "centred_energy", [&](const std::string& each, int of) {
        return each == sector && of == order;
      });
      if (plot.series.size() <= i) plot.series.push_back({.label = name, .x = {}, .y = {}});
      plot.series[i].y.push_back(energy.mean);
      section.table->rows.push_back({teacher.task, name, text_of(number("share_before"), 3),
                                     text_of(number("mass_share"), 3), text_of(energy, 3),
                                     text_of(number("leave_one_out_nats_per_token"), 4)});
    }
  }
  section.plot = plot;
  return section;
}

// The teacher's kernel and those of the two heads, each without its mean over the lags shown.
Section kernels(const Results& results, const Teacher& teacher) {
  Plot plot{.title = fmt::format("Teacher {}", teacher.task),
            .x_label = "lag (tokens)",
            .y_label = "kernel without its mean, nats",
            .series = {}};
  const auto add = [&](const std::string& label, const std::function<double(int64_t)>& value) {
    Series series{.label = label, .x = {}, .y = {}};
    double mean = 0;
    for (int64_t lag = 0; lag < shown_lags; ++lag) mean += value(lag) / static_cast<double>(shown_lags);
    for (int64_t lag = 0; lag < shown_lags; ++lag) {
      series.x.push_back(static_cast<double>(lag));
      series.y.push_back(value(lag) - mean);
    }
    plot.series.push_back(series);
  };
  add("teacher", synthetic_task(teacher.task).kernel());
  if (const auto runs = results_of(results, all_of(teacher)); !runs.empty())
    for (size_t head = 0; head < runs.front()->at("kernel").size(); ++head)
      add(fmt::format("head {}", head + 1),
          [&](int64_t lag) { return runs.front()->at("kernel")[head][static_cast<size_t>(lag)].get<double>(); });
  return {
      .name = fmt::format("kernel-{}", teacher.task),
      .title = fmt::format("Kernels: teacher {}", teacher.task),
      .text = "PJ-bias with all sectors, first seed. Heads may share the work, so that neither has to be the teacher.",
      .plot = plot};
}

Outcome outcome(const Plan& plan, const Results& results) {
  Outcome made;
  const bool smoke = plan.scale == Scale::smoke;
  for (const Teacher& teacher : teachers) {
    for_all_sectors([&](const Strategy& all) { made.findings.push_back(mass_moves(results, all, teacher, smoke)); });
    made.findings.push_back(own_sector_fits_best(results, teacher, smoke));
  }
  made.sections.push_back(losses(results, "excess", "Loss above Bayes at the training length"));
  made.sections.push_back(losses(results, "excess_long", "Loss above Bayes at four times the training length"));
  for_all_sectors([&](const Strategy& all) { made.sections.push_back(mass_of_teachers(results, all)); });
  for (const Teacher& teacher : teachers)
    if (!results_of(results, all_of(teacher)).empty()) made.sections.push_back(kernels(results, teacher));
  return made;
}

const RegisterStudy registered(
    {.name = "synthetic-tasks",
     .question = "Does a model that has to learn a teacher's attention kernel put the teacher's sector to use?",
     .protocol =
         "One layer of width 32, 2 heads, 128 tokens; labels drawn by one attention head with a known kernel and "
         "no content scores.\nEach strategy, three seeds or more; loss above the Bayes-optimal one, mass, energy "
         "and need of the sectors.",
     .source = "PJ-RoPE (arXiv 2606.05345)",
     .paper = "affine teachers activate recency, signed jet teachers activate FJ",
     .pieces = pieces,
     .outcome = outcome});

}  // namespace

}  // namespace sextant::study
