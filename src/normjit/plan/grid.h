// The grid of a plan's launches, worked out but for their rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "normjit/plan.h"

namespace normjit {

// Rows come in parts, of which a block does one after the other: parts = min(rows / rows_per_part,
// most_parts), each shared by `blocks_per_part` blocks, most_blocks in all.
struct Grid {
  std::uint32_t rows_per_part = 1;
  std::uint32_t most_parts = 1;
  std::uint32_t blocks_per_part = 1;
  std::uint32_t most_blocks = 1;

  // Blocks for so many rows (> 0); at most 2^31 - 1.
  std::uint32_t blocks(std::int64_t rows) const noexcept {
    const std::int64_t parts = std::min<std::int64_t>(parts_of(rows), most_parts);
    return static_cast<std::uint32_t>(std::min<std::int64_t>(parts * blocks_per_part, most_blocks));
  }

 private:
  // Divisions of 64 bits take several times as long as those of 32.
  std::int64_t parts_of(std::int64_t rows) const noexcept {
    if (rows_per_part == 1) return rows;
    const auto above = static_cast<std::uint64_t>(rows - 1);
    return 1 + static_cast<std::int64_t>(above >> 32 == 0 ? static_cast<std::uint32_t>(above) / rows_per_part
                                                          : above / rows_per_part);
  }
};

// The grid of a legal plan.
Grid grid_of(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) noexcept;

}  // namespace normjit
