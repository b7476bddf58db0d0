// SPDX-License-Identifier: Apache-2.0
// The driver's own functions for GPU tests that need memory, contexts, streams and graphs:
// CUDA(cuMemAlloc)(&to, 64).
#pragma once

#include <cuda.h>

#include "normjit/base/dynamic_library.h"

namespace normjit::testing {

// The function of this exported name in the machine's libcuda; null without one.
template <class Function>
Function* cuda_function(const char* exported_name) {
  return reinterpret_cast<Function*>(DynamicLibrary::open("libcuda.so.1").symbol(exported_name));
}

}  // namespace normjit::testing

// cuda.h is a set of macros from each name to the export of the toolkit's version (cuMemAlloc to
// cuMemAlloc_v2): spelling the argument out after they have been replaced gives the export that goes with the
// declaration.
#define NORMJIT_SPELLED(name) #name
#define CUDA(name) (::normjit::testing::cuda_function<decltype(::name)>(NORMJIT_SPELLED(name)))
