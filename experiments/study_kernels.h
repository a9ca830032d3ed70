// Target kernels, and PJ-bias trained on one of them: what fixed-kernel and adaptive-sector share.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "positional/response.h"

namespace sextant::study {

// A kernel b(d) of known sector and order, x = d / L, L = kernel_window.
struct KernelTarget {
  std::string name;
  std::string sector;  // "FJ", "affine", "LC"; "mixture" of several
  int order = 0;
  std::function<double(int64_t lag)> value;
};

constexpr int64_t kernel_window = 256;     // lags that are fitted, and the length scale L
constexpr int64_t kernel_beyond = 1024;    // up to here the error is also measured
constexpr int64_t kernel_frequencies = 8;  // K of the fitted grid, w_k = 10000^(-k/K)

// Phases, jets of order 1 and 2, affine, light cones of order 0 and 1, and mixtures. `angle`: radians a token; 0.1 is
// on the grid (k = 2), most others are not.
std::vector<KernelTarget> kernel_targets(double angle);

std::vector<double> values_of(const KernelTarget& target, int64_t first, int64_t last);  // lags first .. last - 1

// |fitted - target|^2 / |target - mean|^2
double normalised_error(std::span<const double> fitted, std::span<const double> target);

// [] The effective mass of all components of a pj-bias layer, averaged over heads, so that training can put a price on
// it. The layer must have all sectors.
Variable effective_mass(Tape& tape, Position& layer);

// PJ-bias of one head with all sectors, in f64.
class KernelModel {
 public:
  explicit KernelModel(uint64_t seed);

  // Steps of Adam on the normalised error over the window plus `price` times the effective mass of all components; the
  // learning rate falls from 0.03 by a cosine.
  void train(std::span<const double> target, int64_t steps, double price = 0);
  std::vector<double> kernel(int64_t lags);
  std::vector<double> gates();  // FJ, affine, LC, after the sigmoid
  Position& position() { return stand_.position(); }

  static const char* spec();

 private:
  PositionStand stand_;
};

}  // namespace sextant::study
