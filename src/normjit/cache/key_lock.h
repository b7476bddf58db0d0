// SPDX-License-Identifier: Apache-2.0
// Mutual exclusion of processes, for each key of a cache directory.
//
// Each lock is a range of one file, which is never written, read or removed. These are open-file-description
// locks: the kernel frees them when their process dies, threads of one process exclude each other too, and
// closing another descriptor of the file frees nothing. A range begins at a byte of 62 bits, which stands for
// the key; its length tells waiters which process holds it.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "normjit/cache/file_system.h"

namespace normjit {

// It saves work; correctness does not depend on it. Not thread-safe.
class KeyLock {
 public:
  enum class State {
    held,
    busy,         // another holder kept it for too long
    unavailable,  // no directory, or no locks on its file system
  };

  // Unavailable, as for a cache without a directory.
  KeyLock() = default;
  // Locks an id. Waits up to `patience`; up to kSlowFactor times as long for a process that runs, since a
  // busy machine makes a holder slow. Makes the directory if it is missing. `files` must outlive the lock.
  // `on_wait` is called once before it waits.
  static KeyLock of_id(FileSystem& files, const std::string& directory, std::string_view id, bool shared,
                       std::chrono::milliseconds patience, const std::function<void()>& on_wait = {});
  // The lock for trimming the directory; does not wait.
  static KeyLock of_trimmer(FileSystem& files, const std::string& directory, bool shared);

  KeyLock(KeyLock&& other) noexcept;
  KeyLock& operator=(KeyLock&&) = delete;
  ~KeyLock();

  static constexpr int kSlowFactor = 30;

  State state() const { return state_; }
  // How long the constructor waited.
  std::chrono::nanoseconds waited() const { return waited_; }

 private:
  KeyLock(FileSystem& files, const std::string& directory, bool shared, long long byte,
          std::chrono::milliseconds patience, const std::function<void()>& on_wait);
  bool set(short type);
  // Whether the holder is a process that is known to run: neither stopped nor of another PID namespace.
  bool holder_runs() const;

  FileSystem* files_ = nullptr;
  int file_ = -1;
  long long byte_ = 0, length_ = 1;
  State state_ = State::unavailable;
  std::chrono::nanoseconds waited_{0};
};

}  // namespace normjit
