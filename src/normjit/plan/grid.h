// SPDX-License-Identifier: Apache-2.0
// The grid of a plan's launches, computed in advance for any number of rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "normjit/plan.h"

namespace normjit {

// The rows of a launch are divided into parts of `rows_per_part` rows, at most max_parts at a time. Each part
// has `blocks_per_part` blocks; all of them together are at most max_blocks. The blocks loop over the other
// parts.
struct Grid {
  std::uint32_t rows_per_part = 1;
  std::uint32_t max_parts = 1;
  std::uint32_t blocks_per_part = 1;
  std::uint32_t max_blocks = 1;

  // Blocks for this many rows (> 0); at most 2^31 - 1.
  std::uint32_t blocks(std::int64_t rows) const noexcept {
    const std::int64_t parts = std::min<std::int64_t>(parts_of(rows), max_parts);
    return static_cast<std::uint32_t>(std::min<std::int64_t>(parts * blocks_per_part, max_blocks));
  }
  // Lets no launch have more than so many blocks, a multiple of those of a part that needs all of its own.
  void limit(std::int64_t blocks) noexcept {
    max_blocks = static_cast<std::uint32_t>(std::min<std::int64_t>(max_blocks, blocks));
  }

 private:
  // 64-bit divisions take several times as long as 32-bit ones.
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
