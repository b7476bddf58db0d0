// SPDX-License-Identifier: Apache-2.0
// What a machine can do, judged by what normjit finds on it: the verdicts of doctor.
#pragma once

#include "normjit/service.h"

namespace normjit::cli {

// Whether kernels can be compiled and kept here: NoCompiler or CacheIo, else.
Result<void> can_prebuild(const Environment& found);

// Whether a process with these settings can launch kernels here: a driver and at least one GPU; in
// cached-only mode every layer can be read, and there is a layer or a cache directory; else there is a
// compiler, or the library has the generic kernels. A cache or store that fails costs time only, and is no
// error. NoDriver, NoDevice, CacheIo, NoCompiler.
Result<void> can_serve(const Environment& found, const Options& settings);

}  // namespace normjit::cli
