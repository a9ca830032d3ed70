// Plants wrong gradients (autograd/fault.h) into the backward of each operation in turn and watches whether the audit
// catches and names them. Which operations there are is seen from the tapes of all audit cases; there is no list to
// keep.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autograd/fault.h"
#include "experiments/audit.h"

namespace sextant {

struct PlantedFault {
  std::string operation;
  int input = 0;
  FaultKind kind{};
  // The simplest case that catches the fault, of those in which it changes a gradient by more than ten tolerances;
  // empty when it changes none.
  std::string entry, label;
  // In no case has it changed any contribution, so that nothing was planted: a transposed vector or matrix of equal
  // entries, an axis of one entry.
  bool harmless = false;
  bool caught = false;  // central differences over that case exceed the tolerance,
  bool placed = false;  // at an entry of an input whose gradient the fault did change,
  bool named = false;   // and of all contributions to gradients this one, operation and input, is the first suspect
  std::string text;     // what the check said
  std::vector<std::string> suspected;

  bool planted() const { return !harmless; }
};

std::vector<PlantedFault> plant_faults(const AuditSettings& settings,
                                       const std::function<void(const PlantedFault&)>& watch = {});

}  // namespace sextant
