// What the templates know of a spec.
#pragma once

#include <vector>

#include "normjit/codegen/render.h"
#include "normjit/spec.h"

namespace normjit {

// The placeholders of a canonical spec with their values: those of kFields, and what follows from several
// fields: compute, has_weight and has_bias.
std::vector<Placeholder> spec_constants(const NormSpec& spec);

}  // namespace normjit
