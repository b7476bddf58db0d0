// SPDX-License-Identifier: Apache-2.0
// What `normjit-bench startup` finds out: what the first calls of a process cost. Times are medians over
// fresh processes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "normjit/plan.h"

namespace normjit::bench {

// On any machine with a GPU.
inline constexpr double kMostColdRatio = 1.2, kMostDiskMilliseconds = 1, kLeastEfficiency = 0.9;

// Of a first call that finds its kernel on disk, in microseconds, each for the first time in its process.
struct StartupParts {
  double service = 0;  // the objects
  double tuned = 0;    // looking for a tuned plan
  double choose = 0;
  double render = 0;  // the text, and its digest
  double read = 0;    // and verify
  double load = 0;    // the driver's; 0 without one
};

// First calls of one spec.
struct StartupResult {
  NormSpec spec;
  std::int64_t rows = 0;
  std::string plan;
  // In milliseconds. NVRTC's own load: opening it, and by how much its first compile, of an empty kernel,
  // takes longer than its second. Then the compile of this source. Together they are what a process pays that
  // opens NVRTC and compiles this source straight away.
  double nvrtc_load = 0, raw_compile = 0;
  // From a new Service to the return of the first launch, in milliseconds: with an empty cache; with the
  // kernel on disk; with a pack and no cache directory. CUDA was initialised before.
  double cold = 0, disk = 0, pack = 0;
  StartupParts parts;  // of disk
  double later = 0;    // a later one-call launch, in microseconds

  double cold_ratio() const { return cold / (nvrtc_load + raw_compile); }
};

// A prebuild on all cores, against the same on one.
struct PrebuildSpeed {
  int kernels = 0, specs = 0, strategies = 0, cores = 0;
  // Seconds: compiles one by one, summed; compiles beside others, summed; all of it on all cores.
  double one_thread = 0, side_by_side = 0, wall = 0;

  double efficiency() const { return one_thread / cores / wall; }
  // Why: how many of the cores compile on average, over how much longer a compile takes while all of them do.
  double busy() const { return side_by_side / cores / wall; }
  double slowdown() const { return side_by_side / one_thread; }
  bool met() const { return efficiency() >= kLeastEfficiency; }
};

struct StartupReport {
  std::string device;    // "NVIDIA H200 (sm_90, ...)", or the profile that stands in for one
  std::string no_gpu;    // why there is none; empty: there is one
  std::string compiler;  // "nvrtc 13.0, /path"
  int repeat = 0;
  double cuda = 0;  // CUDA's own initialisation and its primary context, in milliseconds; 0 without a GPU
  std::vector<StartupResult> results;
  std::optional<PrebuildSpeed> prebuild;  // nothing: not asked for

  // Whether a target is met; nothing where the driver's part is not in the time.
  std::optional<bool> cold_met(const StartupResult& result) const;
  std::optional<bool> disk_met(const StartupResult& result) const;
};

std::string text_of(const StartupReport& report);
std::string json_of(const StartupReport& report);

// So many kernels or a few more: specs of the suite until they ask for enough on this device.
std::vector<NormSpec> startup_specs(const DeviceProfile& device, int kernels);

// The command, and one measured step of it, in a process of its own; prints JSON.
void add_startup(cli::CommandLine& line);
void add_startup_step(cli::CommandLine& line);

}  // namespace normjit::bench
