// Wrong gradients on purpose: an audit that cannot fail says nothing. A Fault spoils what one operation contributes to
// the gradient of one of its inputs, in the way that hand-written backwards are usually wrong.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "autograd/gradient_check.h"
#include "autograd/tape.h"

namespace sextant {

enum class FaultKind {
  dropped_term,    // the contribution is missing
  wrong_sign,      // times -1
  missing_factor,  // times 1/2
  off_by_one,  // entry i holds what belongs to i - 1 along the last dimension longer than 1, the first of each row 0
  forgotten_accumulation,  // overwrites what other operations contributed before
  transposed_product,      // the last two dimensions (longer than 1) hold the numbers of their transpose
  wrong_axis,  // every entry holds the sum along the last dimension longer than 1: reduced over an axis that should
               // have stayed
};
constexpr std::array<FaultKind, 7> fault_kinds = {
    FaultKind::dropped_term,           FaultKind::wrong_sign,         FaultKind::missing_factor, FaultKind::off_by_one,
    FaultKind::forgotten_accumulation, FaultKind::transposed_product, FaultKind::wrong_axis};
const char* name_of(FaultKind kind);  // "dropped term", "wrong sign", ...

// `contribution`, row-major of the given sizes, as the fault leaves it; unchanged where the kind does not apply.
std::vector<double> spoiled(FaultKind kind, std::vector<double> contribution, const Shape& shape);

class Fault : public Tape::Witness {
 public:
  Fault(std::string operation, int input, FaultKind kind)
      : operation_(std::move(operation)), input_(input), kind_(kind) {}

  void contributed(const char* operation, int input, const Tensor& before, const Tensor& gradient) override;

  const std::string& operation() const { return operation_; }
  int input() const { return input_; }
  FaultKind kind() const { return kind_; }
  std::string text() const;  // "wrong sign in linear, input 1"
  // Whether it has changed any number so far: a transposed vector, or the reduction of one entry, is no fault.
  bool changed_anything() const { return changed_anything_; }

  // The function with this fault in the backward of every such operation it records. The fault must outlive it.
  TapeFunction in(const TapeFunction& function);

 private:
  std::string operation_;
  int input_;
  FaultKind kind_;
  bool changed_anything_ = false;
};

// Notes which operations contribute to the gradients of which of their inputs.
class ContributionList : public Tape::Witness {
 public:
  void contributed(const char* operation, int input, const Tensor& before, const Tensor& gradient) override;
  const std::vector<std::pair<std::string, int>>& all() const { return all_; }  // each once, in order of backward

 private:
  std::vector<std::pair<std::string, int>> all_;
};

// f(x) together with every value on its tape, inputs included, in one long row: then whatever an operation reads has a
// gradient already when the operation contributes, and one that overwrites where it should add is wrong. Values that
// are not finite (masks) are left out.
TapeFunction with_every_value_used_again(const TapeFunction& function);

}  // namespace sextant
