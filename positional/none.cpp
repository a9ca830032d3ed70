// No position at all: the model knows the order of its tokens only through the causal mask. The baseline of every
// table.
#include "positional/strategy.h"

namespace sextant {

namespace {

class None : public Term {};

const RegisterStrategy register_none({
    .name = "none",
    .summary = "no position encoding; order is known by the causal mask alone",
    .keys = {},
    .examples = {"none"},
    .make = [](const TermSpec&, const PositionSettings&) -> std::unique_ptr<Term> { return std::make_unique<None>(); },
});

}  // namespace

}  // namespace sextant
