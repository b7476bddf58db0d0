// The progress of a prebuild, on stderr: a bar on a terminal, one line a kernel elsewhere.
#pragma once

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

 private:
  bool terminal_;
  bool line_open_ = false;
  int failed_ = 0;
};

}  // namespace normjit::cli
