// One process at a time for each key of a cache directory.
//
// All locks of a directory are bytes of one file, which is never written, read or removed: its name is not
// raced for, and no lock outlives its process, since the kernel frees it. Open-file-description locks:
// threads of one process exclude each other too, and closing another descriptor of the file frees nothing.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "normjit/cache/file_system.h"

namespace normjit {

// A lock on one byte, or none: nobody needs it to be right, it saves work. Not thread-safe.
class KeyLock {
 public:
  enum class State {
    held,
    busy,         // somebody else has held it for as long as we waited: stopped, or very slow
    unavailable,  // the directory or its file system gives no locks
  };

  // Holds nothing: as for a cache without a directory.
  KeyLock() = default;
  // The lock of an id, for which it waits up to `patience`. Makes the directory if it is missing. `files`
  // must outlive the lock.
  static KeyLock of_id(FileSystem& files, const std::string& directory, std::string_view id, bool shared,
                       std::chrono::milliseconds patience);
  // The lock of whoever trims the directory; does not wait.
  static KeyLock of_trimmer(FileSystem& files, const std::string& directory, bool shared);

  KeyLock(KeyLock&& other) noexcept;
  KeyLock& operator=(KeyLock&&) = delete;
  ~KeyLock();

  State state() const { return state_; }
  // How long somebody else was waited for.
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
