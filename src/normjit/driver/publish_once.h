// A value that is made on first use, without a lock.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "normjit/result.h"

namespace normjit {

// Thread-safe. Concurrent threads may each make a value; one is kept, for the life of this object. A failure
// is not kept: the next call tries again. No lock, because a process forked while another thread makes the
// value would hang on it.
template <class T>
class PublishOnce {
 public:
  PublishOnce() = default;
  PublishOnce(const PublishOnce&) = delete;
  PublishOnce& operator=(const PublishOnce&) = delete;
  ~PublishOnce() { delete value_.load(std::memory_order_acquire); }

  // The value, or null if it has not been made.
  const T* peek() const noexcept { return value_.load(std::memory_order_acquire); }

  // The value, made by `make() -> Result<T>` on first use; never null.
  template <class Make>
  Result<const T*> get(const Make& make) {
    if (const T* value = peek()) return value;
    Result<T> made = make();
    if (!made) return made.error();
    auto mine = std::make_unique<const T>(std::move(*made));
    const T* first = nullptr;
    if (value_.compare_exchange_strong(first, mine.get(), std::memory_order_acq_rel)) return mine.release();
    return first;
  }

 private:
  std::atomic<const T*> value_{nullptr};
};

}  // namespace normjit
