// Why accumulated transport extrapolates, in numbers (arXiv 2606.24975; position-space.md section 7): tools for
// experiments, on plain doubles.
//
// A route of n steps carries a key k to P k, P = M_i ... M_{i-n+1}. With steps drawn independently and ||E[M]|| < 1,
// the mean score decays as ||E[M]||^n, so that routes beyond a window that does not depend on the context mix; what
// that cannot prevent is that the mass of many far sources adds up.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/random.h"
#include "core/tensor.h"

namespace sextant::mechanism {

// x <- M x, x of D numbers; and M_t, the step of token t. Both are functions of their arguments alone.
using Map = std::function<void(std::span<double> x)>;
using Step = std::function<Map(int64_t t)>;

// Steps of a layer: M_t = R(-theta_t) pair by pair for angles [T, P];  I - 2 w w^T / |w|^2 for w [T, D];  I - beta_t w
// w^T / |w|^2 for w [T, D], beta [T]. The tensors are read whenever x is mapped.
Step rotation_steps(const Tensor& angles);
Step householder_steps(const Tensor& w);
Step path_steps(const Tensor& w, const Tensor& beta);
// For stylized models: angles N(0, deviation^2) for each pair; reflections along directions drawn uniformly; matrices
// from Haar's measure on O(D). Functions of (random, t) alone.
Step gaussian_rotation_steps(Random random, double deviation);
Step uniform_reflection_steps(Random random);
Step haar_steps(Random random, int64_t dim);
// The same rotation at every step: RoPE, seen as transport.
Step fixed_rotation_steps(std::vector<double> angles);
// A matrix from Haar's measure on O(D), row-major [D, D]: Gram-Schmidt of Gaussian rows. `index` tells draws apart.
std::vector<double> haar_orthogonal(const Random& random, uint64_t index, int64_t dim);

// ---- spectral gap -------------------------------------------------------------------------------------------------

// 1 - |mean of e^{i theta}|, the gap of one pair's rotations.
double spectral_gap_of_angles(std::span<const double> angles);
// 1 - ||mean of M_t||_op over the tokens [0, count), by power iteration on the mean matrix [D, D].
double spectral_gap(const Step& step, int64_t count, int64_t dim);

// ---- decoherence --------------------------------------------------------------------------------------------------

// The normalized score q^T P k / (|q| |k|) by route length: mean and standard deviation over routes. A length that no
// route has gets NaN.
struct Decoherence {
  std::vector<int64_t> lengths;
  std::vector<double> mean, deviation;
};
// Over routes that start after token 0, stride, 2 stride, ... and lie in `tokens` tokens; lengths rise.
Decoherence decoherence(const Step& step, int64_t tokens, std::span<const double> q, std::span<const double> k,
                        std::span<const int64_t> lengths, int64_t stride);
// The same from transformed features q~, k~ [T, D] of a probe that every position holds (so that <q~_i, k~_j> = q^T P
// k): for any strategy that is a feature transform.
Decoherence decoherence_of_features(const Tensor& q, const Tensor& k, double norm_product,
                                    std::span<const int64_t> lengths);

// The smallest of the curve's lengths from which on |mean| stays at or below `threshold`; -1 when it never does.
int64_t mixing_window(const Decoherence& curve, double threshold);

// The mean score of routes of up to `near` steps less the largest |mean| + deviations * deviation of longer ones: how
// far above the far scores the near ones stand. NaN when the curve has no routes on one of the sides.
double score_gap(const Decoherence& curve, int64_t near, double deviations);

// ---- far mass -----------------------------------------------------------------------------------------------------

// Softmax mass on the sources that are more than `near` tokens away: logits of one query for sources 0 .. n-1, the last
// being itself.
double far_mass(std::span<const double> logits, int64_t near);
// M / (M + K e^{2 lambda}): the least far mass of K near and M far sources with |logit| <= lambda.
double far_mass_bound(int64_t near_sources, int64_t far_sources, double lambda);

// ---- far contributions to the output ------------------------------------------------------------------------------

// The stylized model of value transport: values v_j = g + e_j with a background g ~ N(0, background^2 I) that all
// sources of a context share and e_j ~ N(0, noise^2 I); weights a_j for sources j = 0 .. n-1; contribution sum_j a_j
// P(j->n-1) v_j, or sum_j a_j v_j without transport.
struct FarModel {
  std::vector<double> weights;
  int64_t dim = 2;
  double background = 1, noise = 0;
};
// Row-major [D, D] covariance over `contexts` draws. `step(c)` gives the steps of context c; without it values stay as
// they are.
std::vector<double> far_covariance(const FarModel& model, const std::function<Step(int64_t context)>& step,
                                   int64_t contexts, const Random& random);
double trace(std::span<const double> matrix, int64_t dim);
// The same per coordinate in closed form, for independent rotations with |E e^{i theta}| = resultant (1: without
// transport) and mean angle 0: background^2 sum_jk a_j a_k resultant^|j-k| + noise^2 sum_j a_j^2
double far_variance(const FarModel& model, double resultant);

}  // namespace sextant::mechanism
