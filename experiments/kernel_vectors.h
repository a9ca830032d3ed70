// Conformance vectors: a position strategy's inputs and what must come out, in f64, for people who write the same
// strategy elsewhere. The file's form: experiments/kernel_vectors.schema.json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "positional/strategy.h"

namespace sextant {

// Of each SPEC: one sequence pair of 9 tokens, longer than the `context` of 6 by default, so that what changes beyond
// the training length shows. `settings` give heads, head_dim, width, vocabulary, context and seed. Throws Error on a
// bad SPEC.
nlohmann::json kernel_vectors(const std::vector<std::string>& specs, const PositionSettings& settings);

// All examples of all registered strategies.
std::vector<std::string> registered_examples();

}  // namespace sextant
