// Mutual exclusion of processes, for each key of a cache directory.
//
// Each lock is one byte of one file, which is never written, read or removed. These are open-file-description
// locks: the kernel frees them when their process dies, threads of one process exclude each other too, and
// closing another descriptor of the file frees nothing.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "normjit/cache/file_system.h"

namespace normjit {

// A lock on one byte. It saves work; correctness does not depend on it. Not thread-safe.
class KeyLock {
 public:
  enum class State {
    held,
    busy,         // another holder, stopped or very slow, kept it until the patience ended
    unavailable,  // no directory, or no locks on its file system
  };

  // Unavailable, as for a cache without a directory.
  KeyLock() = default;
  // Locks an id, waiting up to `patience`. Makes the directory if it is missing. `files` must outlive the
  // lock.
  static KeyLock of_id(FileSystem& files, const std::string& directory, std::string_view id, bool shared,
                       std::chrono::milliseconds patience);
  // The lock for trimming the directory; does not wait.
  static KeyLock of_trimmer(FileSystem& files, const std::string& directory, bool shared);

  KeyLock(KeyLock&& other) noexcept;
  KeyLock& operator=(KeyLock&&) = delete;
  ~KeyLock();

  State state() const { return state_; }
  // How long the constructor waited.
  std::chrono::nanoseconds waited() const { return waited_; }

 private:
  KeyLock(FileSystem& files, const std::string& directory, bool shared, long long byte,
          std::chrono::milliseconds patience);
  bool set(short type);

  FileSystem* files_ = nullptr;
  int file_ = -1;
  long long byte_ = 0;
  State state_ = State::unavailable;
  std::chrono::nanoseconds waited_{0};
};

}  // namespace normjit
