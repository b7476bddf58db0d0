// SPDX-License-Identifier: Apache-2.0
// Measures time on the host.
#pragma once

#include <chrono>

namespace normjit {

// Starts at its construction.
class Stopwatch {
 public:
  double seconds() const { return microseconds() / 1e6; }
  double milliseconds() const { return microseconds() / 1e3; }
  double microseconds() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace normjit
