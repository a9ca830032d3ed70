#include "autograd/gradient_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/random.h"
#include "core/shape_format.h"

namespace sextant {

std::string GradientCheck::text() const {
  if (input < 0)
    return fmt::format("{} entries, worst relative error {:.3g}{}", entries, worst_error,
                       repeatable ? "" : ", two backward passes differ");
  return fmt::format("{} entries, worst relative error {:.3g} at input {} [{}]: analytic {:.17g}, numeric {:.17g}{}",
                     entries, worst_error, input, index, analytic, numeric,
                     repeatable ? "" : ", two backward passes differ");
}

namespace {

// The fixed weights w of <w, f(inputs)>: they make every output entry count, and differently.
Tensor output_weights(Arena& arena, const Shape& shape, DType dtype, uint64_t seed) {
  const Tensor w = empty(arena, shape, dtype);
  fill_uniform(w, Random(seed, "gradient check"), -1.0, 1.0);
  return w;
}

struct Evaluation {
  double value;      // <w, f(inputs)>
  double magnitude;  // sum |w f|: what the rounding of `value` is relative to
  std::vector<Tensor>
      gradients;  // copies in the caller's arena; undefined where the function does not depend on the input
  Tensor output;
};

Evaluation evaluate(const TapeFunction& function, std::span<const Tensor> inputs, Arena& keep, uint64_t seed,
                    bool with_gradients) {
  Tape tape;
  std::vector<Variable> variables;
  for (const Tensor& input : inputs) variables.push_back(with_gradients ? tape.variable(input) : tape.constant(input));
  const Variable output = function(tape, variables);
  const Tensor w = output_weights(tape.arena(), output.shape(), output.dtype(), seed);
  Evaluation result{0, 0, {}, {}};
  for (int64_t i = 0; i < w.elements(); ++i) {
    const double term = w.flat(i) * output.value().flat(i);
    result.value += term;
    result.magnitude += std::abs(term);
  }
  if (!with_gradients) return result;
  result.output = converted(keep, output.value(), output.dtype());
  if (output.needs_gradient()) tape.backward(output, w);
  for (const Variable& x : variables)
    result.gradients.push_back(x.gradient().defined() ? converted(keep, x.gradient(), x.dtype()) : Tensor{});
  return result;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  for (int64_t i = 0; i < a.elements(); ++i) {
    const double x = a.flat(i), y = b.flat(i);
    if (std::memcmp(&x, &y, sizeof x) != 0) return false;
  }
  return true;
}

void require_f64(std::span<const Tensor> inputs) {
  for (size_t i = 0; i < inputs.size(); ++i)
    require(inputs[i].dtype() == DType::f64,
            "gradient check of input {}, which is {}: finite differences need f64, f32 rounding hides wrong gradients",
            i, name_of(inputs[i].dtype()));
}

std::vector<Tensor> copies(std::span<const Tensor> inputs, Arena& arena) {
  std::vector<Tensor> result;
  for (const Tensor& input : inputs) result.push_back(converted(arena, input, input.dtype()));
  return result;
}

bool repeatable(const TapeFunction& function, std::span<const Tensor> inputs, const Evaluation& first, Arena& arena,
                uint64_t seed) {
  const Evaluation second = evaluate(function, inputs, arena, seed, true);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!same_bits(first.gradients[i], second.gradients[i])) return false;
  return true;
}

}  // namespace

namespace {

// One entry's derivative by a 4-point central difference, (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h: its truncation
// error is O(h^4), so that a step of 1e-3 of the scale on which f bends leaves about 1e-12 of both truncation and
// rounding.
struct Difference {
  double numeric;
  double rounding;  // what rounding alone may have done to it
};
template <class F>
Difference central_difference(F f, double h) {
  const Evaluation plus = f(h), minus = f(-h), plus2 = f(2 * h), minus2 = f(-2 * h);
  return {(8 * (plus.value - minus.value) - (plus2.value - minus2.value)) / (12 * h),
          64 * 2.2e-16 * std::max({plus.magnitude, minus.magnitude, 1e-300}) / h};
}

double error_of(double analytic, const Difference& difference, double largest) {
  if (!std::isfinite(analytic) || !std::isfinite(difference.numeric)) return INFINITY;
  const double reference = std::max({std::abs(analytic), std::abs(difference.numeric), largest, 1e-12});
  return std::max(0.0, std::abs(analytic - difference.numeric) - difference.rounding) / reference;
}

}  // namespace

GradientCheck check_gradients(const TapeFunction& function, std::span<const Tensor> inputs,
                              const GradientCheckOptions& options) {
  require_f64(inputs);
  Arena arena, scratch;
  const std::vector<Tensor> point = copies(inputs, arena);
  const Evaluation at = evaluate(function, point, arena, options.seed, true);
  GradientCheck result;
  result.repeatable = repeatable(function, point, at, arena, options.seed);
  for (size_t i = 0; i < point.size(); ++i) {
    const Tensor& x = point[i];
    const int64_t count = x.elements(), checked = std::min(count, options.entries_per_input);
    // Gradients are compared relative to the largest of their input: entries that nearly cancel are not held to their
    // own tiny size.
    double largest = 0;
    if (at.gradients[i].defined())
      for (int64_t entry = 0; entry < count; ++entry)
        largest = std::max(largest, std::abs(at.gradients[i].flat(entry)));
    const Random pick(options.seed, "entries");
    for (int64_t n = 0; n < checked; ++n) {
      const int64_t entry =
          checked == count ? n
                           : static_cast<int64_t>(pick.below(static_cast<uint64_t>(n), static_cast<uint64_t>(count)));
      const double value = x.flat(entry), analytic = at.gradients[i].defined() ? at.gradients[i].flat(entry) : 0.0;
      const auto f = [&](double offset) {
        x.set_flat(entry, value + offset);
        const Evaluation moved = evaluate(function, point, scratch, options.seed, false);
        scratch.reset();
        return moved;
      };
      // A function that bends faster than its argument's size suggests needs a smaller step; a wrong gradient agrees
      // with none.
      double h = options.step > 0 ? options.step : 1e-3 * std::max(std::abs(value), 1e-2);
      Difference difference = central_difference(f, h);
      for (int finer = 0; finer < 2 && options.step <= 0 && error_of(analytic, difference, largest) > 1e-9; ++finer) {
        const Difference next = central_difference(f, h /= 16);
        if (error_of(analytic, next, largest) < error_of(analytic, difference, largest)) difference = next;
      }
      x.set_flat(entry, value);
      const double error = error_of(analytic, difference, largest);
      ++result.entries;
      result.unconfirmed += difference.rounding > 1e-3 * std::max(std::abs(analytic), std::abs(difference.numeric)) &&
                            (analytic != 0 || difference.numeric != 0);
      if (result.input < 0 || error > result.worst_error) {
        result.worst_error = error;
        result.input = static_cast<int>(i);
        result.index = entry;
        result.analytic = analytic;
        result.numeric = difference.numeric;
      }
    }
  }
  return result;
}

GradientCheck check_directional(const TapeFunction& function, std::span<const Tensor> inputs, int directions,
                                uint64_t seed) {
  require_f64(inputs);
  Arena arena, scratch;
  const std::vector<Tensor> point = copies(inputs, arena);
  const Evaluation at = evaluate(function, point, arena, seed, true);
  GradientCheck result;
  result.repeatable = repeatable(function, point, at, arena, seed);
  for (int direction = 0; direction < directions; ++direction) {
    std::vector<Tensor> along;
    double analytic = 0, size = 0;
    for (size_t i = 0; i < point.size(); ++i) {
      along.push_back(empty(arena, point[i].shape(), DType::f64));
      fill_normal(along[i], Random(seed + static_cast<uint64_t>(direction), "direction" + std::to_string(i)), 0.0, 1.0);
      for (int64_t e = 0; e < along[i].elements(); ++e) {
        // Each entry moves by a share of its own size, for tiny and huge entries alike.
        along[i].set_flat(e, along[i].flat(e) * std::max(std::abs(point[i].flat(e)), 1e-2));
        const double term = at.gradients[i].defined() ? at.gradients[i].flat(e) * along[i].flat(e) : 0.0;
        analytic += term;
        size += term * term;
      }
    }
    const auto f = [&](double offset) {
      std::vector<Tensor> moved = copies(point, scratch);
      for (size_t i = 0; i < moved.size(); ++i)
        for (int64_t e = 0; e < moved[i].elements(); ++e)
          moved[i].set_flat(e, point[i].flat(e) + offset * along[i].flat(e));
      const Evaluation value = evaluate(function, moved, scratch, seed, false);
      scratch.reset();
      return value;
    };
    double h = 1e-3;
    Difference difference = central_difference(f, h);
    for (int finer = 0; finer < 2 && error_of(analytic, difference, std::sqrt(size)) > 1e-9; ++finer) {
      const Difference next = central_difference(f, h /= 16);
      if (error_of(analytic, next, std::sqrt(size)) < error_of(analytic, difference, std::sqrt(size)))
        difference = next;
    }
    const double error = error_of(analytic, difference, std::sqrt(size));
    ++result.entries;
    if (result.input < 0 || error > result.worst_error) {
      result.worst_error = error;
      result.input = 0;
      result.index = direction;
      result.analytic = analytic;
      result.numeric = difference.numeric;
    }
  }
  return result;
}

namespace {

// Moves the value of one node, as it is recorded, along a direction: entry by entry a random share of its own size.
class Nudge : public Tape::Witness {
 public:
  Nudge(int node, uint64_t seed) : node_(node), direction_(seed, "nudge") {}

  void recorded(const char*, int node, const Tensor& value) override {
    if (node == node_) move(value);
  }
  void move(const Tensor& value) {
    moved = true;
    double largest = 0;
    for (int64_t i = 0; i < value.elements(); ++i) largest = std::max(largest, std::abs(value.flat(i)));
    for (int64_t i = 0; i < value.elements(); ++i) {
      const double x = value.flat(i), size = std::max({std::abs(x), 1e-2 * largest, 1e-8});
      const double along = (2 * direction_.uniform(static_cast<uint64_t>(i)) - 1) * size;
      if (gradient.defined()) {
        const double term = gradient.flat(i) * along;
        analytic += term;
        squares += term * term;
      }
      value.set_flat(i, x + offset * along);
    }
  }

  double offset = 0;
  bool moved = false;
  Tensor gradient;                   // when defined, the next move adds up:
  double analytic = 0, squares = 0;  // <gradient, direction>, and the squares of its terms

 private:
  int node_;
  Random direction_;
};

Evaluation evaluate_nudged(const TapeFunction& function, std::span<const Tensor> inputs, int node, Nudge& nudge,
                           Arena& scratch, uint64_t seed) {
  scratch.reset();
  const std::vector<Tensor> point = copies(inputs, scratch);
  if (node < static_cast<int>(point.size())) nudge.move(point[static_cast<size_t>(node)]);
  return evaluate([&](Tape& tape, std::span<const Variable> x) { return tape.set_witness(&nudge), function(tape, x); },
                  point, scratch, seed, false);
}

// The rows that read `node`, and those that read views of it.
void add_contributors(const std::vector<Tape::Row>& rows, const std::vector<bool>& views, int node,
                      WrongGradient& result) {
  for (const int reader : rows[static_cast<size_t>(node)].readers) {
    const Tape::Row& row = rows[static_cast<size_t>(reader)];
    const auto place = static_cast<int>(std::ranges::find(row.inputs, node) - row.inputs.begin());
    const std::pair entry(row.name, place);
    if (std::ranges::find(result.contributors, entry) == result.contributors.end())
      result.contributors.push_back(entry);
    if (views[static_cast<size_t>(reader)]) add_contributors(rows, views, reader, result);
  }
}

}  // namespace

WrongGradient nearest_wrong_gradient(const TapeFunction& function, std::span<const Tensor> inputs, double tolerance,
                                     Tape::Witness* spoiler, uint64_t seed) {
  require_f64(inputs);
  Arena arena, scratch;
  const std::vector<Tensor> point = copies(inputs, arena);
  Tape tape;
  tape.set_witness(spoiler);
  std::vector<Variable> variables;
  for (const Tensor& input : point) variables.push_back(tape.variable(input));
  const Variable output = function(tape, variables);
  WrongGradient result;
  if (!output.needs_gradient()) return result;
  tape.backward(output, output_weights(tape.arena(), output.shape(), output.dtype(), seed));
  const std::vector<Tape::Row> rows = tape.rows();
  std::vector<bool> views(rows.size(), false);
  for (int node = output.index() - 1; node >= 0; --node) {
    if (!tape.at(node).needs_gradient() || tape.at(node).dtype() != DType::f64) continue;
    for (uint64_t direction = 0; direction < 2; ++direction) {
      Nudge nudge(node, seed + direction);
      nudge.gradient = tape.at(node).gradient();
      evaluate_nudged(function, point, node, nudge, scratch, seed);  // once without moving, for <gradient, direction>
      views[static_cast<size_t>(node)] = !nudge.moved;
      if (!nudge.moved) break;
      nudge.gradient = {};
      const auto f = [&](double offset) {
        nudge.offset = offset;
        return evaluate_nudged(function, point, node, nudge, scratch, seed);
      };
      double error = INFINITY;
      Difference difference{};
      for (double h = 1e-3; h > 1e-6 && error > 1e-9; h /= 16) {
        const Difference next = central_difference(f, h);
        const double smaller = error_of(nudge.analytic, next, std::sqrt(nudge.squares));
        if (smaller < error) error = smaller, difference = next;
      }
      // Exactly nothing came of moving it: whoever reads this node has its numbers from elsewhere, too.
      if (error <= tolerance || (difference.numeric == 0 && nudge.analytic != 0)) continue;
      result.node = node;
      result.analytic = nudge.analytic;
      result.numeric = difference.numeric;
      add_contributors(rows, views, node, result);
      return result;
    }
  }
  return result;
}

double worst_difference(const TapeFunction& a, const TapeFunction& b, std::span<const Tensor> inputs, uint64_t seed) {
  Arena arena;
  const Evaluation first = evaluate(a, inputs, arena, seed, true), second = evaluate(b, inputs, arena, seed, true);
  require(first.output.shape() == second.output.shape(), "two functions that should agree give shapes {} and {}",
          first.output.shape(), second.output.shape());
  const auto value = [](const Tensor& t, int64_t i) { return t.defined() ? t.flat(i) : 0.0; };
  const auto count_of = [](const Tensor& x, const Tensor& y) {
    return x.defined() ? x.elements() : y.defined() ? y.elements() : 0;
  };
  const auto largest_of = [&](const Tensor& x, const Tensor& y) {
    double largest = 0;
    for (int64_t i = 0; i < count_of(x, y); ++i)
      largest = std::max({largest, std::abs(value(x, i)), std::abs(value(y, i))});
    return largest;
  };
  // A gradient that is zero but for cancellation is held to the size of the others, of whose terms it is made.
  double overall = largest_of(first.output, second.output);
  for (size_t i = 0; i < inputs.size(); ++i)
    overall = std::max(overall, largest_of(first.gradients[i], second.gradients[i]));
  double worst = 0;
  const auto compare = [&](const Tensor& x, const Tensor& y) {
    const double largest = std::max({1e-12, 1e-4 * overall, largest_of(x, y)});
    for (int64_t i = 0; i < count_of(x, y); ++i) {
      const double difference = std::abs(value(x, i) - value(y, i));
      if (!(difference <= worst * largest)) worst = std::isfinite(difference) ? difference / largest : INFINITY;
    }
  };
  compare(first.output, second.output);
  for (size_t i = 0; i < inputs.size(); ++i) compare(first.gradients[i], second.gradients[i]);
  return worst;
}

namespace {
std::vector<AuditEntry>& registry() {
  static std::vector<AuditEntry> entries;
  return entries;
}
}  // namespace

const std::vector<AuditEntry>& audit_entries() {
  std::sort(registry().begin(), registry().end(), [](const AuditEntry& a, const AuditEntry& b) {
    return std::pair(a.family, a.name) < std::pair(b.family, b.name);
  });
  return registry();
}

RegisterAudit::RegisterAudit(std::string name, std::string family,
                             std::function<std::vector<AuditCase>(Arena&)> cases) {
  registry().push_back({std::move(name), std::move(family), std::move(cases)});
}

Tensor sample(Arena& arena, const Shape& shape, double scale, uint64_t seed) {
  const Tensor x = empty(arena, shape, DType::f64);
  fill_normal(x, Random(seed, "audit sample"), 0.0, scale);
  return x;
}

Tensor positive_sample(Arena& arena, const Shape& shape, double scale, uint64_t seed) {
  const Tensor x = empty(arena, shape, DType::f64);
  fill_uniform(x, Random(seed, "audit positive sample"), 0.5 * scale, 1.5 * scale);
  return x;
}

}  // namespace sextant
