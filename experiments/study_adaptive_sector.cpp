// adaptive-sector: where gated PJ-bias puts its mass when a teacher of one sector is to be learned.
#include <fmt/format.h>

#include <algorithm>

#include "experiments/study.h"
#include "experiments/study_kernels.h"
#include "positional/diagnostics.h"

namespace sextant::study {

namespace {

using nlohmann::json;

constexpr double angle = 0.1;

// Nothing in the fit alone says which of several overlapping sectors is to carry a kernel. A price on mass does.
struct Objective {
  const char *folder, *title;
  double price;  // of a unit of effective mass, in units of the normalised error
};
constexpr Objective objectives[] = {{"", "", 0}, {"priced/", "(not in the paper) with a price on mass, ", 0.01}};

std::string prefix_of(const Objective& objective, const KernelTarget& teacher) {
  return objective.folder + teacher.name;
}

// The teachers of one sector and order.
std::vector<KernelTarget> teachers() {
  std::vector<KernelTarget> all = kernel_targets(angle);
  std::erase_if(all, [](const KernelTarget& target) { return target.sector == "mixture"; });
  return all;
}

json trained(const KernelTarget& teacher, int64_t steps, double price, uint64_t seed) {
  KernelModel model(seed);
  const auto wanted = values_of(teacher, 0, kernel_window);
  const auto error = [&] { return normalised_error(model.kernel(kernel_window), wanted); };
  const auto before = sector_diagnostics(model.position(), 1, kernel_window);
  model.train(wanted, steps, price);
  const auto after = sector_diagnostics(model.position(), 1, kernel_window);
  Position* const layer = &model.position();
  const auto left_out = leave_one_out({&layer, 1}, error);
  json sectors = json::array();
  for (size_t i = 0; i < after.size(); ++i)
    sectors.push_back({{"sector", after[i].sector},
                       {"order", after[i].order},
                       {"share_before", before[i].mass_share},
                       {"share", after[i].mass_share},
                       {"mass", after[i].mass},
                       {"energy_share", after[i].energy_share},
                       {"centred_energy", after[i].centred_energy},
                       {"cancellation", after[i].cancellation},
                       {"left_out", left_out[i].change}});
  return {{"error", error()}, {"gates", model.gates()}, {"sectors", sectors}};
}

std::vector<Piece> pieces(const Plan& plan) {
  const int64_t steps = plan.choose<int64_t>(100, 3000, 20000);
  std::vector<Piece> all;
  for (const Objective& objective : objectives)
    for (const KernelTarget& teacher : teachers())
      for (const uint64_t seed : plan.seeds(plan.choose<int64_t>(1, 3, 5))) {
        json settings = {{"teacher", teacher.name}, {"angle", angle}, {"steps", steps}, {"seed", seed}};
        if (objective.price > 0) settings["price_of_mass"] = objective.price;
        all.push_back({fmt::format("{}/seed-{}", prefix_of(objective, teacher), seed), settings, 1,
                       [=](const Workplace&) { return trained(teacher, steps, objective.price, seed); }});
      }
  return all;
}

// One number of one component, over the seeds.
Sample over_seeds(const Results& results, const std::string& piece, size_t component, const char* what) {
  return sample_at(results, piece, fmt::format("/sectors/{}/{}", component, what));
}

std::string name_of(const json& component) {
  return fmt::format("{} {}", component.at("sector").get<std::string>(), component.at("order").get<int>());
}

Finding finding_of(const Results& results, const Objective& objective, const KernelTarget& teacher,
                   const json& sectors) {
  const std::string own = fmt::format("{} {}", teacher.sector, teacher.order), piece = prefix_of(objective, teacher);
  size_t largest = 0, mine = 0, needed = 0;
  const auto mean = [&](size_t i, const char* what) { return over_seeds(results, piece, i, what).mean; };
  for (size_t i = 0; i < sectors.size(); ++i) {
    if (name_of(sectors[i]) == own) mine = i;
    if (mean(i, "share") > mean(largest, "share")) largest = i;
    if (mean(i, "left_out") > mean(needed, "left_out")) needed = i;
  }
  const Sample before = over_seeds(results, piece, mine, "share_before"),
               after = over_seeds(results, piece, mine, "share");
  Finding finding{fmt::format("{}{} teacher: mass moves to {}", objective.title, teacher.name, own),
                  "",
                  "its mean share of the mass rises in training and is the largest of all components (3 seeds or more)",
                  {}};
  finding.here = fmt::format(
      "share of {}: {:.3f} before, {} after; largest mass: {} ({:.3f}); most missed when left "
      "out: {}",
      own, before.mean, text_of(after, 3), name_of(sectors[largest]), mean(largest, "share"), name_of(sectors[needed]));
  if (after.count >= 3) finding.agrees = largest == mine && after.mean > before.mean;
  return finding;
}

Section table_of(const Results& results, const Objective& objective) {
  Section section{.name = "sectors", .title = "Mass, energy and need by component", .text = {}};
  if (objective.price > 0) {
    section.name += "-priced";
    section.title += fmt::format(", a unit of mass priced at {} of the target's variance", objective.price);
  }
  section.text =
      "Mass is what the parameters allocate, energy what is realised over the window, left out the rise of "
      "the fit's error (in units of the target's variance) when the component is set to zero. Mean and "
      "deviation over seeds.";
  section.table =
      Table{{"teacher", "component", "share before", "share", "energy share", "cancellation", "left out"}, {}};
  for (const KernelTarget& teacher : teachers()) {
    const std::string piece = prefix_of(objective, teacher);
    const auto runs = results_of(results, piece);
    if (runs.empty()) continue;
    const json& sectors = runs.front()->at("sectors");
    for (size_t i = 0; i < sectors.size(); ++i) {
      const auto cell = [&](const char* what) { return text_of(over_seeds(results, piece, i, what), 3); };
      section.table->rows.push_back({teacher.name, name_of(sectors[i]), cell("share_before"), cell("share"),
                                     cell("energy_share"), cell("cancellation"), cell("left_out")});
    }
  }
  return section;
}

Section gates_of(const Results& results) {
  Section section{.name = "gates", .title = "Gates and errors", .text = "Gates start at 0.5."};
  section.table = Table{{"run", "FJ gate", "affine gate", "LC gate", "error"}, {}};
  for (const auto& [key, result] : results) {
    const json& gates = result.at("gates");
    section.table->rows.push_back({key, number_text(gates[0], 3), number_text(gates[1], 3), number_text(gates[2], 3),
                                   number_text(result.at("error"), 3)});
  }
  return section;
}

Outcome outcome(const Plan&, const Results& results) {
  Outcome made;
  for (const Objective& objective : objectives) {
    for (const KernelTarget& teacher : teachers())
      if (const auto runs = results_of(results, prefix_of(objective, teacher)); !runs.empty())
        made.findings.push_back(finding_of(results, objective, teacher, runs.front()->at("sectors")));
    made.sections.push_back(table_of(results, objective));
  }
  made.sections.push_back(gates_of(results));
  return made;
}

const RegisterStudy registered(
    {.name = "adaptive-sector",
     .question = "Does gated PJ-bias put its mass where the teacher's sector and order are?",
     .protocol =
         "PJ-bias with all sectors (3 jets, 2 light-cone jets, 8 frequencies) trained by Adam on teacher kernels "
         "over 256 lags,\nby the fit alone and with a price on mass; mass, functional energy and leave-one-out.",
     .source = "PJ-RoPE (arXiv 2606.05345)",
     .paper = "mass moves to the teacher's sector and order",
     .pieces = pieces,
     .outcome = outcome});

}  // namespace

}  // namespace sextant::study
