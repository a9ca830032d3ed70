// An oracle for angles: 113-bit arithmetic from the compiler, with elementary functions by their power series. It
// shares no formula with the library, which reduces in turns and corrects double's cosine.
#pragma once

#include <cstdint>

namespace sextant::quad {

using Quad = __float128;

inline Quad absolute(Quad x) {
  return x < 0 ? -x : x;
}

// sum of x^n / n!, after halving x until it is small and squaring the result back
inline Quad exp(Quad x) {
  int halvings = 0;
  for (; absolute(x) > Quad(0.125); x /= 2) ++halvings;
  Quad term = 1, sum = 1;
  for (int n = 1; n < 40; ++n) {
    term *= x / n;
    sum += term;
  }
  for (; halvings > 0; --halvings) sum *= sum;
  return sum;
}

// ln x = m ln 2 + 2 artanh((y-1)/(y+1)), y = x / 2^m
inline Quad artanh(Quad z) {
  Quad power = z, sum = 0;
  for (int n = 1; n < 160; n += 2) {
    sum += power / n;
    power *= z * z;
  }
  return sum;
}
inline Quad log(Quad x) {
  int m = 0;
  for (; x > Quad(1.5); x /= 2) ++m;
  for (; x < Quad(0.75); x *= 2) --m;
  const Quad ln2 = 2 * artanh(Quad(1) / 3);
  return m * ln2 + 2 * artanh((x - 1) / (x + 1));
}

// pi = 16 arctan(1/5) - 4 arctan(1/239) (Machin)
inline Quad arctan(Quad z) {
  Quad power = z, sum = 0;
  for (int n = 1; n < 120; n += 2) {
    sum += (n % 4 == 1 ? power : -power) / n;
    power *= z * z;
  }
  return sum;
}
inline Quad pi() {
  static const Quad value = 16 * arctan(Quad(1) / 5) - 4 * arctan(Quad(1) / 239);
  return value;
}

// sqrt x, by Newton's iteration
inline Quad root(Quad x) {
  Quad y = x > 1 ? x : Quad(1);
  for (int n = 0; n < 400; ++n) {
    const Quad next = (y + x / y) / 2;
    if (next >= y) break;
    y = next;
  }
  return y;
}

inline Quad reduced(Quad angle) {
  const Quad turn = 2 * pi();
  const int64_t turns = static_cast<int64_t>(angle / turn + (angle < 0 ? Quad(-0.5) : Quad(0.5)));
  return angle - turn * turns;
}
inline Quad sin(Quad angle) {
  const Quad x = reduced(angle);
  Quad term = x, sum = x;
  for (int n = 2; n < 60; n += 2) {
    term *= -x * x / (n * (n + 1));
    sum += term;
  }
  return sum;
}
inline Quad cos(Quad angle) {
  const Quad x = reduced(angle);
  Quad term = 1, sum = 1;
  for (int n = 1; n < 60; n += 2) {
    term *= -x * x / (n * (n + 1));
    sum += term;
  }
  return sum;
}

}  // namespace sextant::quad
