#include "autograd/tape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/error.h"
#include "core/shape_format.h"

namespace sextant {

Tensor Variable::value() const {
  return tape_->node(index_).value;
}
bool Variable::needs_gradient() const {
  return tape_->node(index_).needs_gradient;
}
Sink Variable::sink() const {
  return tape_->sink(index_);
}
void Variable::accumulate(const Tensor& contribution) const {
  tape_->accumulate(index_, contribution);
}
Tensor Variable::gradient() const {
  return tape_->node(index_).gradient;
}

namespace {

void add_in_place(const Tensor& target, const Tensor& x) {
  dispatch(target.dtype(), [&](auto type) {
    using T = decltype(type);
    if (target.contiguous() && x.contiguous()) {
      T* sum = target.data<T>();
      const T* values = x.data<T>();
      for (int64_t i = 0, count = target.elements(); i < count; ++i) sum[i] += values[i];
    } else {
      for (int64_t i = 0, count = target.elements(); i < count; ++i) target.set_flat(i, target.flat(i) + x.flat(i));
    }
  });
}

}  // namespace

Variable Tape::constant(const Tensor& value, const char* name) {
  const int index = append(name, {}, {&value, 1}, {});
  return {this, index};
}

Variable Tape::variable(const Tensor& value, const char* name) {
  const Variable x = constant(value, name);
  node(x.index_).needs_gradient = recording_;
  return x;
}

Variable Tape::parameter(Parameter& parameter) {
  for (const auto& [known, index] : parameters_)
    if (known == &parameter) return {this, index};
  const Variable x = variable(parameter.value, parameter.name.c_str());
  node(x.index_).parameter = &parameter;
  node(x.index_).shared = true;
  parameters_.emplace_back(&parameter, x.index_);
  return x;
}

int Tape::append(const char* name, std::initializer_list<Variable> inputs, std::span<const Tensor> outputs,
                 std::initializer_list<Tensor> saved) {
  const int index = static_cast<int>(nodes_.size());
  bool needs_gradient = false, shared = inputs.size() > 0;
  const int first_input = static_cast<int>(inputs_.size());
  for (const Variable& input : inputs) {
    if (!input.defined()) continue;
    assert(input.tape_ == this);
    inputs_.push_back(input.index_);
    needs_gradient = needs_gradient || input.needs_gradient();
    shared = shared && node(input.index_).shared;
  }
  size_t saved_bytes = 0;
  for (const Tensor& tensor : saved) saved_bytes += tensor.bytes();
  for (const Tensor& output : outputs) {
    Node& added = nodes_.emplace_back();
    added.name = name;
    added.value = output;
    added.needs_gradient = needs_gradient && recording_;
    added.shared = shared;
    added.outputs = 0;
    added.first_input = first_input;
    added.inputs = static_cast<int>(inputs_.size()) - first_input;
  }
  Node& first = node(index);
  first.outputs = static_cast<int>(outputs.size());
  first.saved_bytes = saved_bytes;
  if (profiling_) {
    const auto now = std::chrono::steady_clock::now();
    if (!inputs.size()) {
      mark_ = now;
    } else {
      Timing& timing = profile_[name];
      ++timing.calls;
      timing.forward_seconds += std::chrono::duration<double>(now - mark_).count();
      mark_ = now;
    }
  }
  for (size_t i = 0; witness_ != nullptr && first.inputs > 0 && i < outputs.size(); ++i)
    if (!is_view(node(index + static_cast<int>(i)))) witness_->recorded(name, index + static_cast<int>(i), outputs[i]);
  if (witness_ != nullptr)
    for (const Tensor& tensor : saved) witness_->recorded(name, -1, tensor);
  return index;
}

void Tape::alias_gradient(Variable part, Variable whole, Window window, int part_number) {
  Node& target = node(part.index_);
  if (!target.needs_gradient || node(whole.index_).parameter != nullptr) return;
  target.whole = whole.index_;
  target.window = window;
  target.part = part_number;
}

// The node that stands for the operation: the first of its outputs.
int Tape::first_output(int index) const {
  while (node(index).outputs == 0) --index;
  return index;
}

// The memory for the first contribution to a node's gradient.
Tensor Tape::place_for_gradient(Node& target) {
  if (target.parameter != nullptr) return target.parameter->gradient;
  if (target.whole >= 0) {
    Node& operation = node(first_output(static_cast<int>(&target - nodes_.data())));
    if (!operation.reserved.defined())
      operation.reserved = empty(node(target.whole).value.shape(), target.value.dtype());
    return target.window(operation.reserved, target.part);
  }
  return empty(target.value.shape(), target.value.dtype());
}

Sink Tape::sink(int index) {
  Node& target = node(index);
  assert(target.needs_gradient);
  if (batch_sum_ != nullptr && target.shared) {
    contributions_.push_back(index);
    return {batch_sum_->next(target.value.shape(), target.value.dtype()), false};
  }
  if (target.gradient.defined()) {
    if (target.borrowed) {
      const Tensor own = empty(target.value.shape(), target.value.dtype());
      own.copy_from(target.gradient);
      target.gradient = own;
      target.borrowed = false;
    }
    return {target.gradient, true};
  }
  target.gradient = place_for_gradient(target);
  if (target.parameter != nullptr) {
    const bool accumulate = target.parameter->has_gradient;
    target.parameter->has_gradient = true;
    return {target.gradient, accumulate};
  }
  return {target.gradient, false};
}

void Tape::accumulate(int index, const Tensor& contribution) {
  Node& target = node(index);
  if (!target.needs_gradient) return;
  require_shape(contribution, target.value.shape(), target.name);
  const bool routed = batch_sum_ != nullptr && target.shared;
  // Operations may count on rows that are contiguous; the gradient of a transposed view is not.
  const bool rows = contribution.rank() == 0 || contribution.size(-1) <= 1 || contribution.stride(-1) == 1;
  if (!routed && rows && !target.gradient.defined() && target.parameter == nullptr && target.whole < 0) {
    target.gradient = contribution;
    target.borrowed = true;
    return;
  }
  const Sink into = sink(index);
  if (into.accumulate)
    add_in_place(into.tensor, contribution);
  else
    into.tensor.copy_from(contribution);
}

void Tape::backward(Variable loss) {
  require(loss.value().elements() == 1, "backward() starts from a loss of one element, this one ('{}') has shape {}",
          node(loss.index_).name, loss.shape());
  const Tensor one = full(arena_, loss.shape(), 1.0, loss.dtype());
  backward(loss, one);
}

void Tape::backward(Variable output, const Tensor& doutput) {
  require(node(output.index_).needs_gradient,
          "backward() from '{}', which depends on nothing that needs a gradient (or was computed under NoGrad)",
          node(output.index_).name);
  accumulate(output.index_, doutput);
  run_backward(output.index_, false);
  run_backward(output.index_, true);
}

void Tape::backward(Variable loss, BatchSum& sum) {
  require(node(loss.index_).needs_gradient && !node(loss.index_).shared,
          "backward() of a part of a batch from '{}', which does not depend on the batch", node(loss.index_).name);
  contributions_.clear();
  accumulate(loss.index_, full(arena_, loss.shape(), 1.0, loss.dtype()));
  batch_sum_ = &sum;
  run_backward(loss.index_, false);
  batch_sum_ = nullptr;
  if (!sum.finish()) return;
  for (size_t i = 0; i < contributions_.size(); ++i) accumulate(contributions_[i], sum.total(i));
  run_backward(loss.index_, true);
}

// The operations on the batch, or those on what all its sequences share. The former never need what the latter give; so
// they go first, and what is shared gets its contributions in one order whether or not they are summed in parts.
void Tape::run_backward(int from, bool shared) {
  // A later output of a multi-output operation is reached through the operation's first node.
  for (int index = first_output(from); index >= 0; --index) {
    if (node(index).shared != shared) continue;
    const size_t before = contributions_.size();
    visit(index);
    if (batch_sum_ != nullptr && contributions_.size() > before) batch_sum_->written();
  }
}

void Tape::visit(int index) {
  Node& operation = node(index);
  if (operation.function == nullptr || operation.outputs == 0) return;
  bool reached = false;
  for (int output = 0; output < operation.outputs; ++output) reached |= node(index + output).gradient.defined();
  if (!reached) return;
  doutputs_.clear();
  for (int output = 0; output < operation.outputs; ++output) {
    Node& out = node(index + output);
    if (!out.gradient.defined()) {
      out.gradient = place_for_gradient(out);
      out.gradient.zero();
    }
    doutputs_.push_back(out.gradient);
  }
  const auto start = profiling_ ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point{};
  const std::vector<Tensor> before = witness_ == nullptr ? std::vector<Tensor>{} : input_gradients(operation);
  operation.function(operation.closure, doutputs_);
  if (operation.whole >= 0) adopt_windows(operation.whole, operation.reserved);
  if (witness_ != nullptr) tell_witness(operation, before);
  if (profiling_) {
    Timing& timing = profile_[operation.name];
    timing.backward_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    timing.backward_flops += operation.flops;
  }
}

// All windows onto memory for a node's gradient are written: together they are one contribution to it.
void Tape::adopt_windows(int index, const Tensor& windows) {
  Node& whole = node(index);
  if (whole.gradient.defined() || whole.whole >= 0)
    accumulate(index, windows);
  else
    whole.gradient = windows;
}

// Copies of the gradients of an operation's inputs as they are; undefined where there is none.
std::vector<Tensor> Tape::input_gradients(const Node& operation) {
  std::vector<Tensor> copies;
  for (int i = 0; i < operation.inputs; ++i) {
    const Node& input = node(inputs_[static_cast<size_t>(operation.first_input + i)]);
    const bool kept = input.parameter != nullptr && input.parameter->has_gradient;  // of the batches before
    const Tensor gradient = kept ? input.parameter->gradient : input.gradient;
    copies.push_back(gradient.defined() ? converted(arena_, gradient, gradient.dtype()) : Tensor{});
  }
  return copies;
}

void Tape::tell_witness(const Node& operation, std::span<const Tensor> before) {
  const auto first = inputs_.begin() + operation.first_input;
  for (int i = 0; i < operation.inputs; ++i) {
    const int index = first[i];
    if (std::find(first, first + i, index) != first + i) continue;  // the same variable twice is one input
    Node& input = node(index);
    if (!input.gradient.defined()) continue;
    if (input.borrowed) {
      input.gradient = converted(arena_, input.gradient, input.gradient.dtype());
      input.borrowed = false;
    }
    witness_->contributed(operation.name, i, before[static_cast<size_t>(i)], input.gradient);
  }
}

// Whether an output's memory is that of one of its operation's inputs.
bool Tape::is_view(const Node& output) const {
  const auto range = [](const Tensor& x) {
    int64_t last = 0;
    for (int dim = 0; dim < x.rank(); ++dim) last += (std::max<int64_t>(1, x.size(dim)) - 1) * x.stride(dim);
    const char* begin =
        dispatch(x.dtype(), [&](auto type) { return reinterpret_cast<const char*>(x.data<decltype(type)>()); });
    return std::pair(begin, begin + (last + 1) * static_cast<int64_t>(size_of(x.dtype())));
  };
  const auto [begin, end] = range(output.value);
  for (int i = 0; i < output.inputs; ++i) {
    const auto [input_begin, input_end] = range(node(inputs_[static_cast<size_t>(output.first_input + i)]).value);
    if (begin < input_end && input_begin < end) return true;
  }
  return false;
}

void Tape::reset() {
  nodes_.clear();
  inputs_.clear();
  parameters_.clear();
  arena_.reset();
  if (profiling_) mark_ = std::chrono::steady_clock::now();
}

void Tape::set_profiling(bool on) {
  profiling_ = on;
  mark_ = std::chrono::steady_clock::now();
}

void Tape::add_flops(double forward, double backward) {
  if (!profiling_ || nodes_.empty()) return;
  Node& operation = node(first_output(static_cast<int>(nodes_.size()) - 1));
  profile_[operation.name].forward_flops += forward;
  operation.flops = backward;
}

std::string Tape::first_nonfinite() const {
  for (const Node& candidate : nodes_) {
    if (all_finite(candidate.value)) continue;
    bool inputs_finite = true;
    for (int i = 0; i < candidate.inputs; ++i)
      inputs_finite = inputs_finite && all_finite(node(inputs_[static_cast<size_t>(candidate.first_input + i)]).value);
    if (inputs_finite) return candidate.name;
  }
  return {};
}

std::vector<Tape::Row> Tape::rows() const {
  std::vector<Row> table;
  for (size_t index = 0; index < nodes_.size(); ++index) {
    const Node& row = nodes_[index];
    const auto begin = inputs_.begin() + row.first_input;
    table.push_back({static_cast<int>(index),
                     row.name,
                     row.value.shape().text(),
                     std::vector<int>(begin, begin + row.inputs),
                     {},
                     row.value.bytes(),
                     row.saved_bytes,
                     row.gradient.defined() ? std::sqrt(sum_of_squares(row.gradient)) : -1.0});
    for (const int input : table.back().inputs) {
      std::vector<int>& readers = table[static_cast<size_t>(input)].readers;
      if (readers.empty() || readers.back() != static_cast<int>(index)) readers.push_back(static_cast<int>(index));
    }
  }
  return table;
}

std::string Tape::text() const {
  fmt::memory_buffer out;
  const auto line = [&](const auto&... cells) {
    fmt::format_to(std::back_inserter(out), "{:>5}  {:<34} {:<18} {:>10} {:>8}  {:<12} {:<12} {:>11}\n", cells...);
  };
  line("node", "operation", "shape", "bytes", "saved", "inputs", "read by", "|gradient|");
  size_t bytes = 0, saved = 0;
  for (const Row& row : rows()) {
    line(row.index, row.name, row.shape, row.bytes, row.saved_bytes, fmt::format("{}", fmt::join(row.inputs, " ")),
         fmt::format("{}", fmt::join(row.readers, " ")),
         row.gradient_norm < 0 ? "-" : fmt::format("{:.6g}", row.gradient_norm));
    bytes += row.bytes;
    saved += row.saved_bytes;
  }
  fmt::format_to(std::back_inserter(out), "{} nodes, {} bytes of values, {} bytes saved besides\n", nodes_.size(),
                 bytes, saved);
  return fmt::to_string(out);
}

TapeScope::TapeScope(Tape& tape)
    : tape_(tape),
      mark_(tape.arena_.mark()),
      nodes_(tape.nodes_.size()),
      inputs_(tape.inputs_.size()),
      parameters_(tape.parameters_.size()) {}

TapeScope::~TapeScope() {
  tape_.nodes_.erase(tape_.nodes_.begin() + static_cast<std::ptrdiff_t>(nodes_), tape_.nodes_.end());
  tape_.inputs_.resize(inputs_);
  tape_.parameters_.erase(tape_.parameters_.begin() + static_cast<std::ptrdiff_t>(parameters_),
                          tape_.parameters_.end());
  tape_.arena_.rewind(mark_);
}

}  // namespace sextant
