// SPDX-License-Identifier: Apache-2.0
// The commands of normjit-bench, which measures normjit against its targets. Each function adds its command.
#pragma once

namespace normjit::cli {

class CommandLine;
void add_suite(CommandLine& line);
void add_startup(CommandLine& line);
// One measured step of startup, in a process of its own; prints JSON.
void add_startup_step(CommandLine& line);

}  // namespace normjit::cli
