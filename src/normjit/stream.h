// SPDX-License-Identifier: Apache-2.0
// The stream that a launch goes to. No CUDA header is included.
#pragma once

struct CUstream_st;

namespace normjit {

// A CUstream or cudaStream_t; null is the legacy default stream.
using Stream = CUstream_st*;

}  // namespace normjit
