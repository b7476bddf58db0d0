// As much of the cubin format as it takes to see that a cubin is what it should be.
#pragma once

#include <string_view>

namespace normjit {

// The architecture of a cubin (90 for both sm_90 and sm_90a), 0 if it is of an ELF layout newer than this
// library, or -1 if the bytes are no cubin at all.
int cubin_architecture(std::string_view bytes);

}  // namespace normjit
