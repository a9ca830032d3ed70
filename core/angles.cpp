#include "core/angles.h"

#include <algorithm>

#include "core/cpu.h"
#include "core/parallel.h"
#include "core/simd/angles.h"

namespace sextant::kernels {

namespace {

constexpr int64_t lane_group = 64;  // angles of one token summed by one task: a few cache lines a step
constexpr int64_t tokens_a_chunk = 64;

template <class T>
const AngleTable<T>& angle_table() {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return isa_avx512::angle_table(T{});
  if (isa() == Isa::avx2) return isa_avx2::angle_table(T{});
#endif
  return isa_plain::angle_table(T{});
}

// f(b, begin, end) over sequences and groups of the `lanes` angles that each token has.
template <class F>
void for_lane_groups(int64_t batch, int64_t lanes, F&& f) {
  const int64_t groups = (lanes + lane_group - 1) / lane_group;
  parallel_chunks(batch * groups, [&](int64_t chunk) {
    const int64_t begin = chunk % groups * lane_group;
    f(chunk / groups, begin, std::min(lanes, begin + lane_group));
  });
}

}  // namespace

void accumulate_angles(const Tensor& steps, const Tensor& initial, const Tensor& angles) {
  require_shape(angles, steps.shape(), "accumulated angles");
  const int64_t batch = steps.size(0), length = steps.size(1), lanes = steps.size(2) * steps.size(3);
  if (initial.defined()) require_shape(initial, {batch, steps.size(2), steps.size(3)}, "the angles so far");
  dispatch(steps.dtype(), [&](auto type) {
    using T = decltype(type);
    const AngleTable<T>& table = angle_table<T>();
    for_lane_groups(batch, lanes, [&](int64_t b, int64_t begin, int64_t end) {
      const T* step = steps.data<T>() + b * length * lanes + begin;
      double* to = angles.data<double>() + b * length * lanes + begin;
      double sums[lane_group] = {};
      if (initial.defined()) std::copy_n(initial.data<double>() + b * lanes + begin, end - begin, sums);
      for (int64_t t = 0; t < length; ++t) {
        table.advance(end - begin, step + t * lanes, sums);
        std::copy_n(sums, end - begin, to + t * lanes);
      }
    });
  });
}

void accumulate_angles_backward(const Tensor& dangles, const Sink& dsteps) {
  require_shape(dsteps.tensor, dangles.shape(), "the gradient of the angle steps");
  const int64_t batch = dangles.size(0), length = dangles.size(1), lanes = dangles.size(2) * dangles.size(3);
  dispatch(dsteps.tensor.dtype(), [&](auto type) {
    using T = decltype(type);
    for_lane_groups(batch, lanes, [&](int64_t b, int64_t begin, int64_t end) {
      double sums[lane_group] = {};
      for (int64_t t = length - 1; t >= 0; --t) {
        const double* from = dangles.data<double>() + (b * length + t) * lanes + begin;
        T* to = dsteps.tensor.data<T>() + (b * length + t) * lanes + begin;
        for (int64_t i = 0; i < end - begin; ++i) {
          sums[i] += from[i];
          to[i] = static_cast<T>(sums[i]) + (dsteps.accumulate ? to[i] : T(0));
        }
      }
    });
  });
}

void phasors_of(const Tensor& angles, const Tensor& phasors) {
  const int64_t tokens = angles.size(0) * angles.size(1), lanes = angles.size(2) * angles.size(3);
  require_shape(phasors, {angles.size(0), angles.size(1), angles.size(2), 2 * angles.size(3)}, "phasors");
  dispatch(phasors.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_ranges(tokens, tokens_a_chunk, [&](int64_t begin, int64_t end) {
      angle_table<T>().phasors((end - begin) * lanes, angles.data<double>() + begin * lanes,
                               phasors.data<T>() + 2 * begin * lanes);
    });
  });
}

void turn_gradient(std::span<const Turned> turned, double sign, const Sink& dangles) {
  const Tensor& sum = dangles.tensor;
  const int64_t length = sum.size(1), heads = sum.size(2), pairs = sum.size(3);
  for (const Turned& one : turned) {
    require_contiguous_rows(one.y, "turn_gradient: y");
    require_contiguous_rows(one.dy, "turn_gradient: dy");
  }
  parallel_ranges(sum.size(0) * length, tokens_a_chunk, [&](int64_t begin, int64_t end) {
    double* to = sum.data<double>();
    if (!dangles.accumulate) std::fill(to + begin * heads * pairs, to + end * heads * pairs, 0.0);
    for (const Turned& one : turned) {
      dispatch(one.y.dtype(), [&](auto type) {
        using T = decltype(type);
        const auto row = [&](const Tensor& x, int64_t token, int64_t h) {
          return x.data<T>() + token / length * x.stride(0) + token % length * x.stride(1) + h * x.stride(2);
        };
        for (int64_t token = begin; token < end; ++token)
          for (int64_t h = 0; h < heads; ++h)
            angle_table<T>().turn_gradient(pairs, row(one.y, token, h), row(one.dy, token, h), sign,
                                           to + (token * heads + h) * pairs);
      });
    }
  });
}

}  // namespace sextant::kernels
