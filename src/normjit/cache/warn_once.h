// Gives a warning once for each kind of trouble.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace normjit {

// Called for trouble with the cache, on the thread that met it; may be empty.
using Warn = std::function<void(std::string_view)>;

// Thread-safe. The values of Trouble are single bits of an unsigned.
template <class Trouble>
class WarnOnce {
 public:
  explicit WarnOnce(Warn warn) : warn_(std::move(warn)) {}

  void operator()(Trouble trouble, const std::string& message) {
    const unsigned bit = static_cast<unsigned>(trouble);
    if ((told_.fetch_or(bit) & bit) == 0 && warn_) warn_("cache: " + message);
  }

 private:
  const Warn warn_;
  std::atomic<unsigned> told_{0};
};

}  // namespace normjit
