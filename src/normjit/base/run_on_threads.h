// SPDX-License-Identifier: Apache-2.0
// Runs a task, or the pieces of a loop, on several threads and joins them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace normjit {

// Runs work() on up to `threads` threads at once, including the calling one, and returns when all have ended.
// Uses fewer if the system refuses threads. Rethrows the first exception of work().
template <class Work>
void run_on_threads(int threads, const Work& work) {
  std::exception_ptr thrown;
  std::mutex mutex;  // guards thrown
  const auto guarded = [&] {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!thrown) thrown = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  others.reserve(threads > 1 ? static_cast<std::size_t>(threads - 1) : 0);
  try {
    for (int i = 1; i < threads; ++i) others.emplace_back(guarded);
  } catch (const std::exception&) {  // no more threads, or no memory for one: use those already started
  }
  guarded();
  for (std::thread& other : others) other.join();
  if (thrown) std::rethrow_exception(thrown);
}

// Calls body(begin, end) for consecutive pieces of [0, count), at most `piece` long, from one thread per
// core. Returns when all are done; rethrows the first exception of a body.
template <class Body>
void parallel_for(std::int64_t count, std::int64_t piece, const Body& body) {
  const std::int64_t pieces = (count + piece - 1) / piece;
  std::atomic<std::int64_t> next = 0;
  const auto work = [&] {
    for (std::int64_t i = next++; i < pieces; i = next++) body(i * piece, std::min(count, (i + 1) * piece));
  };
  const std::int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  run_on_threads(static_cast<int>(std::min(cores, pieces)), work);
}

}  // namespace normjit
