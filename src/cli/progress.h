// SPDX-License-Identifier: Apache-2.0
// The progress of a prebuild or a tuning, on stderr: a bar on a terminal, one line a step elsewhere. Both
// estimate the time that is left.
#pragma once

#include <chrono>
#include <string>

#include "normjit/service.h"

namespace normjit::cli {

// "about 40 s left", "about 3 min left", if each step takes as long as those that are done; empty in the
// first second and at the end.
std::string time_left(double seconds, int done, int total);

class Progress {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Progress(bool terminal, Clock::time_point begun = Clock::now())
      : terminal_(terminal), begun_(begun) {}
  ~Progress();  // ends the line of the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // After a kernel. Not thread-safe: prebuild calls from one thread at a time.
  void show(const KernelReport& kernel, int done, int total);
  // After a step of another kind: of so many `things`, with what to say about it on a line of its own.
  void show(int done, int total, const std::string& things, const std::string& line);

 private:
  bool terminal_;
  Clock::time_point begun_;
  bool line_open_ = false;
  int failed_ = 0;
};

}  // namespace normjit::cli
