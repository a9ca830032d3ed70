// The checkpoints that --keep leaves beside the newest one, and what they are for: the way back when that one is
// damaged.
#pragma once

#include <string>
#include <vector>

#include "core/safetensors.h"

namespace sextant {

// The paths of the kept checkpoints in a run folder, by rising step; none where there is no folder.
std::vector<std::string> kept_checkpoints(const std::string& folder);

// The checkpoint `path` of a run folder. Where it is missing or damaged the error names the newest kept one that is
// whole.
SafetensorsFile open_to_resume(const std::string& path, const std::string& folder);

}  // namespace sextant
