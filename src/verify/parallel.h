// SPDX-License-Identifier: Apache-2.0
// Loops over all cores for the tool's work on the host: random data and checks.
#pragma once

#include <cstdint>
#include <functional>

namespace normjit::oracle {

// Calls body(begin, end) for consecutive pieces of [0, count), at most `piece` long, from one thread per
// core. Returns when all are done; throws again what a body has thrown.
void parallel_for(std::int64_t count, std::int64_t piece,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body);

}  // namespace normjit::oracle
