// SPDX-License-Identifier: Apache-2.0
// Runs the real programs: normjit, whose path is NORMJIT_TOOL, normjit-bench, NORMJIT_BENCH, and others.
#pragma once

#include <string>
#include <vector>

namespace normjit {

struct ToolRun {
  int status = -1;  // exit status; -1 if it did not exit by itself
  std::string out, err;
};

// Runs normjit with these arguments. Its environment is this process's without NORMJIT_*, plus `environment`
// ("NAME=value"). With `out`, its standard output is this file or device, and ToolRun::out is empty.
ToolRun run_tool(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {},
                 const std::string& out = {});
// The same of normjit-bench.
ToolRun run_bench(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {},
                  const std::string& out = {});
// The same of the program of this path.
ToolRun run_program(const std::string& program, const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment = {}, const std::string& out = {});

}  // namespace normjit
