// The functions that kernels call, each handed to the Execution that runs on the calling thread.
#pragma once

#include "simt/kernel/runtime.h"

namespace normjit::simt {

const Runtime& runtime_calls();

}  // namespace normjit::simt
