// How to compute a spec on a device: the choice of kernel and its compile-time shape.
//
// choose() is a pure function. Everything that a plan depends on besides spec and device comes from two small
// closed sets, RowsRegime and Alignment, so the plans of a spec on a device are a closed set too (plans()):
// once they are built, no row count, pointer or stride can ask for another kernel.
#pragma once

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
  warp_rows,    // some lanes of a warp share a row, many rows a block
  staged_rows,  // so too, of rows that begin anywhere: a warp's rows pass through shared memory as one piece
  block_row,    // a block, or several, hold a row in registers
  persistent_row,  // blocks that stay pass row after row through a ring in shared memory (sm_90)
  split_row,  // a row is cut into chunks over many blocks: statistics first, then a second read applies them
  generic,  // one kernel for all layer norms of a compute type, which learns at run time which; never chosen
};
NORMJIT_API std::string_view name(Strategy) noexcept;

// How the blocks that share a row tell each other its statistics.
enum class Exchange : std::uint8_t {
  none,     // one block has the whole row
  cluster,  // through each other's shared memory (sm_90); the hardware runs a cluster's blocks together
  grid,     // through memory; all blocks of the launch must be resident together
};
NORMJIT_API std::string_view name(Exchange) noexcept;

// Whether the rows alone fill the device: up to a sixteenth as many rows as it has multiprocessors, fewer
// than it has, or more. A kernel is right for any number of rows; the regime makes it fast.
enum class RowsRegime : std::uint8_t { lone, few, many };
inline constexpr RowsRegime kRowsRegimes[] = {RowsRegime::lone, RowsRegime::few, RowsRegime::many};
NORMJIT_API std::string_view name(RowsRegime) noexcept;
NORMJIT_API RowsRegime regime_of(std::int64_t rows, const DeviceProfile& device) noexcept;

// How many consecutive elements every tensor of a launch allows in one access: 1, 2, 4 or 8. A tensor allows
// n when its base and row stride are multiples of min(16, n * element size) bytes.
enum class Alignment : std::uint8_t { one = 1, two = 2, four = 4, eight = 8 };
inline constexpr Alignment kAlignments[] = {Alignment::one, Alignment::two, Alignment::four,
                                            Alignment::eight};
// The alignment of a tensor of this dtype whose address and row stride, or'ed together, have these bytes;
// Alignment{0} where not even a single element is aligned.
NORMJIT_API Alignment alignment_of(std::uint64_t address_and_stride_bytes, DType dtype) noexcept;

// That of contiguous tensors whose addresses are multiples of 16 bytes.
NORMJIT_API Alignment contiguous_alignment(const NormSpec& spec) noexcept;

struct Plan {
  Strategy strategy = Strategy::block_row;
  int threads = 0;          // a block
  int threads_per_row = 0;  // threads that share a row, or a chunk of one
  int vector = 0;           // elements an access; divides the columns
  int per_thread = 0;       // vectors of a row (or chunk) that a thread holds
  int group_rows = 1;       // split_row, staged_rows: rows that read the weights together
  int blocks_per_sm = 1;    // blocks that must fit on one multiprocessor at once (bounds the registers)
  int blocks_per_row = 1;   // blocks that share a row, each with a slice of its columns
  Exchange exchange = Exchange::none;
  bool unaligned = false;  // rows may begin at any element: accesses stay wide, and are unaligned into place
  int stages = 0;          // persistent_row: chunks that the ring in shared memory has room for

  friend bool operator==(const Plan&, const Plan&) = default;
};

// One line: "warp_rows threads=256 threads_per_row=16 vector=4 per_thread=1 group_rows=1 blocks_per_sm=1",
// and, where they are not the default, "blocks_per_row=8 exchange=cluster", "unaligned=1" and "stages=28".
NORMJIT_API std::string to_text(const Plan& plan);
// Reads such a line; fields that are left out have their defaults. BadArgument.
NORMJIT_API Result<Plan> parse_plan(std::string_view text);

// The plan of the generic kernel, which is legal on every device for every layer norm of x alone.
// Correct, and slower than the others; needs no workspace and no alignment beyond an element's.
NORMJIT_API Plan generic_plan() noexcept;
// The stand-in under which the generic kernel that serves a spec is generated, compiled and cached: one for
// each compute type.
NORMJIT_API NormSpec generic_spec(const NormSpec& spec) noexcept;
// The spec for which the kernel of a plan is generated: generic_spec of a generic plan, else canonical(spec).
NORMJIT_API NormSpec source_spec(const Plan& plan, const NormSpec& spec) noexcept;

// A plan with what it would cost.
struct Candidate {
  Plan plan;
  double cost = 0;  // estimated time for a typical number of rows, relative to a copy of as many bytes
  std::string why;  // what costs most
};

// Every plan worth a thought for this use of a valid spec, the best first. Never empty.
NORMJIT_API std::vector<Candidate> candidates(const NormSpec& spec, const DeviceProfile& device,
                                              RowsRegime regime, Alignment alignment);

// The first of them. Never fails: every valid spec has a plan on every known device.
NORMJIT_API Plan choose(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                        Alignment alignment) noexcept;

// The plan of the same use whose blocks need not be resident together, for devices that have no room for
// them. Wide rows of other specs may have none: then a plan that check() refuses, and says why.
NORMJIT_API Plan fallback(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                          Alignment alignment) noexcept;

// Every plan that choose() can return for this spec and device, and its fallback where blocks share a row,
// without repetition.
NORMJIT_API std::vector<Plan> plans(const NormSpec& spec, const DeviceProfile& device);

// Ok, or IllegalPlan with the limit that is broken.
NORMJIT_API Result<void> check(const Plan& plan, const NormSpec& spec, const DeviceProfile& device);

// Facts of a plan that the launch needs.
NORMJIT_API std::int64_t rows_per_block(
    const Plan& plan) noexcept;  // packed and staged rows: rows a block works on
// lanes * vector * per_thread. Of a generic plan: what a warp measures at a time; a warp has a row of up to
// so many columns, and a block a longer one.
NORMJIT_API std::int64_t columns_per_block(const Plan& plan) noexcept;
// Blocks to launch for so many rows (> 0) on this device; at most 2^31 - 1. The kernels loop over what is
// left.
NORMJIT_API std::int64_t grid_blocks(const Plan& plan, const NormSpec& spec, const DeviceProfile& device,
                                     std::int64_t rows) noexcept;
// The architecture to compile for: persistent_row needs the architecture-specific target, as sm_90a; generic
// takes the oldest one whose cubins run on this, so that few of them serve all.
NORMJIT_API Arch target_of(const Plan& plan, Arch arch) noexcept;
// Bytes of dynamic shared memory of a block.
NORMJIT_API int shared_bytes(const Plan& plan, const NormSpec& spec) noexcept;
// Bytes of workspace for a launch of any number of rows; 0 for plans that need none.
NORMJIT_API std::size_t workspace_bytes(const Plan& plan, const NormSpec& spec,
                                        const DeviceProfile& device) noexcept;

}  // namespace normjit
