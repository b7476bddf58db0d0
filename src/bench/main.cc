// SPDX-License-Identifier: Apache-2.0
#include "bench/commands.h"
#include "cli/command_line.h"

int main(int argc, char** argv) {
  normjit::cli::CommandLine line("normjit-bench times kernels and first calls against their targets.",
                                 "normjit-bench");
  add_suite(line);
  add_startup(line);
  add_startup_step(line);
  line.footer(normjit::cli::kExitCodes);
  return line.run(argc, argv);
}
