// SPDX-License-Identifier: Apache-2.0
// Compiling and running kernel cases on the CPU, and comparing what they write with the float64 reference.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "normjit/base/source.h"
#include "simt/host_compiler.h"
#include "tests/support/kernel_case.h"
#include "verify/problem.h"

namespace normjit::testing {

// The kernel text of each case, from the templates in a directory or the embedded ones.
Result<std::vector<Source>> sources(std::span<const KernelCase> cases,
                                    const std::string& template_directory = {});

// What the compiler prints of its version, for the keys of verdicts that are kept.
Result<std::string> version_of(const simt::HostCompiler& compiler);

// The kernel of each case, all in one library; cases with the same kernel text share it.
Result<std::vector<simt::HostKernel>> compile_batch(std::span<const KernelCase> cases);

// The inputs of the case, and poisoned outputs.
Result<oracle::Problem> make_problem(const KernelCase& c);

// Runs the kernel on a problem of the case, once, and leaves what it wrote there. What the executor says, or
// counters in the workspace that are not zero again; nothing if all is well.
std::optional<std::string> run_once(const KernelCase& c, oracle::Problem& problem,
                                    const simt::HostKernel& kernel, std::uint64_t schedule_seed);

// Runs the case `c.runs` times on fresh tensors and one workspace, the first time under the schedule of this
// seed. What is wrong, or nothing: what the executor says; the first output that is not what the reference
// says; a byte that was written where nothing belongs; counters in the workspace that are not zero again;
// bits that differ from run to run, or that depend on a NaN or infinity in another row.
std::optional<std::string> run_case(const KernelCase& c, const simt::HostKernel& kernel,
                                    std::uint64_t schedule_seed,
                                    std::chrono::milliseconds time_limit = std::chrono::seconds(60));

// Runs the cases one after the other, each once, with one workspace for all of them. What is wrong, or
// nothing.
std::optional<std::string> run_in_turn(std::span<const KernelCase> cases,
                                       std::span<const simt::HostKernel> kernels,
                                       std::uint64_t schedule_seed);

}  // namespace normjit::testing
