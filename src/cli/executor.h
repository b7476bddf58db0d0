// SPDX-License-Identifier: Apache-2.0
// Whatever can execute a problem. `normjit run` makes the data, hands it to an executor, checks and writes
// the result.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/device.h"
#include "normjit/plan.h"
#include "normjit/result.h"
#include "normjit/service.h"
#include "verify/problem.h"

namespace normjit::cli {

// How a kernel is emulated on the CPU.
struct HostOptions {
  DeviceProfile device;                        // the GPU whose kernel it is
  std::vector<std::uint64_t> schedules = {0};  // seeds of simt::schedule_of(); one launch each
  std::optional<bool> checks = {};             // of the kernel's accesses; none: on where that is affordable
  std::optional<Plan> plan = {};               // none: the planner's choice,
  Uses uses = {};                              // for such uses
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

// How a kernel was run on the CPU.
struct Emulation {
  std::string compiler;        // its path
  bool checks = true;          // whether the kernel's accesses were checked
  std::string keep_directory;  // empty: nothing was kept
  struct Launch {
    std::uint64_t seed = 0;
    std::string schedule;  // "schedule 1: one warp ahead, 1 block at a time"
    double milliseconds = 0;
  };
  // On the same inputs, with the same bits as outputs.
  std::vector<Launch> launches;
  // What is wrong with the kernel, and the seeds that show it again; outputs are unfinished then. Empty:
  // nothing.
  std::string fault;
  std::vector<std::uint64_t> fault_seeds;
};

// How an execution went. Times are the caller's, on the host.
struct Execution {
  std::string device;  // "NVIDIA H200 (sm_90, 132 SMs, ...)"
  Plan plan;
  std::string origin;  // of the kernel: "disk", "memory" or "compiled"
  std::size_t workspace_bytes = 0;
  // Service::prepare in this fresh process: find or compile, load, set up. On the CPU: render and compile.
  double prepare_milliseconds = 0;
  std::optional<Emulation> emulation;    // on the CPU; then the times below are 0
  double first_launch_microseconds = 0;  // the first Kernel::launch, until it returns
  double first_result_microseconds = 0;  // the same, until the GPU has finished
  double second_call_microseconds = 0;   // prepare and launch again, until launch returns
  double steady_call_microseconds = 0;   // Service::layer_norm, the median of later calls
};

class Executor {
 public:
  virtual ~Executor() = default;
  // Computes the outputs of the problem, which come poisoned, from its inputs. Throws normjit::Exception.
  virtual Execution execute(oracle::Problem& problem) = 0;
};

// Executes on a GPU of this machine, as `plan` or as the planner chooses for such uses. `repeat` is the
// number of steady calls, 0 for none. Throws where there is no such GPU, before data is made in
// vain.
std::unique_ptr<Executor> make_gpu_executor(const Options& options, int device, int repeat,
                                            const std::optional<Plan>& plan = {}, const Uses& uses = {});

// Executes on the CPU what the service would execute on `host.device`, through simt/: on one thread,
// thousands of times slower than a GPU. Throws where there is no C++ compiler.
std::unique_ptr<Executor> make_host_executor(const Options& options, HostOptions host);

}  // namespace normjit::cli
