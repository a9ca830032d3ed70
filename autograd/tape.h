// The tape: reverse-mode automatic differentiation, in the open. Running an operation appends a node (its name, its
// value, and a closure that knows its backward); recording order is execution order, and backward() walks it in
// reverse. Everything a step allocates comes from the tape's arena, which reset() takes back.
//
//   Tape tape;
//   Variable x = tape.variable(from_values(arena, {2}, {1, 2}, DType::f64));
//   Variable loss = sum(multiply(x, x));
//   tape.backward(loss);
//   x.gradient();                                  // [2, 4]
//   tape.reset();                                  // x and loss are dead now
#pragma once

#include <chrono>
#include <cstring>
#include <initializer_list>
#include <iosfwd>
#include <map>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/kernels.h"
#include "core/tensor.h"

namespace sextant {

class Tape;

// A weight: value and gradient live beyond the step, in the arena of the model that owns them.
struct Parameter {
  std::string name;
  Tensor value;
  Tensor gradient;  // same shape; holds numbers only while has_gradient
  bool has_gradient =
      false;  // false: the next backward writes over `gradient`; true: it adds to it (accumulation over batches)
  bool decay = false;  // whether AdamW's weight decay applies (matrices, not gains and biases)
};

// A light handle to a node of a tape.
class Variable {
 public:
  Variable() = default;

  bool defined() const { return tape_ != nullptr; }
  Tape& tape() const { return *tape_; }
  int index() const { return index_; }
  Tensor value() const;
  Shape shape() const { return value().shape(); }
  int64_t size(int dim) const { return value().size(dim); }
  DType dtype() const { return value().dtype(); }

  // For backward closures: whether anybody wants the gradient, and where to write it. Each call of sink() is one
  // contribution: the first one to a variable overwrites, later ones accumulate, as the Sink says.
  bool needs_gradient() const;
  Sink sink() const;
  // A contribution that exists already, of the variable's shape; the first one is taken over without a copy.
  void accumulate(const Tensor& contribution) const;

  // After backward(): dLoss/dvariable, undefined when the loss does not depend on it.
  Tensor gradient() const;

 private:
  friend class Tape;
  Variable(Tape* tape, int index) : tape_(tape), index_(index) {}
  Tape* tape_ = nullptr;
  int index_ = -1;
};

class Tape {
 public:
  Tape() = default;
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Arena& arena() { return arena_; }
  Tensor empty(const Shape& shape, DType dtype) { return sextant::empty(arena_, shape, dtype); }
  Tensor zeros(const Shape& shape, DType dtype) { return sextant::zeros(arena_, shape, dtype); }

  Variable constant(const Tensor& value, const char* name = "constant");  // no gradient
  Variable variable(const Tensor& value, const char* name = "variable");  // a leaf that wants its gradient
  Variable parameter(Parameter& parameter);                               // the same Variable each time within a step
  // Takes `x` for `parameter` until reset(), so that audits can feed parameters as inputs.
  void bind(Parameter& parameter, Variable x) { parameters_.emplace_back(&parameter, x.index_); }
  // Parameters, and what is computed from them alone, are the same for every sequence of the batch. An operation that
  // reads the batch besides its inputs (token ids) says here that its result is not.
  void depends_on_batch(Variable x) { node(x.index_).shared = false; }

  // Appends an operation. `backward`, a trivially destructible callable that takes dLoss/doutput (of the output's
  // shape, its last dimension contiguous), is kept in the arena with what it captures; not so without an input that
  // needs a gradient, or under NoGrad. `saved` lists tensors it keeps besides inputs' and output's values, for
  // printing.
  template <class Backward>
  Variable record(const char* name, std::initializer_list<Variable> inputs, const Tensor& output, Backward backward,
                  std::initializer_list<Tensor> saved = {}) {
    const int index = append(name, inputs, {&output, 1}, saved);
    keep(index, backward,
         [](void* closure, std::span<const Tensor> doutputs) { (*static_cast<Backward*>(closure))(doutputs[0]); });
    return {this, index};
  }

  Parameter* parameter_of(Variable x) const { return node(x.index_).parameter; }  // null when x is no parameter

  // The same for several outputs: `backward` takes std::span<const Tensor>, one gradient an output, zeros where none
  // came.
  template <size_t N, class Backward>
  std::array<Variable, N> record_many(const char* name, std::initializer_list<Variable> inputs,
                                      const std::array<Tensor, N>& outputs, Backward backward,
                                      std::initializer_list<Tensor> saved = {}) {
    const int index = append(name, inputs, outputs, saved);
    keep(index, backward,
         [](void* closure, std::span<const Tensor> doutputs) { (*static_cast<Backward*>(closure))(doutputs); });
    std::array<Variable, N> result;
    for (size_t i = 0; i < N; ++i) result[i] = Variable(this, index + static_cast<int>(i));
    return result;
  }

  // For operations whose outputs are disjoint windows onto their input (split): from now on, the gradient of `part` is
  // written straight into the same window of the gradient of `whole`. `window` must give the same window of a tensor of
  // whole's shape each time.
  using Window = Tensor (*)(const Tensor& whole, int part);
  // The operation's own backward then has nothing to do. Ignored when `whole` is a parameter.
  void alias_gradient(Variable part, Variable whole, Window window, int part_number);

  // dLoss/d everything, for a one-element loss; or the product of a given output gradient with the Jacobian.
  void backward(Variable loss);
  void backward(Variable output, const Tensor& doutput);

  // The sum of gradients over a batch that several tapes work off in parts: one after another, or on several machines.
  // Every part contributes in the same order tensors of the same shapes, which is the order of backward: what the
  // operations on the batch add to the gradients of what is the same for all of it.
  class BatchSum {
   public:
    virtual ~BatchSum() = default;
    virtual Tensor next(const Shape& shape, DType dtype) = 0;  // where this part's next contribution will be written
    virtual void written() = 0;                                // all that next() has given so far is
    virtual bool finish() = 0;                      // whether this was the last part; then the sums are there
    virtual Tensor total(size_t contribution) = 0;  // of all parts, by order
  };
  // The same for one part of a batch. Parameters get their gradients with the last part; they are the bits that one
  // tape with the whole batch gives.
  void backward(Variable loss, BatchSum& sum);

  // Forgets everything of the step and takes its memory back.
  void reset();

  // The node of that number, as rows() counts them.
  Variable at(int index) {
    assert(index >= 0 && index < size());
    return {this, index};
  }

  // For checks that look on and interfere (autograd/fault.h, autograd/rounding.h). null: nobody.
  class Witness {
   public:
    virtual ~Witness() = default;
    // An operation has been recorded: once for each of its outputs that has memory of its own (no view of an input),
    // and with node -1 for each tensor it saves besides. What is written into `value` counts.
    virtual void recorded(const char* operation, int node, const Tensor& value) {
      (void)operation, (void)node, (void)value;
    }
    // The backward of an operation has run: once for each of its inputs that has a gradient. `input` counts the
    // operation's defined inputs from 0; `before` is the input's gradient without this operation's contribution
    // (undefined: none), `gradient` with it; what is written there counts.
    virtual void contributed(const char* operation, int input, const Tensor& before, const Tensor& gradient) {
      (void)operation, (void)input, (void)before, (void)gradient;
    }
  };
  void set_witness(Witness* witness) { witness_ = witness; }

  // How many equal groups of rows (sequences) sums over rows are split into, see core/kernels.h; 1 unless the model
  // sets it.
  void set_leaves(int64_t leaves) { leaves_ = leaves; }
  int64_t leaves_for(int64_t rows) const { return leaves_ > 0 && rows % leaves_ == 0 ? leaves_ : 1; }

  bool recording() const { return recording_; }
  int64_t size() const { return static_cast<int64_t>(nodes_.size()); }

  // The first operation, in order of execution, whose output holds a NaN or infinity while its inputs do not; empty
  // when there is none.
  std::string first_nonfinite() const;

  // A table of the step: operation, shape, bytes, kept bytes, inputs, readers, gradient norm (after backward).
  std::string text() const;
  struct Row {
    int index;
    std::string name, shape;
    std::vector<int> inputs, readers;  // by number; readers are the nodes that have this one as an input
    size_t bytes, saved_bytes;
    double gradient_norm;  // -1 when it has none
  };
  std::vector<Row> rows() const;

  // Where the time goes: with profiling on, the time between two records belongs to the second one's operation.
  struct Timing {
    int64_t calls = 0;
    double forward_seconds = 0, backward_seconds = 0, forward_flops = 0, backward_flops = 0;
  };
  void set_profiling(bool on);
  void add_flops(double forward, double backward);  // called by an operation right after its record()
  const std::map<std::string, Timing>& profile() const { return profile_; }
  void clear_profile() { profile_.clear(); }

 private:
  friend class Variable;
  friend class NoGrad;
  friend class TapeScope;

  using BackwardFunction = void (*)(void* closure, std::span<const Tensor> doutputs);
  struct Node {
    const char* name = "";
    Tensor value;
    Tensor gradient;
    bool borrowed = false;  // the gradient's memory belongs to somebody else: copy before adding to it
    bool needs_gradient = false;
    bool shared = false;  // by all sequences of the batch: made of parameters alone
    int outputs = 1;      // on the first node of an operation; 0 on its further outputs
    int first_input = 0, inputs = 0;
    size_t saved_bytes = 0;
    BackwardFunction function = nullptr;
    void* closure = nullptr;
    Parameter* parameter = nullptr;
    double flops = 0;  // of its backward
    // Of which node's gradient this one's is a window, and (on the first output) the memory for that gradient.
    int whole = -1, part = 0;
    Window window = nullptr;
    Tensor reserved;
  };

  int append(const char* name, std::initializer_list<Variable> inputs, std::span<const Tensor> outputs,
             std::initializer_list<Tensor> saved);
  template <class Backward>
  void keep(int index, const Backward& backward, BackwardFunction function) {
    static_assert(std::is_trivially_destructible_v<Backward>,
                  "a backward closure lives in the arena and is never destroyed");
    Node& node = nodes_[static_cast<size_t>(index)];
    if (!node.needs_gradient) return;
    node.closure = new (arena_.allocate(sizeof(Backward))) Backward(backward);
    node.function = function;
  }
  Node& node(int index) { return nodes_[static_cast<size_t>(index)]; }
  const Node& node(int index) const { return nodes_[static_cast<size_t>(index)]; }
  Tensor place_for_gradient(Node& target);
  Sink sink(int index);
  void accumulate(int index, const Tensor& contribution);
  void run_backward(int from, bool shared);
  void visit(int index);
  void adopt_windows(int index, const Tensor& windows);
  std::vector<Tensor> input_gradients(const Node& operation);
  void tell_witness(const Node& operation, std::span<const Tensor> before);
  bool is_view(const Node& output) const;
  int first_output(int index) const;

  Arena arena_;
  std::vector<Node> nodes_;
  std::vector<int> inputs_;
  std::vector<std::pair<Parameter*, int>> parameters_;
  std::vector<Tensor> doutputs_;
  int64_t leaves_ = 1;
  Witness* witness_ = nullptr;
  BatchSum* batch_sum_ = nullptr;   // while operations on a part of the batch run backward
  std::vector<int> contributions_;  // to which nodes it was handed contributions
  bool recording_ = true;
  bool profiling_ = false;
  std::chrono::steady_clock::time_point mark_;
  std::map<std::string, Timing> profile_;
};

// While it lives nothing is recorded for backward.
class NoGrad {
 public:
  explicit NoGrad(Tape& tape) : tape_(tape), before_(tape.recording_) { tape.recording_ = false; }
  ~NoGrad() { tape_.recording_ = before_; }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  Tape& tape_;
  bool before_;
};

// Gives back, when it ends, the nodes and memory that were taken while it lived: for evaluation in pieces.
class TapeScope {
 public:
  explicit TapeScope(Tape& tape);
  ~TapeScope();
  TapeScope(const TapeScope&) = delete;
  TapeScope& operator=(const TapeScope&) = delete;

 private:
  Tape& tape_;
  Arena::Mark mark_;
  size_t nodes_, inputs_, parameters_;
};

}  // namespace sextant
