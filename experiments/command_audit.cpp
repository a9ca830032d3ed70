#include "experiments/audit.h"
#include "experiments/command.h"
namespace sextant {
namespace {
int run(const Arguments& arguments) {
  AuditSettings settings;
  settings.only = arguments.text("only");
  for (const auto& e : run_audit(settings)) {
    double c = 0, d = 0, t = 0, u = 0, acc = 0;
    for (const auto& k : e.cases) {
      if (k.central) c = std::max(c, k.central->worst_error);
      if (k.directional) d = std::max(d, k.directional->worst_error);
      if (k.composed) t = std::max(t, *k.composed);
      if (k.precision) u = std::max(u, k.precision->worst);
      if (k.accumulation) acc = std::max(acc, *k.accumulation);
      for (const auto& f : k.failures) arguments.say("   {} {}: {}\n", e.name, k.label, f);
    }
    arguments.say("{}/{} {} {:.2g} {:.2g} {:.2g} acc {:.2g} ulps {:.3g}  {:.2f}s\n", e.family, e.name, e.cases.size(), c, d, t, acc, u, e.seconds);
  }
  return 0;
}
const RegisterCommand registered({.name = "audit", .summary = "x", .options = {{"only", "PATTERN", "", "x"}}, .run = run});
}
}
