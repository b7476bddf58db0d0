// SPDX-License-Identifier: Apache-2.0
// Whether a remote store is worth asking: one verdict for all processes that share a cache directory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "normjit/cache/file_system.h"

namespace normjit {

// A failure opens the breaker: for `pause` no process asks the store. Then one process asks once, and the
// answer opens or closes the breaker again. The verdict is a file of the cache directory; without a directory
// each process has its own. Thread-safe, and safe for a forked child.
class Breaker {
 public:
  struct Limits {
    std::chrono::milliseconds pause{30'000};
    // A store that answers slowly counts as failed, too, once such answers have taken `lost` together.
    std::chrono::milliseconds slow{100}, lost{300};
  };
  // `name` tells stores apart: any text. Touches no file.
  Breaker(std::string_view name, const std::string& directory, std::shared_ptr<FileSystem> files, bool shared,
          Limits limits);

  // Whether to ask now. A call that is let through is followed by one of succeeded() and failed(), or is as
  // none.
  bool lets_through() noexcept;
  // `waited`: how long a caller has waited for the answer; nothing if none has. True if the breaker opens,
  // because answers are slow.
  bool succeeded(std::optional<std::chrono::nanoseconds> waited) noexcept;
  // True if this failure opened it.
  bool failed() noexcept;
  // Opens it for this process alone.
  void pause() noexcept;
  // The store answers, whatever was known before.
  void close() noexcept;

  // The file of the verdict; empty: there is none.
  const std::string& path() const { return path_; }

 private:
  using Clock = std::chrono::steady_clock;

  enum class Verdict { none, fresh, old };
  // Of the file. `left`: how long a fresh one still counts.
  Verdict verdict(Clock::duration& left) const noexcept;
  void write_verdict() noexcept;
  Clock::rep after(Clock::duration time) const noexcept {
    return (Clock::now() + time).time_since_epoch().count();
  }

  const std::string directory_, id_, path_;
  const std::shared_ptr<FileSystem> files_;
  const bool shared_;
  const Limits limits_;
  std::atomic<Clock::rep> shut_until_ = 0;  // 0: closed, and no failure is known to this process
  std::atomic<std::int64_t> lost_ns_ = 0;
};

}  // namespace normjit
