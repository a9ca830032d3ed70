#include "positional/phase.h"

#include <cmath>

#include "core/parallel.h"

namespace sextant {

namespace {

constexpr DoubleDouble two_pi{0x1.921fb54442d18p+2, 0x1.1a62633145c07p-52};

// The sum and what rounding took from it (Knuth).
DoubleDouble two_sum(double a, double b) {
  const double sum = a + b, b_part = sum - a;
  return {sum, (a - (sum - b_part)) + (b - b_part)};
}
// The same for |a| >= |b|.
DoubleDouble quick_two_sum(double a, double b) {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}
DoubleDouble two_product(double a, double b) {
  const double product = a * b;
  return {product, std::fma(a, b, -product)};
}

}  // namespace

DoubleDouble operator+(DoubleDouble a, DoubleDouble b) {
  const DoubleDouble high = two_sum(a.high, b.high), low = two_sum(a.low, b.low);
  const DoubleDouble sum = quick_two_sum(high.high, high.low + low.high);
  return quick_two_sum(sum.high, sum.low + low.low);
}
DoubleDouble operator-(DoubleDouble a, DoubleDouble b) {
  return a + DoubleDouble{-b.high, -b.low};
}
DoubleDouble operator*(DoubleDouble a, DoubleDouble b) {
  const DoubleDouble product = two_product(a.high, b.high);
  return quick_two_sum(product.high, product.low + (a.high * b.low + a.low * b.high));
}
DoubleDouble operator/(DoubleDouble a, DoubleDouble b) {
  const double first = a.high / b.high;
  const DoubleDouble rest = a - b * DoubleDouble{first};
  const double second = rest.high / b.high;
  const DoubleDouble rest2 = rest - b * DoubleDouble{second};
  return quick_two_sum(first, second) + DoubleDouble{rest2.high / b.high};
}

DoubleDouble integer_power(DoubleDouble x, int64_t exponent) {
  DoubleDouble result{1.0};
  for (; exponent > 0; exponent /= 2, x = x * x)
    if (exponent % 2 == 1) result = result * x;
  return result;
}

DoubleDouble nth_root(DoubleDouble x, int64_t n) {
  // One step of Newton's iteration from the root in double doubles its digits: y + y (x / y^n - 1) / n. A second one
  // mends what little the first leaves where n is large.
  DoubleDouble y{std::pow(x.high, 1.0 / static_cast<double>(n))};
  for (int step = 0; step < 2; ++step) {
    const DoubleDouble excess = x / integer_power(y, n) - DoubleDouble{1.0};
    y = y + y * excess / DoubleDouble{static_cast<double>(n)};
  }
  return y;
}

std::vector<DoubleDouble> geometric_frequencies(DoubleDouble base, int64_t count) {
  const DoubleDouble ratio = DoubleDouble{1.0} / nth_root(base, count);
  std::vector<DoubleDouble> frequencies{DoubleDouble{1.0}};
  for (int64_t k = 1; k < count; ++k) frequencies.push_back(frequencies.back() * ratio);
  return frequencies;
}

DoubleDouble in_turns(DoubleDouble radians) {
  return radians / two_pi;
}

std::vector<double> values_of(const std::vector<DoubleDouble>& numbers) {
  std::vector<double> values;
  for (const DoubleDouble& number : numbers) values.push_back(number.value());
  return values;
}

Phasor phasor(int64_t position, DoubleDouble turns) {
  return phasor(DoubleDouble{static_cast<double>(position)}, turns);
}

Phasor phasor(DoubleDouble position, DoubleDouble turns) {
  const DoubleDouble product = position * turns;
  // Whole turns leave without error; what remains is at most half a turn.
  const DoubleDouble remainder = two_sum(product.high - std::nearbyint(product.high), product.low);
  const DoubleDouble angle = remainder * two_pi;
  const double cosine = std::cos(angle.high), sine = std::sin(angle.high);
  return {cosine - angle.low * sine, sine + angle.low * cosine};
}

DoubleDouble light_cone_position(double d, double length_scale) {
  const long double L = length_scale, P = L * std::asinh(d / L);
  const double high = static_cast<double>(P);
  return {high, static_cast<double>(P - high)};
}

Tensor phasor_table(Arena& arena, int64_t first, int64_t count, const std::vector<DoubleDouble>& frequencies,
                    Pairing pairing, DType dtype) {
  const int64_t pairs = static_cast<int64_t>(frequencies.size());
  std::vector<DoubleDouble> turns;
  for (const DoubleDouble& frequency : frequencies) turns.push_back(in_turns(frequency));
  const Tensor table = empty(arena, {count, 2 * pairs}, dtype);
  const int64_t cosine_step = pairing == Pairing::interleaved ? 2 : 1,
                sine_offset = pairing == Pairing::interleaved ? 1 : pairs;
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    parallel_ranges(count, 512, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        T* row = table.data<T>() + n * 2 * pairs;
        for (int64_t k = 0; k < pairs; ++k) {
          const Phasor value = phasor(first + n, turns[static_cast<size_t>(k)]);
          row[k * cosine_step] = static_cast<T>(value.cosine);
          row[k * cosine_step + sine_offset] = static_cast<T>(value.sine);
        }
      }
    });
  });
  return table;
}

Tensor shared_phasors(PositionTables& tables, const std::string& key, int64_t first, int64_t count,
                      const std::vector<DoubleDouble>& frequencies, Pairing pairing, DType dtype) {
  const auto make = [&](Arena& arena, int64_t positions) {
    return phasor_table(arena, 0, positions, frequencies, pairing, dtype);
  };
  // By reference: as a std::function of its own the lambda would go to the heap in every step.
  return tables.get(key, first + count, std::ref(make)).slice(0, first, count);
}

}  // namespace sextant
