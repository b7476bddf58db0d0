// SPDX-License-Identifier: Apache-2.0
// Warns once for each kind of trouble.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace normjit {

// Called for trouble with a cache, on the thread that found it; may be empty.
using Warn = std::function<void(std::string_view)>;

// Thread-safe. Trouble is an enumeration of up to 32 values, 0 to 31.
template <class Trouble>
class WarnOnce {
 public:
  // `of` begins each message.
  explicit WarnOnce(Warn warn, std::string_view of = "cache") : warn_(std::move(warn)), of_(of) {}

  void operator()(Trouble trouble, const std::string& message) {
    const unsigned bit = 1u << static_cast<unsigned>(trouble);
    if ((told_.fetch_or(bit) & bit) == 0 && warn_) warn_(of_ + ": " + message);
  }

 private:
  const Warn warn_;
  const std::string of_;
  std::atomic<unsigned> told_{0};
};

}  // namespace normjit
