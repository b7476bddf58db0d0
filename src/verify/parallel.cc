// SPDX-License-Identifier: Apache-2.0
#include "verify/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "normjit/base/run_on_threads.h"

namespace normjit::oracle {

void parallel_for(std::int64_t count, std::int64_t piece,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body) {
  const std::int64_t pieces = (count + piece - 1) / piece;
  std::atomic<std::int64_t> next = 0;
  const auto work = [&] {
    for (std::int64_t i = next++; i < pieces; i = next++) body(i * piece, std::min(count, (i + 1) * piece));
  };
  const std::int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  run_on_threads(static_cast<int>(std::min(cores, pieces)), work);
}

}  // namespace normjit::oracle
