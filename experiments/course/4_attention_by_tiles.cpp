// Lesson 4: attention backward, tile by tile.
//
//   S_ij = c <q_i, k_j> for j <= i,   P = softmax(S) row by row,   o = P v
//   dv_j = sum_i P_ij do_i,   dP_ij = <do_i, v_j>,   dS_ij = P_ij (dP_ij - <do_i, o_i>)
//   dq_i = c sum_j dS_ij k_j,   dk_j = c sum_i dS_ij q_i
//
// P has T^2 entries and is not kept. Kept is one number a row, L_i = log sum_j e^{S_ij}: any tile of P comes back from
// it as e^{S - L}. And sum_j P_ij dP_ij, which would need the whole row, is <do_i, o_i>, which does not: so the
// backward runs over tiles of queries and keys, each of which fits a cache, in any order, and only adds.
#include <sextant/autograd/attention.h>
#include <sextant/core/random.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

using namespace sextant;

constexpr int T = 7, D = 3, tile = 2;
constexpr double c = 0.5;
using Rows = double[T][D];

double dot(const double* a, const double* b) {
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

int main() {
  Rows q, k, v, o = {}, d_o, dq = {}, dk = {}, dv = {};
  double L[T];
  const Random random(1, "lesson");
  uint64_t drawn = 0;
  for (Rows* x : {&q, &k, &v, &d_o})
    for (auto& row : *x)
      for (double& number : row) number = random.normal(drawn++);

  for (int i = 0; i < T; ++i) {  // forward, the plain way
    double total = 0;
    for (int j = 0; j <= i; ++j) total += std::exp(c * dot(q[i], k[j]));
    L[i] = std::log(total);
    for (int j = 0; j <= i; ++j)
      for (int d = 0; d < D; ++d) o[i][d] += std::exp(c * dot(q[i], k[j]) - L[i]) * v[j][d];
  }

  for (int J = 0; J < T; J += tile)    // a tile of keys
    for (int I = J; I < T; I += tile)  // a tile of queries that see it
      for (int i = I; i < std::min(I + tile, T); ++i)
        for (int j = J; j < std::min(J + tile, i + 1); ++j) {
          const double P = std::exp(c * dot(q[i], k[j]) - L[i]);
          const double dS = P * (dot(d_o[i], v[j]) - dot(d_o[i], o[i]));
          for (int d = 0; d < D; ++d)
            dv[j][d] += P * d_o[i][d], dq[i][d] += c * dS * k[j][d], dk[j][d] += c * dS * q[i][d];
        }

  Tape tape;
  const auto variable = [&](Rows& x) { return tape.variable(Tensor::wrap(x, {1, T, 1, D}, DType::f64)); };
  const Variable tq = variable(q), tk = variable(k), tv = variable(v);
  tape.backward(attention({tq, tk, tv, {}, {}, c}), Tensor::wrap(d_o, {1, T, 1, D}, DType::f64));
  double worst = 0;
  for (const auto& [mine, theirs] : {std::pair{&dq, tq}, {&dk, tk}, {&dv, tv}})
    for (int i = 0; i < T; ++i)
      for (int d = 0; d < D; ++d) worst = std::max(worst, std::abs((*mine)[i][d] - theirs.gradient().flat(i * D + d)));
  std::printf("dq, dk, dv of %d tokens by tiles of %d: worst difference from the library's fused attention %.1e\n", T,
              tile, worst);
  std::puts("Try: leave <do_i, o_i> out. Which of the three gradients stays right?");
  return worst < 1e-13 ? 0 : 1;
}
