// Tasks whose labels come from a teacher: one attention head without content scores, whose lag bias b is a known
// kernel.
//
//   x_0 .. x_{T-1}  independent, uniform over the vocabulary V
//   a_ij  = softmax over j <= i of b(i - j)
//   m_i   = sum_j a_ij onehot(x_j)                               [V]
//   y_i   drawn from softmax(sharpness m_i)
//
// A model with one attention layer that learns b (its values the one-hot token, its head sharpness times the identity)
// is the teacher itself. Since y_i depends on x alone, no predictor can have a smaller expected loss than the entropy
// of softmax(sharpness m_i), which is computed exactly for each batch: the Bayes-optimal loss, a line that a plot of
// the training can show.
//
// Kernels (PJ-RoPE, arXiv 2606.05345, section on synthetic tasks; the sectors of the scalar PJ kernel), x = d / L:
//   affine      b = -slope x                                            recency
//   phase       b = amplitude cos(w d)                                  a character: jet of order 0
//   jet-r       b = amplitude (x c e / r)^r e^{-c x} cos(w d)           a signed jet of order r, at most `amplitude`
//   light-cone  b = amplitude (d / sqrt(d^2 + L^2))^r cos(w L asinh x)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/batch.h"

namespace sextant {

struct TeacherKernel {
  enum class Sector { affine, phase, jet, light_cone };
  Sector sector = Sector::affine;
  int order = 0;               // r of jets and light cones
  double scale = 64;           // L, tokens
  double slope = 0;            // of affine
  double amplitude = 0;        // of the others
  double angle_per_token = 0;  // w, radians
  double damping = 0;          // c, of jets

  double operator()(int64_t lag) const;  // b(lag), lag >= 0
};

class SyntheticTask {
 public:
  SyntheticTask(std::string name, const TeacherKernel& kernel, int64_t vocabulary, double sharpness);

  const std::string& name() const { return name_; }
  const TeacherKernel& kernel() const { return kernel_; }
  int64_t vocabulary() const { return vocabulary_; }
  double sharpness() const { return sharpness_; }

  // inputs x and targets y, [batch, length] each, by Random(seed, "synthetic/..."): a function of (seed, step, batch,
  // length). Returns the Bayes-optimal loss of this batch, nats a token. Takes batch * length^2 / 2 additions.
  double fill(uint64_t seed, int64_t step, int64_t batch, int64_t length, Batch& out) const;

  // The teacher's distribution of y_i, every i, given one sequence of tokens: [T, V], row-major.
  std::vector<double> distribution(std::span<const int32_t> tokens) const;

  // The mean entropy of those distributions over the batch's positions, nats a token.
  double bayes_loss(const Batch& batch) const;

 private:
  void distribution(std::span<const int32_t> tokens, std::span<const double> weights, std::vector<double>& out) const;
  std::vector<double> weights(int64_t length) const;  // e^{b(d)} up to one factor

  std::string name_;
  TeacherKernel kernel_;
  int64_t vocabulary_;
  double sharpness_;
};

std::vector<std::string> synthetic_task_names();        // affine, phase, jet-1, jet-2, light-cone
SyntheticTask synthetic_task(const std::string& name);  // throws Error on an unknown name, naming all

}  // namespace sextant
