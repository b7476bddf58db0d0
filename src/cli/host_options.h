// SPDX-License-Identifier: Apache-2.0
// The options of `normjit run` that say on what a kernel runs: a GPU, or the CPU in its place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/device.h"
#include "normjit/plan.h"
#include "normjit/result.h"

namespace normjit::cli {

// How a kernel is emulated on the CPU.
struct HostOptions {
  DeviceProfile device;                        // the GPU whose kernel it is
  std::vector<std::uint64_t> schedules = {0};  // seeds of simt::schedule_of(); one launch each
  std::optional<bool> checks = {};             // of the kernel's accesses; none: on where that is affordable
  std::optional<Plan> plan = {};               // none: the planner's choice
  std::string keep_directory = {};             // for the kernel's source and library; empty: they are removed
};

// The CUDA ordinal in the text of --device, or nothing where that is "host". BadArgument for anything else.
Result<std::optional<int>> parse_device(std::string_view text);

// The seeds in a comma-separated list. BadArgument for an empty list or word and for what is no number.
Result<std::vector<std::uint64_t>> parse_schedules(std::string_view list);

// A line for a shell that repeats `command`, the words of a command line, under these schedules instead of
// its own, with the templates of `template_directory` where that is not empty.
std::string replay_command(const std::vector<std::string>& command,
                           const std::vector<std::uint64_t>& schedules,
                           const std::string& template_directory);

}  // namespace normjit::cli
