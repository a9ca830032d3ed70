// What a learned position kernel does with its freedom. [position-space.md section 6] Mass says what the parameters
// allocate, energy what is realised, leave-one-out what is needed; they are meant to disagree where components cancel
// or repeat each other. Stability and resolution say what a transform costs at long range.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/attention.h"
#include "positional/response.h"
#include "positional/strategy.h"

namespace sextant {

// ---- sectors ------------------------------------------------------------------------------------------------------

struct SectorDiagnostics {
  std::string term;  // the strategy that it is a part of: several may share a sector
  std::string sector;
  int order = 0;
  double mass = 0, mass_share = 0;      // effective mass, averaged over heads, and its share of all components' sum
  double energy = 0, energy_share = 0;  // mean square over the window and heads
  double centred_energy = 0;            // after removing the window's mean, which a softmax ignores
  double cancellation = 0;              // sqrt(energy) / mass; 0 without mass
};

// Of all terms of a layer; lags 0 .. window-1.
std::vector<SectorDiagnostics> sector_diagnostics(Position& position, int64_t heads, int64_t window);
// Of a whole model: masses and energies averaged over its layers.
std::vector<SectorDiagnostics> sector_diagnostics(std::span<Position* const> layers, int64_t heads, int64_t window);

struct LeaveOneOut {
  std::string term;
  std::string sector;
  int order = 0;
  double change = 0;  // of the loss when the component is zero, in the loss's unit
};

// Sets each component to zero in all layers at once, asks for the loss, and restores it; in the order of
// sector_diagnostics.
std::vector<LeaveOneOut> leave_one_out(std::span<Position* const> layers, const std::function<double()>& loss);

// ---- fits of fixed kernels ----------------------------------------------------------------------------------------

// One column of a kernel dictionary: values over the fitting lags (and beyond, where the caller wants to extrapolate).
struct BasisColumn {
  std::string sector;
  int order = 0;
  std::vector<double> values;
};

// FJ and LC waves (cosine and sine, by frequency and order) and the affine sector over the given lags, as in pj-bias
// without damping.
std::vector<BasisColumn> pj_basis(std::span<const int64_t> lags, int64_t frequencies, int64_t jets, int64_t lc_jets,
                                  bool affine, double length_scale);

// min |B x - target|^2 + ridge |x|^2 over columns of unit norm (the coefficients are given back for the columns as they
// are), by Householder QR. All columns and the target have one length. Throws Error when they do not, or when ridge <
// 0.
std::vector<double> ridge_fit(std::span<const BasisColumn> basis, std::span<const double> target, double ridge);

// |B x - target|^2 / |target - mean|^2.
double normalised_error(std::span<const BasisColumn> basis, std::span<const double> coefficients,
                        std::span<const double> target);

struct FitLeaveOneOut {
  std::string sector;
  int order = 0;
  double change = 0;           // of the NMSE with the component's coefficients at zero
  double change_refitted = 0;  // after fitting the others again
};
std::vector<FitLeaveOneOut> fit_leave_one_out(std::span<const BasisColumn> basis, std::span<const double> target,
                                              double ridge);

// ---- transforms at long range -------------------------------------------------------------------------------------

struct StabilityRow {
  int64_t position = 0;  // the last of the positions looked at, 64 up to and with it
  double largest_query = 0, mean_query = 0, largest_key = 0, mean_key = 0;  // norms of q~, k~ for unit q, k
  double largest_logit = 0;  // |<q~_i, k~_j>| / sqrt(D), i among them, j among them and at the start
  double key_bytes = 0;      // of the cached keys up to this position, one head
};

// Norms and logits of random unit queries and keys, by position. For separable transforms.
std::vector<StabilityRow> stability(PositionStand& stand, std::span<const int64_t> positions, uint64_t seed = 1);

// The same of what a model's attention reads, over the batch's first sequence and all heads: norms of the last 64
// queries (or as many as there are) and of the last 64 keys as they are cached; the largest logit of the last query
// with all keys, of the features alone, without bias and gate; bytes of one head's keys in their own dtype.
StabilityRow stability_of(AttentionInputs inputs);

// w (P(b) - P(a)) for the light-cone phase P(d) = L asinh(d / L), and w (b - a) for the raw one: radians between two
// far lags.
struct PhaseSpan {
  double raw = 0, light_cone = 0;
};
PhaseSpan phase_span(double frequency, double length_scale, int64_t from, int64_t to);

// Hard-negative retrieval: the features of a target lag, with noise of the given standard deviation on each coordinate
// of unit-norm feature vectors, must be told by the nearest neighbour from those of lags within `delta` on either side.
// features: one vector a lag, lags consecutive. Returns the share of hits.
double retrieval_accuracy(std::span<const std::vector<double>> features, int64_t delta, double noise, int64_t trials,
                          uint64_t seed = 1);

// cos and sin of every frequency at the given lags, raw or by the light-cone chart, for the probe.
std::vector<std::vector<double>> phase_features(std::span<const int64_t> lags, int64_t frequencies, double length_scale,
                                                bool light_cone);
std::vector<std::vector<double>> phase_features(std::span<const int64_t> lags, const PhaseChart& chart);

// What the waves of a layer resolve of the last 64 lags before `length` (fewer where there are not so many).
struct Resolution {
  std::string term, sector;
  bool light_cone = false;
  int64_t from = 0, to = 0;  // the first and the last lag
  PhaseSpan span;            // of the fastest wave; `light_cone` counts where the chart is
  double hits = 0;           // retrieval_accuracy among lags within `delta`
  int64_t delta = 4;
  double noise = 0.03;
};
// Of each phase chart of each term; empty where `length` is too short for the probe.
std::vector<Resolution> resolution(const Position& position, int64_t length, uint64_t seed = 1);

}  // namespace sextant
