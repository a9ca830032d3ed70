#include "nn/gradient_sum.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "core/parallel.h"

namespace sextant {

namespace {

constexpr int64_t bucket_bytes = int64_t{1} << 19;

void add(const Tensor& from, const Tensor& into, int64_t count) {
  dispatch(into.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = from.data<T>();
    T* sum = into.data<T>();
    parallel_ranges(count, int64_t{1} << 15, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sum[i] += x[i];
    });
  });
}

}  // namespace

GradientSum::GradientSum(Communicator& ranks, int64_t sequences, int64_t parts) : ranks_(ranks) {
  require(parts >= 1 && parts <= sequences, "{} sequences cannot be worked off in {} parts", sequences, parts);
  plan({0, sequences}, parts);
  parts_.back().last = true;
  if (ranks_.size() > 1) thread_ = std::thread([this] { communicate(); });
}

GradientSum::~GradientSum() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void GradientSum::plan(TreePiece sequences, int64_t parts) {
  if (parts <= 1 || sequences.leaves == 1) {
    parts_.push_back({sequences, 0, false});
    return;
  }
  const int64_t left = tree_left(sequences.leaves);
  plan({sequences.first, left}, (parts + 1) / 2);
  plan({sequences.first + left, sequences.leaves - left}, (parts + 1) / 2);
  ++parts_.back().merges;
}

void GradientSum::begin(const Part& part, std::span<const double> numbers) {
  part_ = part;
  position_ = complete_ = 0;
  if (part.last) {
    const std::lock_guard lock(mutex_);
    ready_.clear();
    summed_ = 0;
  }
  const Tensor own = next({static_cast<int64_t>(numbers.size())}, DType::f64);
  std::ranges::copy(numbers, own.data<double>());
}

std::span<const double> GradientSum::numbers() {
  const Tensor own = at(0, 0);
  return {own.data<double>(), static_cast<size_t>(own.elements())};
}

void GradientSum::add_slot(const Shape& shape, DType dtype) {
  const int64_t count = shape.elements();
  // The first bucket holds the numbers alone.
  if (slots_.size() <= 1 || buckets_.back().dtype != dtype || buckets_.back().used + count > buckets_.back().capacity) {
    const int64_t whole = slots_.empty() ? count : bucket_bytes / static_cast<int64_t>(size_of(dtype));
    buckets_.push_back({dtype, std::max(whole, count), 0, {}});
  }
  slots_.push_back({buckets_.size() - 1, buckets_.back().used, shape});
  buckets_.back().used += count;
}

Tensor GradientSum::level_of(Bucket& bucket, size_t level) {
  while (bucket.levels.size() <= level) bucket.levels.push_back(empty(memory_, {bucket.capacity}, bucket.dtype));
  return bucket.levels[level];
}

Tensor GradientSum::at(size_t slot, size_t level) {
  const Slot& place = slots_[slot];
  return level_of(buckets_[place.bucket], level).slice(0, place.offset, place.shape.elements()).reshape(place.shape);
}

Tensor GradientSum::next(const Shape& shape, DType dtype) {
  if (position_ == slots_.size() && !laid_out_) add_slot(shape, dtype);
  require(position_ < slots_.size(), "a part makes more contributions to the gradient than the {} of the one before it",
          slots_.size());
  const Slot& place = slots_[position_];
  require(
      place.shape == shape && buckets_[place.bucket].dtype == dtype,
      "contribution {} to the gradient of a part has shape {}, that of the part before had {}: every part must record "
      "the same operations",
      position_, shape.text(), place.shape.text());
  return at(position_++, level_);
}

void GradientSum::merge(Bucket& bucket, size_t level) {
  add(bucket.levels[level], bucket.levels[level - 1], bucket.used);
}

void GradientSum::complete() {
  Bucket& bucket = buckets_[complete_++];
  for (size_t level = level_; level > 0; --level) merge(bucket, level);
  if (ranks_.size() == 1) return;
  {
    const std::lock_guard lock(mutex_);
    ready_.push_back(bucket.levels[0].slice(0, 0, bucket.used));
  }
  changed_.notify_all();
}

void GradientSum::written() {
  if (!part_.last) return;
  // The bucket of the latest contribution may take more.
  while (complete_ < slots_[position_ - 1].bucket) complete();
}

bool GradientSum::finish() {
  laid_out_ = true;
  require(position_ == slots_.size(), "a part made {} contributions to the gradient, the one before it {}", position_,
          slots_.size());
  if (!part_.last) {
    for (int i = 0; i < part_.merges; ++i, --level_)
      for (Bucket& bucket : buckets_) merge(bucket, level_);
    ++level_;
    return false;
  }
  while (complete_ < buckets_.size()) complete();
  level_ = 0;
  if (ranks_.size() > 1) wait_for_ranks();
  return true;
}

void GradientSum::communicate() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || summed_ < ready_.size(); });
    if (stop_) return;
    const Tensor bucket = ready_[summed_];
    lock.unlock();
    dispatch(bucket.dtype(), [&](auto type) {
      using T = decltype(type);
      sum_over_ranks<T>(ranks_, bucket.span<T>());
    });
    lock.lock();
    ++summed_;
    changed_.notify_all();
  }
}

void GradientSum::wait_for_ranks() {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return summed_ == buckets_.size(); });
  waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace sextant
