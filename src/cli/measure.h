// SPDX-License-Identifier: Apache-2.0
// How fast a kernel is on a GPU, against a copy of the same bytes in as many streams (cli/copy.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/copy.h"
#include "cli/gpu.h"
#include "normjit/base/json.h"
#include "normjit/service.h"
#include "normjit/spec/operands.h"

namespace normjit::cli {

// Times of one launch in microseconds.
struct Timing {
  double median = 0, min = 0, max = 0;
};
Json json_of(const Timing& timing);

// How a kernel is launched.
struct MeasuredUse {
  bool overlap = false;     // launches, of copies too, overlap the one before
  std::int64_t sample = 1;  // rows that have one row of gate and modulation; they divide all rows
  std::int64_t plane = 0;   // with channels first: Tensors::plane
};

struct BenchReport {
  NormSpec spec;
  std::int64_t rows = 0;
  std::string device;
  Plan plan;
  MeasuredUse use;
  CopyShape copy_shape = {};                   // the fastest
  std::int64_t bytes = 0;                      // that must move: each operand once
  std::int64_t buffer_sets = 0, launches = 0;  // of a graph
  int replays = 0;
  Timing kernel, copy;

  double gigabytes_per_second() const { return static_cast<double>(bytes) / kernel.median / 1e3; }
  double copy_gigabytes_per_second() const { return static_cast<double>(bytes) / copy.median / 1e3; }
  double fraction_of_copy() const { return copy.median / kernel.median; }
};

// The value of --rows, "1,16384". Throws normjit::Exception, BadArgument, unless it is numbers from 1 on.
std::vector<std::int64_t> parse_rows_list(const std::string& list);

// As many rows as make x 256 MiB, which is far more than the caches hold; of planes, whole ones.
std::int64_t default_rows(const NormSpec& spec, std::int64_t plane = 0) noexcept;

// Each spec with each number of rows of the list; an empty list stands for default_rows().
struct MeasuredCase {
  NormSpec spec;
  std::int64_t rows;
};
std::vector<MeasuredCase> measured_cases(const std::vector<NormSpec>& specs, const std::string& rows,
                                         std::int64_t plane = 0);

// Bytes that a launch must move, whatever the kernel: each operand once. `sample` as in MeasuredUse.
std::int64_t bytes_moved(const NormSpec& spec, std::int64_t rows, std::int64_t sample = 1) noexcept;

// As many rows, at least one, as move about so many bytes.
std::int64_t rows_that_move(const NormSpec& spec, std::int64_t bytes) noexcept;

// Where the tensors of one launch lie in its part of a buffer; each begins at a multiple of 256 bytes.
struct SetLayout {
  PerOperand<std::size_t> at{};
  std::size_t bytes = 0;
};
SetLayout layout_of(const NormSpec& spec, std::int64_t rows, std::int64_t sample = 1) noexcept;
// The tensors of the launch whose part begins at `begin`; without a workspace.
Tensors tensors_of(const NormSpec& spec, const SetLayout& layout, std::int64_t rows, std::byte* begin,
                   std::int64_t sample = 1, std::int64_t plane = 0) noexcept;

// Throws normjit::Exception: BadArgument for more rows than any GPU can hold, beyond which sizes overflow;
// BadRows for samples that do not divide them; BadPlane for a plane that does not fit spec and rows.
void check_use(const NormSpec& spec, std::int64_t rows, const MeasuredUse& use = {});

// How many sets of buffers a graph rotates through, so that a launch finds nothing of its own in the L2
// cache: together at least four times the cache, two at least, bounded by memory and by what a graph can
// hold. Where these are too few, the cache is emptied before each replay.
std::int64_t rotation_sets(std::size_t set_bytes, std::int64_t l2_bytes, std::size_t memory) noexcept;

Timing timing_of(std::vector<double> samples) noexcept;  // of at least one

// Buffers for one spec and number of rows on a GPU, filled once, in which any number of kernels are timed
// against the fastest copy. Throws normjit::Exception.
class Workbench {
 public:
  Workbench(const Gpu& gpu, const DeviceProfile& profile, Copies& copies, const NormSpec& spec,
            std::int64_t rows, const MeasuredUse& use = {});

  // The times of one launch of this kernel of the spec in so many replays of a graph of them, two at least;
  // the lesser of two alone where both are longer than `hopeless`: a host that is held up delays one of them.
  std::vector<double> times(const Kernel& kernel, int replays, double hopeless);
  // Times `replays` replays of each kernel, one of each in turn, and one of copies, so that all see the same
  // clocks. A kernel that does not run throws.
  std::vector<BenchReport> measure_in_turn(const std::vector<Kernel>& kernels, int replays);
  BenchReport measure(const Kernel& kernel, int replays) {
    return measure_in_turn({kernel}, replays).front();
  }
  // Of a launch of the fastest copy, as it was measured when that was sought.
  double copy_microseconds() const { return copy_microseconds_; }

 private:
  void enqueue(const CopyKernel& copy) const;  // a graph's launches
  std::unique_ptr<GpuGraph> graph_of(const Kernel& kernel) const;
  void make_room(const Kernel& kernel);        // a workspace for it
  double replay(const GpuGraph& graph) const;  // the time of a launch

  const Gpu& gpu_;
  const SetLayout layout_;
  const CopyLayout copy_layout_;
  BenchReport facts_;  // what the reports of all kernels have in common
  std::optional<DeviceBuffer> sets_, copies_, workspace_;
  mutable std::optional<DeviceBuffer> other_;  // as large as four L2 caches, where the sets are smaller
  const GpuStream stream_;
  std::optional<GpuGraph> copying_;
  double copy_microseconds_ = 0;
};

// One kernel, the planner's choice or another plan, in buffers of its own. Throws normjit::Exception.
BenchReport measure(Service& service, const Gpu& gpu, Copies& copies, const NormSpec& spec, std::int64_t rows,
                    int replays, const MeasuredUse& use = {}, const std::optional<Plan>& plan = {});

}  // namespace normjit::cli
