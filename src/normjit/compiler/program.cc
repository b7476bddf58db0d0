// SPDX-License-Identifier: Apache-2.0
// The program normjit-compile, which a prebuild with several jobs starts (process_compiler.h). It reads
// requests from its standard input, a socket, and compiles them.
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "normjit/compiler/nvrtc_compiler.h"
#include "normjit/compiler/process_compiler.h"

int main() {
  struct stat input = {};
  if (fstat(STDIN_FILENO, &input) != 0 || !S_ISSOCK(input.st_mode)) {
    std::fputs("normjit-compile is started by a prebuild of normjit, and does nothing by itself\n", stderr);
    return 2;
  }
  std::signal(SIGINT, SIG_IGN);  // Ctrl-C is for the parent; this process ends with it
#ifdef SYS_close_range
  syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 0);  // descriptors inherited from the host
#endif
  normjit::serve_compiles(STDIN_FILENO, [](const std::string& nvrtc) {
    return normjit::make_nvrtc_compiler({.explicit_path = nvrtc, .cuda_home = {}, .driver_cuda_version = {}});
  });
  _exit(0);  // skips NVRTC's exit handlers
}
