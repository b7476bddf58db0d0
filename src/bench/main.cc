// SPDX-License-Identifier: Apache-2.0
#include "bench/features.h"
#include "bench/startup.h"
#include "bench/suite.h"
#include "cli/command_line.h"

int main(int argc, char** argv) {
  normjit::cli::CommandLine line("normjit-bench times kernels and first calls against their targets.",
                                 "normjit-bench");
  normjit::bench::add_suite(line);
  normjit::bench::add_startup(line);
  normjit::bench::add_startup_step(line);
  normjit::bench::add_features(line);
  line.footer(normjit::cli::kExitCodes);
  return line.run(argc, argv);
}
