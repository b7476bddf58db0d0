// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <utility>

#include "cli/executor.h"
#include "cli/table.h"
#include "normjit/base/stopwatch.h"
#include "normjit/base/text.h"
#include "normjit/codegen/generator.h"
#include "normjit/plan/footprint.h"
#include "normjit/service/prepared.h"
#include "normjit/service/use.h"
#include "simt/launch.h"

namespace normjit::cli {
namespace {

using std::chrono::milliseconds;

// Checks take 23 bytes of memory for each byte of y: 750 MB where x and y have this size together.
constexpr std::size_t kCheckedBytes = std::size_t{64} << 20;

// Elements that one core does in a millisecond, in round numbers: 850 to 11,000 were measured with checks,
// 1500 to 25,000 without; the fewer, the more threads wait for each other.
constexpr std::int64_t kCheckedSpeed = 2000, kUncheckedSpeed = 4000;

// The outputs of a launch, to hold those of other launches against.
class Outputs {
 public:
  explicit Outputs(const oracle::Problem& problem) {
    for (const OperandRow& row : kOperands) {
      const oracle::Matrix& matrix = problem[row.operand];
      if (row.output) copies_[row.operand].assign(matrix.data(), matrix.data() + matrix.bytes());
    }
  }

  // Where the problem's outputs have other bits first, as in "y, row 1, column 2"; empty: nowhere.
  std::string difference(const oracle::Problem& problem) const {
    for (const OperandRow& row : kOperands) {
      const oracle::Matrix& matrix = problem[row.operand];
      const std::vector<std::byte>& copy = copies_[row.operand];
      const auto at = std::mismatch(copy.begin(), copy.end(), matrix.data()).first;
      if (at == copy.end()) continue;
      const std::int64_t element = (at - copy.begin()) / size_of(matrix.dtype());
      for (std::int64_t i = 0; i < matrix.rows(); ++i)
        if (const std::int64_t column = element - matrix.offset(i); column >= 0 && column < matrix.columns())
          return concat(
              {row.name, ", row ", shortest(i), ", column ", shortest(column * columns_in(matrix.dtype()))});
      return concat({row.name, ", element ", shortest(element), ", between rows"});
    }
    return "";
  }

 private:
  PerOperand<std::vector<std::byte>> copies_;  // of inputs nothing
};

// Everything that the launches of a problem share. Points into the problem, and into itself.
struct Arguments {
  Arguments(oracle::Problem& problem, const Plan& plan, std::size_t workspace_bytes);
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  std::vector<std::byte> workspace;
  RuntimeSpec spec;
  OperandBlock block;
  void* pointers[2] = {&block, &spec};
  std::vector<simt::Buffer> buffers;
};

Tensors with_workspace(Tensors tensors, std::vector<std::byte>& workspace) {
  tensors.workspace = workspace.data();
  return tensors;
}

Arguments::Arguments(oracle::Problem& problem, const Plan& plan, std::size_t workspace_bytes)
    : workspace(workspace_bytes),
      spec(problem.spec),
      block(block_of(plan, problem.spec, with_workspace(tensors_of(problem), workspace))) {
  for (std::size_t i = 0; i < kOperandCount; ++i) {
    const OperandRow& row = kOperands[i];
    const oracle::Matrix& matrix = problem.operands.of[i];
    if (!matrix.empty())
      buffers.push_back({matrix.data(), matrix.bytes(), row.name, row.output,
                         !row.output || has(problem.in_place, i),
                         /*early=*/is_columns(row, problem.spec),
                         /*element=*/static_cast<std::size_t>(size_of(matrix.dtype()))});
  }
  // What need not be zero holds NaN.
  if (std::ssize(workspace) > kMeetingBytes)
    std::fill(workspace.begin() + kMeetingBytes, workspace.end(), std::byte{0xFF});
  if (!workspace.empty()) buffers.push_back({workspace.data(), workspace.size(), "workspace", true, true});
}

// The first byte of a counter that is not 0, as between launches all must be. The header's epoch and the
// slots behind the ring hold tags, which only grow (templates/schedule/workspace.cuh).
std::optional<std::ptrdiff_t> counter_left(const std::vector<std::byte>& workspace) {
  if (workspace.empty()) return {};
  constexpr std::ptrdiff_t kEpoch = 16, kLargest = 24, kRing = plan_math::kHeaderBytes,
                           kEnd = kRing + plan_math::kMaxRingRows * plan_math::kRingRowBytes;
  const auto whole = static_cast<std::ptrdiff_t>(workspace.size());
  for (const auto& [first, last] :
       {std::pair{std::ptrdiff_t{0}, kEpoch}, {kLargest, std::min(kEnd, whole)}}) {
    const auto end = workspace.begin() + last;
    const auto at =
        std::find_if(workspace.begin() + first, end, [](std::byte b) { return b != std::byte{0}; });
    if (at != end) return at - workspace.begin();
  }
  return {};
}

// What the device would use, unless more of its blocks are resident together than the emulation runs.
Plan plan_for_host(const NormSpec& spec, const DeviceProfile& device, std::int64_t rows, Alignment alignment,
                   const Uses& uses) {
  const RowsRegime regime = Use::regime_for(spec, rows, device, uses.batch_invariant);
  Plan plan = choose(spec, device, regime, alignment, uses.batch_invariant);
  const LaunchShape shape = launch_shape(plan, spec);
  if (shape.cooperative &&
      grid_blocks(plan, spec, device, rows) * shape.threads > simt::most_threads_together())
    plan = fallback(spec, device, regime, alignment, uses.batch_invariant);
  return in_groups(plan, spec, uses.grouped_rows);
}

class HostExecutor final : public Executor {
 public:
  HostExecutor(const Options& options, HostOptions host);

  Execution execute(oracle::Problem& problem) override;

 private:
  bool checks(const oracle::Problem& problem) const;
  std::string device_text(bool checked) const;
  void announce(const oracle::Problem& problem, milliseconds each) const;
  void launch_all(oracle::Problem& problem, const Plan& plan, const simt::HostKernel& kernel,
                  Arguments& arguments, milliseconds time_limit, Emulation& emulation) const;

  const std::string template_directory_;
  const HostOptions host_;
  const simt::HostCompiler compiler_;
};

HostExecutor::HostExecutor(const Options& options, HostOptions host)
    : template_directory_(options.template_directory),
      host_(std::move(host)),
      compiler_(simt::HostCompiler::find().value()) {
  if (host_.keep_directory.empty()) return;
  std::error_code failure;
  std::filesystem::create_directories(host_.keep_directory, failure);
  if (failure)
    throw Exception({Code::CacheIo, concat({"--keep: the directory ", host_.keep_directory,
                                            " cannot be made: ", failure.message()})});
}

bool HostExecutor::checks(const oracle::Problem& problem) const {
  if (host_.checks) return *host_.checks;
  const std::size_t bytes = problem[Operand::x].bytes() + problem[Operand::y].bytes();
  if (bytes <= kCheckedBytes) return true;
  std::fprintf(
      stderr,
      "normjit: x and y have %zu MiB together, so accesses are not checked; --checks on checks them\n",
      bytes >> 20);
  return false;
}

// "CPU emulation of sm_90 (one fiber per CUDA thread, schedules 0, 1, checks on)"
std::string HostExecutor::device_text(bool checked) const {
  std::string seeds;
  for (const std::uint64_t seed : host_.schedules) seeds += (seeds.empty() ? " " : ", ") + shortest(seed);
  return concat({"CPU emulation of ", host_.device.arch.name(), " (one fiber per CUDA thread, schedule",
                 host_.schedules.size() > 1 ? "s" : "", seeds, ", checks ", checked ? "on" : "off", ")"});
}

// Nothing can be shown while a launch runs, so somebody who waits is told before.
void HostExecutor::announce(const oracle::Problem& problem, milliseconds each) const {
  const double seconds = std::chrono::duration<double>(each).count();
  const std::size_t launches = host_.schedules.size();
  if (seconds * static_cast<double>(launches) < 1 || isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "normjit: emulating %s rows of %s columns on one core: roughly %s s%s\n",
               shortest(problem.rows).c_str(), shortest(problem.spec.columns).c_str(),
               fixed(seconds, 1).c_str(),
               launches > 1 ? (" a launch, " + shortest(launches) + " launches").c_str() : "");
}

Execution HostExecutor::execute(oracle::Problem& problem) {
  const NormSpec& spec = problem.spec;
  const DeviceProfile& device = host_.device;
  const Tensors tensors = tensors_of(problem);
  const PackedTensors packed = pack(spec, tensors);
  if (!packed.status) throw Exception({packed.status.code, packed.status.message()});
  const bool grouped = problem.rows > 0 && needs_grouped_rows(spec, packed.layout.grouped);
  const Plan plan =
      host_.plan.value_or(plan_for_host(spec, device, problem.rows, packed.alignment,
                                        {host_.uses.batch_invariant, host_.uses.grouped_rows || grouped}));
  normjit::check(plan, spec, device).value();
  if (grouped && !plan.grouped_rows && plan.strategy != Strategy::generic)
    throw Exception(
        {Code::BadStride, "rows come in groups, which the plan does not take: add grouped_rows=1"});

  const bool checked = checks(problem);
  const Stopwatch prepare;
  const Source source = generate(spec, plan, device.arch, template_directory_).value();
  const auto kernels =
      compiler_
          .compile({&source, 1}, checked ? simt::Checks::memory : simt::Checks::none, host_.keep_directory)
          .value();

  Execution execution;
  execution.prepare_milliseconds = prepare.milliseconds();
  execution.device = device_text(checked);
  execution.plan = plan;
  execution.origin = name(Origin::compiled);
  execution.workspace_bytes = workspace_bytes(plan, spec, device);
  Emulation& emulation = execution.emulation.emplace();
  emulation.compiler = compiler_.path();
  emulation.checks = checked;
  emulation.keep_directory = host_.keep_directory;

  const milliseconds each(problem.rows * spec.columns / (checked ? kCheckedSpeed : kUncheckedSpeed));
  announce(problem, each);
  Arguments arguments(problem, plan, execution.workspace_bytes);
  // Far beyond the slowest machine: only for kernels that never end.
  const milliseconds time_limit = std::max<milliseconds>(std::chrono::minutes(1), 50 * each);
  launch_all(problem, plan, kernels.front(), arguments, time_limit, emulation);
  return execution;
}

// Each launch finds poisoned outputs, and the workspace as the launch before has left it; from sm_90 on it
// overlaps that one, so it may read nothing but parameters before it has waited.
void HostExecutor::launch_all(oracle::Problem& problem, const Plan& plan, const simt::HostKernel& kernel,
                              Arguments& arguments, milliseconds time_limit, Emulation& emulation) const {
  std::optional<Outputs> first;
  const std::vector<std::uint64_t>& seeds = host_.schedules;
  const bool depends_on_earlier = !arguments.workspace.empty();
  // The launches that show a fault of launch i again.
  const auto shown_by = [&](std::size_t i, std::vector<std::uint64_t> alone) {
    return depends_on_earlier ? std::vector(seeds.begin(), seeds.begin() + static_cast<std::ptrdiff_t>(i) + 1)
                              : alone;
  };
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    const std::uint64_t seed = seeds[i];
    reset_outputs(problem);
    const Stopwatch time;
    std::optional<simt::Diagnosis> diagnosis;
    if (problem.rows > 0) {
      simt::Launch launch;
      launch.blocks = static_cast<std::uint32_t>(grid_blocks(plan, problem.spec, host_.device, problem.rows));
      launch.shape = launch_shape(plan, problem.spec);
      launch.shape.overlap_previous = host_.device.arch.number >= 90;
      launch.arguments = arguments.pointers;
      launch.buffers = arguments.buffers;
      launch.seed = seed;
      launch.time_limit = time_limit;
      diagnosis = simt::run(kernel, launch);
    }
    emulation.launches.push_back({seed, to_text(simt::schedule_of(seed)), time.milliseconds()});
    if (diagnosis) {
      emulation.fault = concat({name(diagnosis->fault), ": ", diagnosis->message});
      emulation.fault_seeds = shown_by(i, {seed});
      return;
    }
    if (const auto byte = counter_left(arguments.workspace)) {
      emulation.fault = concat({"the workspace is not ready for the next launch: its byte ", shortest(*byte),
                                " belongs to a counter that must be 0 between launches"});
      emulation.fault_seeds = shown_by(i, {seed});
      return;
    }
    if (first) {
      if (const std::string where = first->difference(problem); !where.empty()) {
        emulation.fault = concat({"the result depends on the order of the threads",
                                  depends_on_earlier ? ", or on what a launch leaves in the workspace" : "",
                                  ": with ", emulation.launches.back().schedule, ", other bits than with ",
                                  emulation.launches.front().schedule, ", first in ", where});
        emulation.fault_seeds = shown_by(i, {seeds.front(), seed});
        return;
      }
    } else if (seeds.size() > 1) {
      first.emplace(problem);
    }
  }
}

}  // namespace

std::unique_ptr<Executor> make_host_executor(const Options& options, HostOptions host) {
  return std::make_unique<HostExecutor>(options, std::move(host));
}

}  // namespace normjit::cli
