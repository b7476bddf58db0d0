// SPDX-License-Identifier: Apache-2.0
// Runs a program of this machine.
#pragma once

#include <string>
#include <vector>

#include "normjit/result.h"

namespace normjit::simt {

// A program's file: its own name if that has a slash, else the first on PATH; empty if there is none.
std::string find_program(const std::string& name);

struct Finished {
  int exit_code = 0;   // 128 + the signal if it was killed
  std::string output;  // stdout and stderr, interleaved
};

// Runs `command`, a program's file and its arguments, without a shell, and waits for its end. NoCompiler,
// with the system's reason, if it cannot be started. Thread-safe.
Result<Finished> run_program(const std::vector<std::string>& command);

}  // namespace normjit::simt
