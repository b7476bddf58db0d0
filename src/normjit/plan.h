// SPDX-License-Identifier: Apache-2.0
// How to compute a spec on a device: the choice of kernel and its compile-time shape.
//
// choose() is a pure function of the spec, the device, two small enumerations, RowsRegime and Alignment, and
// of whether bits must not depend on the batch.
// So the plans of a spec on a device are a closed set (plans()): once they are built, no row count, pointer
// or stride needs another kernel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/device.h"
#include "normjit/spec.h"

namespace normjit {

// How the work of a row is spread. Each is one kernel template of the same name.
enum class Strategy : std::uint8_t {
  warp_rows,       // a warp, or a part of one, holds a row in registers; a block has many rows
  staged_rows,     // the same for rows at any address: the rows of a warp pass through shared memory together
  block_row,       // a block, or several, hold a row in registers
  persistent_row,  // persistent blocks stream rows through a ring of chunks in shared memory (sm_90)
  split_row,       // many blocks share a row chunk by chunk, and read x twice: to reduce, then to normalize
  channels_first,  // threads have neighbouring rows, a block all channels of them; these specs have no other
  // Backward specs have these three, and generic.
  gradient_rows,  // blocks hold rows in registers, and add up dweight and dbias over the rows that they take
  gradient_ring,  // the same of rows in a ring in shared memory (sm_90), which the blocks of a cluster may
                  // share
  gradient_columns,  // all blocks measure a batch of rows chunk by chunk, meet, and read it again by columns
  generic,  // one kernel for all forward specs of a compute type and one for all backward specs, told which
            // at run time; never chosen
};
NORMJIT_API std::string_view name(Strategy) noexcept;

// How the blocks that share a row exchange their partial statistics; of gradients, how the sums over rows of
// all blocks are added: by the last block, or by all of them, with cluster too.
enum class Exchange : std::uint8_t {
  none,     // one block has the whole row
  cluster,  // through distributed shared memory (sm_90); the hardware runs the blocks of a cluster together
  grid,     // through global memory; all blocks of the launch must be resident at once
};
NORMJIT_API std::string_view name(Exchange) noexcept;

// How many rows a launch has for each multiprocessor: up to 1/8 (lone), up to 1/4, and so on, each regime up to
// twice as many as the one before it, up to 512, and more (many). With channels first 64 positions count as a
// row. A kernel is correct for any number of rows; it is fast in its regime.
enum class RowsRegime : std::uint8_t { lone, few = 2, many = 13 };
inline constexpr auto kRowsRegimes = [] {
  std::array<RowsRegime, static_cast<std::size_t>(RowsRegime::many) + 1> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<RowsRegime>(i);
  return all;
}();
// "lone", the largest number of rows of a multiprocessor, as "1/2" and "64", or "many".
NORMJIT_API std::string_view name(RowsRegime) noexcept;
// The most rows of a regime; of `many` the largest number.
NORMJIT_API std::int64_t most_rows(RowsRegime regime, const NormSpec& spec,
                                   const DeviceProfile& device) noexcept;
// The rows of these regimes and those between: "17 to 33", "34 and more", "all". "no" on a device that is too
// small for them.
NORMJIT_API std::string rows_text(RowsRegime first, RowsRegime last, const NormSpec& spec,
                                  const DeviceProfile& device);
NORMJIT_API RowsRegime regime_of(std::int64_t rows, const DeviceProfile& device) noexcept;  // without /cf
NORMJIT_API RowsRegime regime_of(const NormSpec& spec, std::int64_t rows,
                                 const DeviceProfile& device) noexcept;

// How many consecutive elements one access can move in every tensor of a launch: 1, 2, 4 or 8. A tensor
// allows n when its base and row stride are multiples of min(16, n * element size) bytes. With channels first
// its base, the plane and the distance of samples.
enum class Alignment : std::uint8_t { one = 1, two = 2, four = 4, eight = 8 };
inline constexpr Alignment kAlignments[] = {Alignment::one, Alignment::two, Alignment::four,
                                            Alignment::eight};
// The alignment of a tensor, from its address or'ed with its row stride in bytes. Alignment{0}: not even
// single elements are aligned.
NORMJIT_API Alignment alignment_of(std::uint64_t address_and_stride_bytes, DType dtype) noexcept;

// The alignment of contiguous tensors whose addresses are multiples of 16 bytes. With channels first it is
// that of a plane of a multiple of 8 positions.
NORMJIT_API Alignment contiguous_alignment(const NormSpec& spec) noexcept;

struct Plan {
  Strategy strategy = Strategy::block_row;
  int threads = 0;          // of a block
  int threads_per_row = 0;  // threads that share a row, or a chunk of one, or the channels of `vector` rows
  int vector = 0;           // elements per access; divides the columns unless rows are unaligned. With
                            // channels first rows, which divide the plane
  int per_thread = 0;       // vectors of a row (or chunk) per thread
  int group_rows = 1;       // split_row, staged_rows: rows for which weights are read once; gradient_columns:
                            // rows of a batch
  int blocks_per_sm = 1;    // blocks that must fit on one multiprocessor at once (bounds the registers)
  int blocks_per_row = 1;   // blocks that share a row, each with a part of its columns
  Exchange exchange = Exchange::none;
  bool unaligned = false;  // rows may begin at any element: wide accesses where these are aligned in memory,
                           // single elements at the ends
  int stages = 0;  // persistent_row: chunks that fit in the ring in shared memory; gradient_ring: rows
  bool grouped_rows = false;  // rows of the operands may come in groups (RowsAt with n > 1)

  friend bool operator==(const Plan&, const Plan&) = default;
};

// One line: "warp_rows threads=256 threads_per_row=16 vector=4 per_thread=1 group_rows=1 blocks_per_sm=1",
// and, where they are not the default, "blocks_per_row=8 exchange=cluster", "unaligned=1", "stages=28" and
// "grouped_rows=1".
NORMJIT_API std::string to_text(const Plan& plan);
// Reads such a line. Fields may be missing that have a legal default: those after per_thread. BadArgument.
NORMJIT_API Result<Plan> parse_plan(std::string_view text);

// The plan of the generic kernels, which is legal on every device for every spec. Slower than the others;
// needs tensors aligned to their elements only, and a workspace for amax alone, and for gradients that are or
// may be sums: dweight, dbias, dmod_scale and dmod_shift.
NORMJIT_API Plan generic_plan() noexcept;
// The spec under which the generic kernel that serves `spec` is generated, compiled and cached: one for each
// compute type, forward and backward.
NORMJIT_API NormSpec generic_spec(const NormSpec& spec) noexcept;
// The spec for which the kernel of a plan is generated: generic_spec of a generic plan, else
// canonical(spec).
NORMJIT_API NormSpec source_spec(const Plan& plan, const NormSpec& spec) noexcept;

// A plan with its cost.
struct Candidate {
  Plan plan;
  double cost = 0;       // estimated time for the rows of the regime, relative to that of the cheapest plan;
                         // of all but the 8 best plans their order alone
  std::string_view why;  // what costs most; lasts as long as the program
};

// Every plan that the planner considers for this use of a valid spec, the cheapest first. Never empty. With
// batch_invariant, whose regime is `many`, none whose sums depend on where in memory a row begins.
NORMJIT_API std::vector<Candidate> candidates(const NormSpec& spec, const DeviceProfile& device,
                                              RowsRegime regime, Alignment alignment,
                                              bool batch_invariant = false);

// The first of them. Never fails: every valid spec has a plan on every known device.
NORMJIT_API Plan choose(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                        Alignment alignment, bool batch_invariant = false) noexcept;

// The plan of the same use whose blocks need not be resident at once, for devices that have no room for
// them.
NORMJIT_API Plan fallback(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                          Alignment alignment, bool batch_invariant = false) noexcept;

// Which uses of a spec plans() is asked for.
struct Uses {
  bool batch_invariant = false;  // of Options::batch_invariant or PrepareOptions::batch_invariant alone
  bool grouped_rows = false;     // of rows in groups alone
};
// Every plan that choose() can return for this spec and device in such uses, and its fallback where blocks
// share a row. Each is listed once.
NORMJIT_API std::vector<Plan> plans(const NormSpec& spec, const DeviceProfile& device, const Uses& uses = {});

// Ok, or IllegalPlan with the first limit that the plan breaks.
NORMJIT_API Result<void> check(const Plan& plan, const NormSpec& spec, const DeviceProfile& device);

// What the launch needs to know of a plan. The plan must be one that check() accepts.

// Rows that a block works on at once: of warp_rows, staged_rows, channels_first and gradient_rows many,
// else 1.
NORMJIT_API std::int64_t rows_per_block(const Plan& plan) noexcept;
// threads_per_row * vector * per_thread, of channels_first without vector. In a generic plan a warp has a row
// of up to this many columns, and a block a longer one.
NORMJIT_API std::int64_t columns_per_block(const Plan& plan) noexcept;
// Blocks to launch for this many rows (> 0) on this device; at most 2^31 - 1. The kernels loop over the
// other rows.
NORMJIT_API std::int64_t grid_blocks(const Plan& plan, const NormSpec& spec, const DeviceProfile& device,
                                     std::int64_t rows) noexcept;
// The architecture to compile for: persistent_row needs an architecture-specific target such as sm_90a, and
// so does the instruction that makes e2m1 from sm_100 on; generic takes the oldest architecture whose cubins
// run on this one, so that few cubins serve all.
NORMJIT_API Arch target_of(const Plan& plan, const NormSpec& spec, Arch arch) noexcept;
// Bytes of dynamic shared memory per block.
NORMJIT_API int shared_bytes(const Plan& plan, const NormSpec& spec) noexcept;
// Bytes of workspace for a launch of any number of rows; 0 for plans that need none.
NORMJIT_API std::size_t workspace_bytes(const Plan& plan, const NormSpec& spec,
                                        const DeviceProfile& device) noexcept;

}  // namespace normjit
