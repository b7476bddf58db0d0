// Measures time on the host.
#pragma once

#include <chrono>

namespace normjit::cli {

// Runs from its construction on.
class Stopwatch {
 public:
  double microseconds() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_).count();
  }
  double milliseconds() const { return microseconds() / 1000; }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace normjit::cli
