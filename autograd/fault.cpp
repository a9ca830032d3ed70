#include "autograd/fault.h"

#include <algorithm>
#include <cmath>

#include "autograd/elementwise.h"
#include "autograd/shaping.h"
#include "core/error.h"

namespace sextant {

const char* name_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::dropped_term:
      return "dropped term";
    case FaultKind::wrong_sign:
      return "wrong sign";
    case FaultKind::missing_factor:
      return "missing factor 2";
    case FaultKind::off_by_one:
      return "off by one";
    case FaultKind::forgotten_accumulation:
      return "forgotten accumulation";
    case FaultKind::transposed_product:
      return "transposed product";
    case FaultKind::wrong_axis:
      return "wrong reduction axis";
  }
  return "";
}

namespace {

// The last dimension longer than 1, as `length` entries `stride` apart.
struct Axis {
  int64_t length = 1, stride = 1;
};
Axis last_axis(const Shape& shape) {
  Axis axis;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    axis.length = shape[dim];
    if (axis.length != 1) return axis;
    axis.stride *= axis.length;
  }
  return axis;
}

std::vector<double> transposed(const std::vector<double>& x, int64_t rows, int64_t columns) {
  std::vector<double> result = x;
  const int64_t block = rows * columns, blocks = static_cast<int64_t>(x.size()) / block;
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        result[static_cast<size_t>(b * block + c * rows + r)] = x[static_cast<size_t>(b * block + r * columns + c)];
  return result;
}

// The last two dimensions longer than 1, whatever stands between them.
std::vector<double> transposed(const std::vector<double>& x, const Shape& shape) {
  std::vector<int64_t> sizes;
  for (int dim = shape.rank() - 1; dim >= 0; --dim)
    if (shape[dim] != 1) sizes.push_back(shape[dim]);
  return sizes.size() < 2 || x.empty() ? x : transposed(x, sizes[1], sizes[0]);
}

}  // namespace

std::vector<double> spoiled(FaultKind kind, std::vector<double> contribution, const Shape& shape) {
  const auto scaled = [&](double factor) {
    for (double& entry : contribution) entry *= factor;
    return contribution;
  };
  const int64_t row = last_axis(shape).length;
  switch (kind) {
    case FaultKind::dropped_term:
      return scaled(0.0);
    case FaultKind::wrong_sign:
      return scaled(-1.0);
    case FaultKind::missing_factor:
      return scaled(0.5);
    case FaultKind::transposed_product:
      return transposed(contribution, shape);
    case FaultKind::off_by_one:
    case FaultKind::wrong_axis:
      if (row < 2) return contribution;
      for (auto at = contribution.begin(); at != contribution.end(); at += row) {
        double sum = 0;
        for (auto entry = at; entry != at + row; ++entry) sum += *entry;
        if (kind == FaultKind::wrong_axis) {
          std::fill(at, at + row, sum);
        } else {
          std::move_backward(at, at + row - 1, at + row);
          *at = 0;
        }
      }
      return contribution;
    case FaultKind::forgotten_accumulation:
      return contribution;
  }
  return contribution;
}

void Fault::contributed(const char* operation, int input, const Tensor& before, const Tensor& gradient) {
  if (input != input_ || operation_ != operation) return;
  const auto earlier = [&](int64_t i) { return before.defined() ? before.flat(i) : 0.0; };
  std::vector<double> contribution(static_cast<size_t>(gradient.elements()));
  for (int64_t i = 0; i < gradient.elements(); ++i)
    contribution[static_cast<size_t>(i)] = gradient.flat(i) - earlier(i);
  contribution = spoiled(kind_, std::move(contribution), gradient.shape());
  const bool overwrites = kind_ == FaultKind::forgotten_accumulation;
  for (int64_t i = 0; i < gradient.elements(); ++i) {
    const double right = gradient.flat(i),
                 spoiled = (overwrites ? 0.0 : earlier(i)) + contribution[static_cast<size_t>(i)];
    if (std::abs(spoiled - right) <= 1e-14 * (std::abs(right) + std::abs(earlier(i)))) continue;  // rounding alone
    gradient.set_flat(i, spoiled);
    changed_anything_ = true;
  }
}

std::string Fault::text() const {
  return fmt::format("{} in {}, input {}", name_of(kind_), operation_, input_);
}

TapeFunction Fault::in(const TapeFunction& function) {
  return [this, function](Tape& tape, std::span<const Variable> inputs) {
    tape.set_witness(this);
    return function(tape, inputs);
  };
}

void ContributionList::contributed(const char* operation, int input, const Tensor&, const Tensor&) {
  const std::pair<std::string, int> entry(operation, input);
  if (std::find(all_.begin(), all_.end(), entry) == all_.end()) all_.push_back(entry);
}

TapeFunction with_every_value_used_again(const TapeFunction& function) {
  return [function](Tape& tape, std::span<const Variable> inputs) {
    // Turned over, so that it is no view: what reads a value is then told from what reads this row.
    const auto flat = [](Variable x) { return negate(reshape(contiguous(x), {x.value().elements()})); };
    const Variable output = function(tape, inputs);
    const int values = static_cast<int>(tape.size());
    Variable all = flat(output);
    for (int node = 0; node < values; ++node)
      if (const Variable x = tape.at(node); x.dtype() == all.dtype() && all_finite(x.value()))
        all = concatenate(all, flat(x), 0);
    return all;
  };
}

}  // namespace sextant
