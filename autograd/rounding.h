// What rounding would do to a computation in f64: a tape whose every value and every contribution to a gradient is
// moved by a random share of what rounding to f32 may move it by (Monte Carlo arithmetic, Parker 1997; Vignes' CESTAC).
// How far the results move is what f32 can be expected to cost there, whatever the reason: cancellation, a steep
// function, a long way from input to output. An f32 code that is off by much more than that has a fault of its own.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "autograd/tape.h"
#include "core/random.h"

namespace sextant {

// What stays f64 when a function runs in f32 (sums of angles and of gates), seen from its tape: watch an f32 run.
class WideList : public Tape::Witness {
 public:
  void recorded(const char* operation, int node, const Tensor& value) override;
  void contributed(const char* operation, int input, const Tensor& before, const Tensor& gradient) override;

  void note(const std::string& operation, DType dtype) { (dtype == DType::f64 ? wide_ : narrow_).insert(operation); }
  // Of its outputs, or of what it saves besides.
  bool value(const std::string& operation) const { return wide_.contains(operation) && !narrow_.contains(operation); }
  bool saved(const std::string& operation) const { return value(operation + " (saved)"); }
  bool gradient(const std::string& operation, int input) const { return gradients_.contains({operation, input}); }

 private:
  std::set<std::string> wide_, narrow_;
  std::set<std::pair<std::string, int>> gradients_;
};

class Rounding : public Tape::Witness {
 public:
  static constexpr double f32 = 0x1p-24;  // half the distance of neighbouring f32 numbers, relative, at most

  // Numbers move by up to `unit` of their size, except where `wide` says that they would be f64. Only values and
  // gradients of `operation` when that is not empty.
  Rounding(double unit, uint64_t seed, const WideList& wide, std::string operation = "")
      : unit_(unit), random_(seed, "rounding"), wide_(wide), operation_(std::move(operation)) {}

  void recorded(const char* operation, int node, const Tensor& value) override;
  void contributed(const char* operation, int input, const Tensor& before, const Tensor& gradient) override;
  void move(const Tensor& x);  // as a value; for inputs, which no operation records

 private:
  bool concerns(const char* operation) const { return operation_.empty() || operation_ == operation; }
  double moved(double x) { return x * (1 + unit_ * (2 * random_.uniform(count_++) - 1)); }

  double unit_;
  Random random_;
  uint64_t count_ = 0;
  const WideList& wide_;
  std::string operation_;
};

}  // namespace sextant
