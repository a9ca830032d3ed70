#include "autograd/rounding.h"

namespace sextant {

void WideList::recorded(const char* operation, int node, const Tensor& value) {
  note(node < 0 ? operation + std::string(" (saved)") : operation, value.dtype());
}

void WideList::contributed(const char* operation, int input, const Tensor&, const Tensor& gradient) {
  if (gradient.dtype() == DType::f64) gradients_.emplace(operation, input);
}

void Rounding::move(const Tensor& x) {
  for (int64_t i = 0; i < x.elements(); ++i) x.set_flat(i, moved(x.flat(i)));
}

void Rounding::recorded(const char* operation, int node, const Tensor& value) {
  if (concerns(operation) && !(node < 0 ? wide_.saved(operation) : wide_.value(operation))) move(value);
}

void Rounding::contributed(const char* operation, int input, const Tensor& before, const Tensor& gradient) {
  if (!concerns(operation) || wide_.gradient(operation, input)) return;
  for (int64_t i = 0; i < gradient.elements(); ++i) {
    const double earlier = before.defined() ? before.flat(i) : 0.0;
    gradient.set_flat(i, earlier + moved(gradient.flat(i) - earlier));
  }
}

}  // namespace sextant
