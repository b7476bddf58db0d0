// SPDX-License-Identifier: Apache-2.0
#include "simt/launch.h"

#include <iterator>

#include "normjit/base/text.h"

namespace normjit::simt {

std::string_view name(Fault fault) noexcept {
  constexpr std::string_view kNames[] = {"bad launch",    "deadlock",   "divergence",          "bad mask",
                                         "out of bounds", "misaligned", "uninitialized",       "missing wait",
                                         "race",          "misuse",     "undefined behaviour", "crash",
                                         "time limit"};
  const auto index = static_cast<std::size_t>(fault);
  return index < std::size(kNames) ? kNames[index] : "?";
}

Schedule schedule_of(std::uint64_t seed) noexcept {
  Schedule schedule{.seed = seed};
  if (seed == 0) return schedule;
  constexpr int kMostResident = 4;
  // Seeds 1, 2 and 3 already have both orders, and several blocks at a time.
  const bool flip = seed / kMostResident % 2 == 1;
  schedule.order = (seed % 2 == 1) != flip ? Schedule::Order::warp_ahead : Schedule::Order::any_lane;
  schedule.backwards = (seed / 2 % 2 == 1) != (seed / 8 % 2 == 1);
  schedule.resident_blocks = static_cast<int>(seed % kMostResident) + 1;
  return schedule;
}

std::string to_text(const Schedule& schedule) {
  constexpr std::string_view kOrders[] = {"in order", "any lane", "one warp ahead"};
  return concat({"schedule ", shortest(schedule.seed), ": ", kOrders[static_cast<int>(schedule.order)],
                 schedule.backwards ? ", blocks backwards" : "", ", ", shortest(schedule.resident_blocks),
                 schedule.resident_blocks == 1 ? " block at a time" : " blocks at a time"});
}

}  // namespace normjit::simt
