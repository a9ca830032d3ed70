// The audit: it passes what is right, and it fails, at the right place, on what is wrong.
#include "experiments/audit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "autograd/elementwise.h"
#include "autograd/formula.h"
#include "autograd/rounding.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/safetensors.h"
#include "experiments/audit_against.h"
#include "experiments/audit_plant.h"
#include "nn/transformer.h"
#include "tests/experiments/program.h"

namespace sextant {
namespace {

using Values = std::vector<double>;

TEST(FaultTest, SpoilsAsItSays) {
  const Values x{1, 2, 3, 4, 5, 6};
  const Shape shape{2, 3};
  EXPECT_EQ(spoiled(FaultKind::dropped_term, x, shape), (Values{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(spoiled(FaultKind::wrong_sign, x, shape), (Values{-1, -2, -3, -4, -5, -6}));
  EXPECT_EQ(spoiled(FaultKind::missing_factor, x, shape), (Values{0.5, 1, 1.5, 2, 2.5, 3}));
  EXPECT_EQ(spoiled(FaultKind::off_by_one, x, shape), (Values{0, 1, 2, 0, 4, 5}));
  EXPECT_EQ(spoiled(FaultKind::wrong_axis, x, shape), (Values{6, 6, 6, 15, 15, 15}));
  EXPECT_EQ(spoiled(FaultKind::transposed_product, x, shape), (Values{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(spoiled(FaultKind::transposed_product, {1, 2}, {2, 1}), (Values{1, 2}));  // nothing to transpose
  EXPECT_EQ(spoiled(FaultKind::off_by_one, {1, 2}, {2, 1}), (Values{0, 1}));          // along the first dimension then
  EXPECT_EQ(spoiled(FaultKind::wrong_axis, {}, {0, 3}), Values{});
}

// y = exp(x), z = y^2: y is used again, so that dy has a part of its own when square contributes.
TEST(FaultTest, ForgottenAccumulationShowsWhereValuesAreUsedAgain) {
  Arena arena;
  const std::vector<Tensor> inputs{from_values(arena, {2}, Values{0.3, 0.5}, DType::f64)};
  const TapeFunction f = [](Tape&, std::span<const Variable> x) { return square(exp(x[0])); };
  const TapeFunction again = with_every_value_used_again(f);
  EXPECT_LT(check_gradients(again, inputs).worst_error, 1e-9);
  for (const char* operation : {"square", "exp"}) {
    Fault fault(operation, 0, FaultKind::forgotten_accumulation);
    EXPECT_LT(check_gradients(fault.in(f), inputs).worst_error, 1e-9);  // nothing to lose
    EXPECT_GT(check_gradients(fault.in(again), inputs).worst_error, 1e-2) << operation;
  }
}

TEST(AuditTest, PatternsChooseEntries) {
  const AuditEntry entry{"linear_gelu", "products", {}};
  for (const char* pattern : {"", "linear", "products/", "linear*", "products/*", "*gelu"})
    EXPECT_TRUE(matches_audit(pattern, entry)) << pattern;
  for (const char* pattern : {"linear_x", "gelu*", "positional/*"})
    EXPECT_FALSE(matches_audit(pattern, entry)) << pattern;
  AuditSettings settings;
  settings.only = "sofmax";
  try {
    run_audit(settings);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'softmax'"), std::string::npos) << error.what();
  }
}

TEST(AuditTest, SuspectsAreWhatFailingCasesShare) {
  const std::vector<CaseOutcome> outcomes{
      {{"add", "matmul"}, false}, {{"add", "gelu"}, true}, {{"gelu"}, true}, {{"add"}, false}};
  const std::vector<Suspect> found = suspects(outcomes);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].operation, "gelu");
  EXPECT_DOUBLE_EQ(found[0].score, 1.0);  // in both that fail and in no other
  EXPECT_EQ(found[1].operation, "add");
  EXPECT_DOUBLE_EQ(found[1].score, 1 / std::sqrt(6.0));
  EXPECT_TRUE(suspects({{{"add"}, false}}).empty());
}

TEST(PrecisionTest, CountsInUlpsOfTheLargestEntry) {
  EXPECT_EQ(ulp_f32(1.0), 0x1p-23);
  EXPECT_EQ(ulp_f32(1.999), 0x1p-23);
  EXPECT_EQ(ulp_f32(2.0), 0x1p-22);
  EXPECT_EQ(ulp_f32(1e-42), 0x1p-149);
  Arena arena;
  AuditCase audit;
  audit.inputs = {from_values(arena, {3}, Values{1.5, 0.25, 1e-5}, DType::f64)};
  audit.function = [](Tape&, std::span<const Variable> x) { return scale(x[0], 1.0); };
  audit.function_f32 = [](Tape&, std::span<const Variable> x) { return shift(scale(x[0], 1.0), 3 * 0x1p-23); };
  std::string reason;
  const std::optional<Precision> off = compare_precision(audit, 1, reason);
  ASSERT_TRUE(off.has_value());
  EXPECT_NEAR(off->worst, 3.0, 0.01);
  EXPECT_EQ(off->worst_at.tensor, -1);
  EXPECT_GT(off->excess, 1.9);  // 6 half ulps, where the input and the product may bring one each
  EXPECT_LT(off->excess, 6.0);
  EXPECT_EQ(off->cancelled, 1);  // 3.6e-7 on 1e-5
  EXPECT_EQ(off->errors.size(), 6u);
  audit.inputs[0].set_flat(1, 1e300);
  EXPECT_FALSE(compare_precision(audit, 1, reason).has_value());
  EXPECT_NE(reason.find("range of f32"), std::string::npos);
}

// f32 code that loses 8 of its 24 bits, in the values and gradients of one operation at a time: the limit that is
// derived from each case's own rounding lets none of them through.
TEST(PrecisionTest, CatchesAnyOperationThatLosesEightBits) {
  set_threads(1);
  const WideList nothing;
  std::set<std::string> all, caught;
  Arena arena;
  for (const AuditEntry& entry : audit_entries()) {
    if (entry.family == "strategy" || entry.family == "layer") continue;
    for (const AuditCase& audit : entry.cases(arena)) {
      if (audit.large) continue;
      ContributionList list;
      std::string reason;
      compare_precision(audit, 1, reason, &list);
      for (const auto& [operation, input] : list.all()) {
        all.insert(operation);
        if (caught.contains(operation)) continue;
        Rounding loses(0x1p-16, 1, nothing, operation);
        const std::optional<Precision> precision = compare_precision(audit, 1, reason, &loses);
        if (precision && precision->excess > AuditSettings{}.rounding) caught.insert(operation);
      }
    }
  }
  EXPECT_GT(all.size(), 30u);
  for (const std::string& operation : all) EXPECT_TRUE(caught.contains(operation)) << operation;
}

// Every operation, every input, every kind of fault: all that change a gradient are caught, at the right input, and
// this operation and input alone are the first suspect.
TEST(PlantTest, EveryPlantedFaultIsCaughtAndNamed) {
  set_threads(1);
  const std::vector<PlantedFault> faults = plant_faults({});
  int64_t planted = 0;
  for (const PlantedFault& fault : faults) {
    if (!fault.planted()) continue;
    ++planted;
    EXPECT_TRUE(fault.caught && fault.placed && fault.named)
        << name_of(fault.kind) << " in " << fault.operation << ", input " << fault.input << ", at " << fault.entry
        << " (" << fault.label << "): " << fault.text << "; suspected " << testing::PrintToString(fault.suspected);
  }
  EXPECT_GT(planted, 300);
  std::set<std::string> operations;
  for (const PlantedFault& fault : faults)
    if (fault.planted()) operations.insert(fault.operation);
  for (const Formula& formula : formulas()) EXPECT_TRUE(operations.contains(formula.operation)) << formula.operation;
  std::printf("%lld faults planted\n", static_cast<long long>(planted));
}

TEST(AuditCommandTest, PassesAndFailsWithItsExitStatus) {
  const test::ProgramRun right = test::sextant({"audit", "--only", "products/linear", "--json"});
  EXPECT_EQ(right.status, 0) << right.err;
  const auto json = nlohmann::json::parse(right.out);
  EXPECT_TRUE(json["passed"]);
  EXPECT_EQ(json["audited"].size(), 2u);
  const test::ProgramRun wrong =
      test::sextant({"audit", "--only", "products/*", "--plant", "off by one in linear, input 1"});
  EXPECT_EQ(wrong.status, 1);
  EXPECT_NE(wrong.out.find("FAILED products/linear (ordinary): central differences"), std::string::npos) << wrong.out;
  EXPECT_NE(wrong.out.find("input 1 ["), std::string::npos) << wrong.out;  // the place of the worst entry
  EXPECT_NE(wrong.out.find("suspect 1: linear, input 1 "), std::string::npos) << wrong.out;
  EXPECT_EQ(test::sextant({"audit", "--only", "no such thing"}).status, 2);
  EXPECT_EQ(test::sextant({"audit", "--plant", "a wrong idea"}).status, 2);
  const test::ProgramRun unknown = test::sextant({"audit", "--plant", "wrong sign in linaer, input 1"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_NE(unknown.err.find("'linear'"), std::string::npos) << unknown.err;
  // A fault that no audited case can show is no audit passed.
  EXPECT_EQ(test::sextant({"audit", "--only", "products/matmul", "--plant", "wrong sign in gelu, input 0"}).status, 2);
  EXPECT_EQ(test::sextant({"audit", "--only", "products/matmul", "--plant", "wrong sign in matmul, input 7"}).status,
            2);
  EXPECT_EQ(test::sextant({"audit", "--dtype", "f16"}).status, 2);
}

TEST(AuditCommandTest, WritesOnePageThatFetchesNothing) {
  const test::Folder folder;
  const std::string path = folder.path("audit.html");
  EXPECT_EQ(test::sextant({"audit", "--only", "softmax/*", "--html", path, "--quiet"}).status, 0);
  const std::string page = test::read_file(path);
  for (const char* part : {"softmax/cross_entropy", "all within tolerance", "median ulps", "over expected",
                           "Saturation", "Kinks", "width=device-width"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  for (const char* part : {"<script", "<link", "src=", "@import", "href=\"http", "url(http"})
    EXPECT_EQ(page.find(part), std::string::npos) << part;
}

// A file as another program would write it: weights, configuration, tokens, gradients.
class AgainstTest : public testing::Test {
 protected:
  AgainstTest()
      : model_({.vocab = 5,
                .layers = 1,
                .width = 8,
                .heads = 2,
                .context = 4,
                .position = "rope",
                .dtype = DType::f64,
                .data = ""}) {
    const std::vector<int32_t> inputs{1, 2, 3, 4, 0, 1}, targets{2, 3, 4, 0, 1, 2};
    Tape tape;
    const Variable loss = model_.loss(tape, inputs, targets, 2, 3);
    tape.backward(loss);
    tensors_.push_back({"loss", full(arena_, {}, loss.value().item(), DType::f64)});
    for (Parameter* parameter : model_.parameters())
      tensors_.push_back({"grad." + parameter->name, parameter->gradient});
  }
  std::string write(const test::Folder& folder, const std::string& name) {
    write_safetensors(folder.path(name), tensors_);
    return folder.path(name);
  }
  Arena arena_;
  Transformer model_;
  std::vector<NamedTensor> tensors_;
};

TEST_F(AgainstTest, NamesTheTensorAndEntryThatDiffer) {
  const test::Folder folder;
  const std::string ours = write(folder, "ours.safetensors");
  EXPECT_EQ(compare_gradients(ours, ours, {}).worst(), 0.0);
  for (NamedTensor& one : tensors_)
    if (one.name == "grad.blocks.0.mlp.up.weight") one.tensor.set_flat(13, one.tensor.flat(13) + 1e-3);
  const std::string theirs = write(folder, "theirs.safetensors");
  const GradientComparison comparison = compare_gradients(theirs, ours, {});
  EXPECT_EQ(comparison.tensors[0].name, "grad.blocks.0.mlp.up.weight");
  EXPECT_EQ(comparison.tensors[0].index, 13);
  EXPECT_NEAR(comparison.tensors[0].theirs - comparison.tensors[0].ours, 1e-3, 1e-12);
  EXPECT_EQ(comparison.tensors[1].error, 0.0);
  EXPECT_EQ(test::sextant({"audit", ours, "--against", ours}).status, 0);
  const test::ProgramRun run = test::sextant({"audit", ours, "--against", theirs});
  EXPECT_EQ(run.status, 1);
  EXPECT_NE(run.out.find("grad.blocks.0.mlp.up.weight"), std::string::npos);
}

TEST_F(AgainstTest, NamesWhatIsMissing) {
  const test::Folder folder;
  const std::string ours = write(folder, "ours.safetensors");
  tensors_.pop_back();
  const std::string fewer = write(folder, "fewer.safetensors");
  EXPECT_EQ(compare_gradients(fewer, ours, {}).only_ours.size(), 1u);
  EXPECT_EQ(compare_gradients(ours, fewer, {}).only_theirs.size(), 1u);
  EXPECT_EQ(test::sextant({"audit", ours, "--against", fewer}).status, 1);
  EXPECT_EQ(test::sextant({"audit", "--against", fewer}).status, 2);  // no configuration in it
}

}  // namespace
}  // namespace sextant
