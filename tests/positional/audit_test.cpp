// Every audit case of this folder's operations: analytic gradients against finite differences and against the composed
// twin.
#include <gtest/gtest.h>

#include "autograd/gradient_check.h"
#include "core/parallel.h"

namespace sextant {
namespace {

std::vector<AuditEntry> entries() {
  std::vector<AuditEntry> chosen;
  for (const AuditEntry& entry : audit_entries())
    if (entry.family == "positional" || entry.family == "strategy") chosen.push_back(entry);
  return chosen;
}

class PositionalAudit : public testing::TestWithParam<AuditEntry> {};

TEST_P(PositionalAudit, GradientsAreRight) {
  Arena arena;
  set_threads(1);  // the cases are small
  for (const AuditCase& audit : GetParam().cases(arena)) {
    if (audit.large) {
      const GradientCheck check = check_directional(audit.function, audit.inputs, 2);
      EXPECT_LT(check.worst_error, 1e-7) << audit.label << ": " << check.text();
      EXPECT_TRUE(check.repeatable) << audit.label;
    } else if (audit.differentiable_here) {
      const GradientCheck check = check_gradients(audit.function, audit.inputs, {.step = audit.step, .entries_per_input = 10});
      EXPECT_LT(check.worst_error, 1e-7) << audit.label << ": " << check.text();
      EXPECT_TRUE(check.repeatable) << audit.label;
    }
    if (audit.composed) {
      EXPECT_LT(worst_difference(audit.function, audit.composed, audit.inputs), 1e-11) << audit.label;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Entries, PositionalAudit, testing::ValuesIn(entries()), [](const auto& instance) {
  std::string name = instance.param.family + "_" + instance.param.name;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

}  // namespace
}  // namespace sextant
