// `sextant kernel --vectors`: as its schema says, and right by another way than the one that made it.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "experiments/kernel_vectors.h"
#include "tests/experiments/program.h"

namespace sextant {
namespace {

using Json = nlohmann::json;

// As much of JSON Schema as the schema uses; returns the first thing that is not as it says, or "".
std::string mismatch(const Json& schema, const Json& value, const Json& root, const std::string& at = "$") {
  if (schema.contains("$ref")) {
    const std::string reference = schema["$ref"];  // "#/$defs/name"
    return mismatch(root["$defs"][reference.substr(reference.rfind('/') + 1)], value, root, at);
  }
  if (schema.contains("const") && value != schema["const"]) return at + " is not " + schema["const"].dump();
  if (schema.contains("type")) {
    const auto is = [&](const std::string& type) {
      return type == "object"    ? value.is_object()
             : type == "array"   ? value.is_array()
             : type == "string"  ? value.is_string()
             : type == "integer" ? value.is_number_integer()
             : type == "number"  ? value.is_number()
                                 : type == "null" && value.is_null();
    };
    const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    if (std::none_of(types.begin(), types.end(), is)) return at + " is no " + schema["type"].dump();
  }
  if (schema.contains("minimum") && value < schema["minimum"]) return at + " is too small";
  if (schema.contains("minItems") && value.size() < schema["minItems"]) return at + " is too short";
  for (const Json& name : schema.value("required", Json::array()))
    if (!value.contains(name)) return at + " has no " + name.dump();
  if (schema.contains("items"))
    for (size_t i = 0; i < value.size(); ++i)
      if (auto wrong = mismatch(schema["items"], value[i], root, at + "[" + std::to_string(i) + "]"); !wrong.empty())
        return wrong;
  if (!value.is_object()) return "";
  const Json properties = schema.value("properties", Json::object());
  const Json others = schema.value("additionalProperties", Json(true));
  for (const auto& [key, entry] : value.items()) {
    if (!properties.contains(key) && others == false) return at + " may not have \"" + key + "\"";
    const Json& of_key = properties.contains(key) ? properties[key] : others;
    if (!of_key.is_object()) continue;
    if (auto wrong = mismatch(of_key, entry, root, at + "." + key); !wrong.empty()) return wrong;
  }
  return "";
}

const Json& schema() {
  static const Json parsed =
      Json::parse(std::ifstream(std::string(SEXTANT_SOURCE_DIR) + "/experiments/kernel_vectors.schema.json"));
  return parsed;
}

// What the command writes without a SPEC.
const Json& all_vectors() {
  static const Json written = [] {
    const test::Folder folder;
    const std::string path = folder.path("vectors.json");
    EXPECT_EQ(test::sextant({"kernel", "--vectors", path, "--quiet"}).status, 0);
    return Json::parse(std::ifstream(path));
  }();
  return written;
}

struct Sizes {
  size_t batch, length, heads, dim;
};
Sizes sizes_of(const Json& vector) {
  const Json& shape = vector["inputs"]["q"]["shape"];
  return {shape[0], shape[1], shape[2], shape[3]};
}
std::vector<double> numbers(const Json& tensor) {
  return tensor["data"].get<std::vector<double>>();
}

TEST(KernelVectorsTest, AreAsTheirSchemaSays) {
  EXPECT_EQ(mismatch(schema(), all_vectors(), schema()), "");
  for (const Json& vector : all_vectors()["vectors"])
    for (const Json& group : {vector["inputs"], vector["parameters"], vector["constants"], vector["gradients"],
                              Json{{"logits", vector["logits"]}, {"output", vector["output"]}}})
      for (const auto& [name, tensor] : group.items()) {
        size_t count = 1;
        for (const Json& size : tensor["shape"]) count *= size.get<size_t>();
        EXPECT_EQ(tensor["data"].size(), count) << vector["position"] << " " << name;
      }
}

TEST(KernelVectorsTest, TheSchemaSeesWhatIsWrong) {
  Json broken = all_vectors();
  broken["vectors"][0]["inputs"]["q"]["data"][0] = "0.5";
  EXPECT_EQ(mismatch(schema(), broken, schema()), "$.vectors[0].inputs.q.data[0] is no \"number\"");
  broken = all_vectors();
  broken["vectors"][0].erase("logits");
  EXPECT_EQ(mismatch(schema(), broken, schema()), "$.vectors[0] has no \"logits\"");
  broken = all_vectors();
  broken["vectors"][0]["logit"] = 1;
  EXPECT_EQ(mismatch(schema(), broken, schema()), "$.vectors[0] may not have \"logit\"");
}

TEST(KernelVectorsTest, EveryStrategyIsThere) {
  std::string specs;
  for (const Json& vector : all_vectors()["vectors"]) {
    specs += vector["position"].get<std::string>() + "\n";
    for (const auto& [name, tensor] : vector["parameters"].items())
      EXPECT_TRUE(vector["gradients"].contains(name)) << vector["position"] << ": " << name;
  }
  for (const StrategyInfo& info : strategies())
    for (const std::string& example : info.examples)
      EXPECT_NE(specs.find(example + "\n"), std::string::npos) << example;
}

// The logits come from features and scores, the output and the gradients from the fused attention: softmax and product
// written out here must lead from one to the other, and the value's gradient is P^T w.
TEST(KernelVectorsTest, LogitsLeadToOutputAndValueGradient) {
  int checked = 0;
  for (const Json& vector : all_vectors()["vectors"]) {
    if (vector["position"].get<std::string>().find("values=1") != std::string::npos) continue;  // v is transformed
    const auto [B, T, H, D] = sizes_of(vector);
    const std::vector<double> v = numbers(vector["inputs"]["v"]), w = numbers(vector["output_weights"]);
    const Json& logits = vector["logits"]["data"];
    std::vector<double> output(v.size(), 0.0), dv(v.size(), 0.0);
    for (size_t b = 0; b < B; ++b)
      for (size_t h = 0; h < H; ++h)
        for (size_t i = 0; i < T; ++i) {
          const auto logit = [&](size_t j) { return logits[((b * H + h) * T + i) * T + j]; };
          const auto row = [&](size_t t) { return ((b * T + t) * H + h) * D; };
          double total = 0;
          for (size_t j = 0; j <= i; ++j) total += std::exp(logit(j).get<double>());
          for (size_t j = 0; j <= i; ++j)
            for (size_t d = 0; d < D; ++d) {
              const double share = std::exp(logit(j).get<double>()) / total;
              output[row(i) + d] += share * v[row(j) + d];
              dv[row(j) + d] += share * w[row(i) + d];
            }
          for (size_t j = i + 1; j < T; ++j) EXPECT_TRUE(logit(j).is_null());
        }
    const std::vector<double> output_given = numbers(vector["output"]), dv_given = numbers(vector["gradients"]["v"]);
    for (size_t i = 0; i < v.size(); ++i) {
      ASSERT_NEAR(output[i], output_given[i], 1e-11) << vector["position"] << " " << i;
      ASSERT_NEAR(dv[i], dv_given[i], 1e-11) << vector["position"] << " " << i;
    }
    ++checked;
  }
  EXPECT_GT(checked, 20);
}

TEST(KernelVectorsTest, LogitsOfNoneAndAlibiAreWhatTheyAre) {
  for (const bool alibi : {false, true}) {
    const Json vector =
        kernel_vectors({alibi ? "alibi" : "none"},
                       {.heads = 2, .head_dim = 4, .width = 3, .vocabulary = 5, .prefix = ""})["vectors"][0];
    const auto [B, T, H, D] = sizes_of(vector);
    const std::vector<double> q = numbers(vector["inputs"]["q"]), k = numbers(vector["inputs"]["k"]);
    for (size_t b = 0; b < B; ++b)
      for (size_t h = 0; h < H; ++h)
        for (size_t i = 0; i < T; ++i)
          for (size_t j = 0; j <= i; ++j) {
            double logit = 0;
            for (size_t d = 0; d < D; ++d)
              logit += q[((b * T + i) * H + h) * D + d] * k[((b * T + j) * H + h) * D + d] / 2;
            if (alibi) logit -= (h == 0 ? 0x1p-4 : 0x1p-8) * static_cast<double>(i - j);
            EXPECT_NEAR(vector["logits"]["data"][((b * H + h) * T + i) * T + j].get<double>(), logit, 1e-14);
          }
  }
}

TEST(KernelVectorsTest, TheCommandTakesOneSpecAndRefusesWhatDoesNotGoTogether) {
  const test::Folder folder;
  const std::string path = folder.path("one.json");
  EXPECT_EQ(test::sextant({"kernel", "rope+affine", "--vectors", path}).status, 0);
  EXPECT_EQ(Json::parse(std::ifstream(path))["vectors"].size(), 1u);
  EXPECT_EQ(test::sextant({"kernel", "rop", "--vectors", path}).status, 2);
  EXPECT_EQ(test::sextant({"kernel", "rope", "--vectors", path, "--csv", folder.path("x.csv")}).status, 2);
  EXPECT_EQ(test::sextant({"kernel", "jordan(order=3)", "--vectors", path, "--head-dim", "8"}).status, 2);
  EXPECT_NE(test::sextant({"kernel", "rope", "--vectors", path + "/inside-a-file.json"}).status, 0);
}

}  // namespace
}  // namespace sextant
