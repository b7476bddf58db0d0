// From spec and plan to the source of one kernel.
#pragma once

#include <string>

#include "normjit/base/source.h"
#include "normjit/plan.h"

namespace normjit {

// A complete translation unit: spec.cuh rendered for exactly this spec and plan, then the other templates as
// they are, joined by #line directives, so that compilers name the template file. The same arguments give the
// same text. `template_directory` as in template_text. Errors: BadTemplate.
Result<Source> generate(const LayerNormSpec& spec, const Plan& plan, Arch arch,
                        const std::string& template_directory);

}  // namespace normjit
