// SPDX-License-Identifier: Apache-2.0
// The order in which the threads of a launch run. A GPU guarantees none, so a correct kernel gives the same
// result under every schedule.
#pragma once

#include <cstdint>
#include <string>

namespace normjit::simt {

struct Schedule {
  enum class Order {
    in_order,    // the first thread that can run
    any_lane,    // any thread that can run
    warp_ahead,  // one warp runs until all of it waits: finds most missing barriers
  };
  Order order = Order::in_order;
  bool backwards = false;   // the last block first
  int resident_blocks = 1;  // at the same time, unless the launch decides
  std::uint64_t seed = 0;   // of its random choices
};

// Seed 0 is in order, one block after the other. Every other seed stands for one fixed schedule: 1, 2 and 3
// run 2, 3 and 4 blocks at a time, which a race between blocks needs to be seen. The same seed gives the same
// run on every machine.
Schedule schedule_of(std::uint64_t seed) noexcept;

// "schedule 7: one warp ahead, blocks backwards, 2 blocks at a time"
std::string to_text(const Schedule& schedule);

}  // namespace normjit::simt
