// The progress of a prebuild or a tuning, on stderr: a bar on a terminal, one line a step elsewhere.
#pragma once

#include <string>

#include "normjit/service.h"

namespace normjit::cli {

class Progress {
 public:
  explicit Progress(bool terminal) : terminal_(terminal) {}
  ~Progress();  // ends the line of the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // After a kernel. Not thread-safe: prebuild calls from one thread at a time.
  void show(const KernelReport& kernel, int done, int total);
  // After a step of another kind: of so many `things`, with what to say about it on a line of its own.
  void show(int done, int total, const std::string& things, const std::string& line);

 private:
  bool terminal_;
  bool line_open_ = false;
  int failed_ = 0;
};

}  // namespace normjit::cli
