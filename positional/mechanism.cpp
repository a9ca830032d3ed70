#include "positional/mechanism.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace sextant::mechanism {

namespace {

void rotate(std::span<double> x, size_t pair, double angle) {
  const double c = std::cos(angle), s = std::sin(angle), x0 = x[2 * pair], x1 = x[2 * pair + 1];
  x[2 * pair] = c * x0 + s * x1;  // R(-angle)
  x[2 * pair + 1] = c * x1 - s * x0;
}

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// x <- x - strength w <w, x> / <w, w>, w row t
void shrink(const Tensor& w, int64_t t, double strength, std::span<double> x) {
  double along = 0, square = 0;
  for (size_t d = 0; d < x.size(); ++d) {
    const double component = w.at({t, static_cast<int64_t>(d)});
    along += component * x[d];
    square += component * component;
  }
  if (square == 0) return;
  for (size_t d = 0; d < x.size(); ++d) x[d] -= strength * along / square * w.at({t, static_cast<int64_t>(d)});
}

}  // namespace

// ---- steps --------------------------------------------------------------------------------------------------------

Step rotation_steps(const Tensor& angles) {
  return [angles](int64_t t) {
    return [angles, t](std::span<double> x) {
      for (int64_t p = 0; p < angles.size(1); ++p) rotate(x, static_cast<size_t>(p), angles.at({t, p}));
    };
  };
}
Step householder_steps(const Tensor& w) {
  return [w](int64_t t) { return [w, t](std::span<double> x) { shrink(w, t, 2.0, x); }; };
}
Step path_steps(const Tensor& w, const Tensor& beta) {
  return [w, beta](int64_t t) { return [w, beta, t](std::span<double> x) { shrink(w, t, beta.at({t}), x); }; };
}

Step gaussian_rotation_steps(Random random, double deviation) {
  return [random, deviation](int64_t t) {
    return [random, deviation, t](std::span<double> x) {
      const size_t pairs = x.size() / 2;
      for (size_t p = 0; p < pairs; ++p) rotate(x, p, deviation * random.normal(static_cast<uint64_t>(t) * pairs + p));
    };
  };
}

Step uniform_reflection_steps(Random random) {
  return [random](int64_t t) {
    return [random, t](std::span<double> x) {
      std::vector<double> w(x.size());
      for (size_t d = 0; d < w.size(); ++d) w[d] = random.normal(static_cast<uint64_t>(t) * w.size() + d);
      const double strength = 2 * dot(w, x) / dot(w, w);
      for (size_t d = 0; d < w.size(); ++d) x[d] -= strength * w[d];
    };
  };
}

Step fixed_rotation_steps(std::vector<double> angles) {
  const Map map = [angles = std::move(angles)](std::span<double> x) {
    for (size_t p = 0; p < angles.size(); ++p) rotate(x, p, angles[p]);
  };
  return [map](int64_t) { return map; };
}

Step haar_steps(Random random, int64_t dim) {
  return [random, dim](int64_t t) {
    return [matrix = haar_orthogonal(random, static_cast<uint64_t>(t), dim)](std::span<double> x) {
      const std::vector<double> before(x.begin(), x.end());
      for (size_t r = 0; r < x.size(); ++r) x[r] = dot(std::span(matrix).subspan(r * x.size(), x.size()), before);
    };
  };
}

std::vector<double> haar_orthogonal(const Random& random, uint64_t index, int64_t dim) {
  const size_t size = static_cast<size_t>(dim);
  std::vector<double> rows(size * size);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = random.normal(index * size * size + i);
  for (size_t r = 0; r < size; ++r) {
    const std::span<double> row = std::span(rows).subspan(r * size, size);
    for (int pass = 0; pass < 2; ++pass)  // the second mends what rounding left of the first
      for (size_t other = 0; other < r; ++other) {
        const std::span<const double> earlier = std::span(rows).subspan(other * size, size);
        const double along = dot(row, earlier);
        for (size_t d = 0; d < size; ++d) row[d] -= along * earlier[d];
      }
    const double norm = std::sqrt(dot(row, row));
    for (double& component : row) component /= norm;
  }
  return rows;
}

// ---- spectral gap -------------------------------------------------------------------------------------------------

double spectral_gap_of_angles(std::span<const double> angles) {
  require(!angles.empty(), "the spectral gap of no angles");
  double cosine = 0, sine = 0;
  for (const double angle : angles) {
    cosine += std::cos(angle);
    sine += std::sin(angle);
  }
  return 1.0 - std::hypot(cosine, sine) / static_cast<double>(angles.size());
}

namespace {

// Largest singular value of A [D, D], by power iteration on A^T A.
double operator_norm(std::span<const double> a, size_t dim) {
  std::vector<double> v(dim), image(dim);
  for (size_t d = 0; d < dim; ++d) v[d] = 1.0 + 0.1 * Random(1, "operator norm").normal(d);
  double before = -1, norm = 0;
  for (int iteration = 0; iteration < 10000 && std::abs(norm - before) > 1e-14 * norm; ++iteration) {
    before = norm;
    const double length = std::sqrt(dot(v, v));
    if (length == 0) return 0;
    for (double& component : v) component /= length;
    for (size_t r = 0; r < dim; ++r) image[r] = dot(a.subspan(r * dim, dim), v);
    norm = std::sqrt(dot(image, image));
    std::fill(v.begin(), v.end(), 0.0);
    for (size_t r = 0; r < dim; ++r)
      for (size_t c = 0; c < dim; ++c) v[c] += a[r * dim + c] * image[r];
  }
  return norm;
}

}  // namespace

double spectral_gap(const Step& step, int64_t count, int64_t dim) {
  require(count >= 1 && dim >= 1, "the spectral gap of {} steps of dimension {}", count, dim);
  const size_t size = static_cast<size_t>(dim);
  std::vector<double> mean(size * size), column(size);
  for (int64_t t = 0; t < count; ++t) {
    const Map map = step(t);
    for (size_t c = 0; c < size; ++c) {
      std::fill(column.begin(), column.end(), 0.0);
      column[c] = 1.0;
      map(column);
      for (size_t r = 0; r < size; ++r) mean[r * size + c] += column[r] / static_cast<double>(count);
    }
  }
  return 1.0 - operator_norm(mean, size);
}

// ---- decoherence --------------------------------------------------------------------------------------------------

namespace {

// Scores of each length as they come, and their mean and deviation at the end.
class Scores {
 public:
  explicit Scores(std::span<const int64_t> lengths) : lengths_(lengths.begin(), lengths.end()) {
    require(std::is_sorted(lengths.begin(), lengths.end()) && (lengths.empty() || lengths.front() >= 0),
            "decoherence: route lengths must be given in rising order, from 0 on");
    values_.resize(lengths.size());
  }
  void add(size_t length, double score) { values_[length].push_back(score); }

  Decoherence curve() const {
    Decoherence result{lengths_, {}, {}};
    for (const std::vector<double>& scores : values_) {
      const double count = static_cast<double>(scores.size());
      double mean = 0, square = 0;
      for (const double score : scores) mean += score / count;
      for (const double score : scores) square += (score - mean) * (score - mean) / count;
      result.mean.push_back(scores.empty() ? std::numeric_limits<double>::quiet_NaN() : mean);
      result.deviation.push_back(scores.empty() ? std::numeric_limits<double>::quiet_NaN() : std::sqrt(square));
    }
    return result;
  }

 private:
  std::vector<int64_t> lengths_;
  std::vector<std::vector<double>> values_;
};

}  // namespace

Decoherence decoherence(const Step& step, int64_t tokens, std::span<const double> q, std::span<const double> k,
                        std::span<const int64_t> lengths, int64_t stride) {
  require(q.size() == k.size() && stride >= 1,
          "decoherence: q has {} numbers, k {}, stride {}; must be equal sizes and at least 1", q.size(), k.size(),
          stride);
  Scores scores(lengths);
  const double norms = std::sqrt(dot(q, q) * dot(k, k));
  std::vector<double> carried;
  for (int64_t start = 0; start < tokens; start += stride) {
    carried.assign(k.begin(), k.end());
    int64_t travelled = 0;
    for (size_t n = 0; n < lengths.size() && start + lengths[n] < tokens; ++n) {
      while (travelled < lengths[n]) step(start + ++travelled)(carried);
      scores.add(n, dot(q, carried) / norms);
    }
  }
  return scores.curve();
}

Decoherence decoherence_of_features(const Tensor& q, const Tensor& k, double norm_product,
                                    std::span<const int64_t> lengths) {
  Scores scores(lengths);
  Arena arena;
  const std::span<const double> queries = converted(arena, q, DType::f64).span<double>(),
                                keys = converted(arena, k, DType::f64).span<double>();
  const size_t dim = static_cast<size_t>(q.size(1));
  for (size_t n = 0; n < lengths.size(); ++n)
    for (int64_t i = lengths[n]; i < q.size(0); ++i) {
      const size_t query = static_cast<size_t>(i) * dim, key = static_cast<size_t>(i - lengths[n]) * dim;
      scores.add(n, dot(queries.subspan(query, dim), keys.subspan(key, dim)) / norm_product);
    }
  return scores.curve();
}

int64_t mixing_window(const Decoherence& curve, double threshold) {
  int64_t window = -1;
  for (size_t n = curve.lengths.size(); n-- > 0;) {
    if (!(std::abs(curve.mean[n]) <= threshold) && !std::isnan(curve.mean[n])) break;
    if (!std::isnan(curve.mean[n])) window = curve.lengths[n];
  }
  return window;
}

double score_gap(const Decoherence& curve, int64_t near, double deviations) {
  double near_sum = 0, near_count = 0, far = std::numeric_limits<double>::quiet_NaN();
  for (size_t n = 0; n < curve.lengths.size(); ++n) {
    if (std::isnan(curve.mean[n])) continue;
    if (curve.lengths[n] <= near) {
      near_sum += curve.mean[n];
      ++near_count;
    } else {
      far = std::fmax(
          far, std::abs(curve.mean[n]) + deviations * curve.deviation[n]);  // fmax passes over the NaN it starts from
    }
  }
  return near_sum / near_count - far;
}

// ---- far mass -----------------------------------------------------------------------------------------------------

double far_mass(std::span<const double> logits, int64_t near) {
  require(!logits.empty(), "the far mass of no sources");
  const double largest = *std::max_element(logits.begin(), logits.end());
  const int64_t last = static_cast<int64_t>(logits.size()) - 1;
  double far = 0, all = 0;
  for (int64_t j = 0; j <= last; ++j) {
    const double weight = std::exp(logits[static_cast<size_t>(j)] - largest);
    all += weight;
    if (last - j > near) far += weight;
  }
  return far / all;
}

double far_mass_bound(int64_t near_sources, int64_t far_sources, double lambda) {
  const double far = static_cast<double>(far_sources);
  return far_sources == 0 ? 0.0 : far / (far + static_cast<double>(near_sources) * std::exp(2 * lambda));
}

// ---- far contributions --------------------------------------------------------------------------------------------

std::vector<double> far_covariance(const FarModel& model, const std::function<Step(int64_t context)>& step,
                                   int64_t contexts, const Random& random) {
  require(contexts >= 2, "a covariance over {} contexts, must be 2 or more", contexts);
  const size_t dim = static_cast<size_t>(model.dim), sources = model.weights.size(), numbers = (sources + 1) * dim;
  std::vector<double> mean(dim), products(dim * dim), sum(dim), background(dim);
  for (int64_t context = 0; context < contexts; ++context) {
    const uint64_t origin = static_cast<uint64_t>(context) * numbers;
    const Step travel = step ? step(context) : Step{};
    std::fill(sum.begin(), sum.end(), 0.0);
    for (size_t d = 0; d < dim; ++d) background[d] = model.background * random.normal(origin + d);
    for (size_t j = 0; j < sources; ++j) {
      if (travel) travel(static_cast<int64_t>(j))(sum);  // all that came from before j takes step j
      for (size_t d = 0; d < dim; ++d)
        sum[d] += model.weights[j] * (background[d] + model.noise * random.normal(origin + (j + 1) * dim + d));
    }
    for (size_t r = 0; r < dim; ++r) {
      mean[r] += sum[r] / static_cast<double>(contexts);
      for (size_t c = 0; c < dim; ++c) products[r * dim + c] += sum[r] * sum[c] / static_cast<double>(contexts);
    }
  }
  for (size_t r = 0; r < dim; ++r)
    for (size_t c = 0; c < dim; ++c) products[r * dim + c] -= mean[r] * mean[c];
  return products;
}

double trace(std::span<const double> matrix, int64_t dim) {
  double sum = 0;
  for (int64_t d = 0; d < dim; ++d) sum += matrix[static_cast<size_t>(d * dim + d)];
  return sum;
}

double far_variance(const FarModel& model, double resultant) {
  // sum_{k < j} a_k resultant^(j-k) follows the same recursion from source to source.
  double coherent = 0, squares = 0, before = 0;
  for (const double weight : model.weights) {
    before *= resultant;
    coherent += weight * (weight + 2 * before);
    squares += weight * weight;
    before += weight;
  }
  return model.background * model.background * coherent + model.noise * model.noise * squares;
}

}  // namespace sextant::mechanism
