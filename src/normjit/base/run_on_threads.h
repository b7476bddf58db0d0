// SPDX-License-Identifier: Apache-2.0
// Runs a task on several threads and joins them.
#pragma once

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

}  // namespace normjit
