// A compiler whose work is done by several processes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "normjit/compiler/compiler.h"

namespace normjit {

// The program that the processes run, normjit-compile.
struct CompileProgram {
  // Its path, asked for before each start; empty: there is none that may be started.
  std::function<std::string()> find;
  // Called where a program that was found does not serve, with the reason as a sentence without its end.
  std::function<void(const std::string& path, std::string_view why)> refused;
};

// Compiles with `here` up to two sources at a time, and each further one in a child process, which serves one
// at a time: as many are started as are ever needed at once. NVRTC's threads wait for each other: on a
// machine with 16 cores 153 kernels took 17.0 s on one thread, 8.4 s on 2, 5.0 s on 4 and 4.2 s on 8 and 16.
//
// Where a child cannot be started, or is not of this build, none is tried again and `here` compiles all. A
// child that dies is replaced, and its kernel compiled once more; CompileFailed if that child dies too.
//
// Children live as long as this object; when this process dies, however it does, they end too. Thread-safe.
// Only the children's own pids are waited for, and no signal, handler or variable is changed, so the host may
// handle or ignore SIGCHLD. A forked child of this process must not use the object.
std::shared_ptr<Compiler> make_process_compiler(std::shared_ptr<Compiler> here, CompileProgram program);

}  // namespace normjit
