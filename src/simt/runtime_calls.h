// SPDX-License-Identifier: Apache-2.0
// The functions that kernels call, forwarded to the calling thread's Execution.
#pragma once

#include "simt/kernel/runtime.h"

namespace normjit::simt {

const Runtime& runtime_calls();

}  // namespace normjit::simt
