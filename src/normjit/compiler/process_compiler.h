// SPDX-License-Identifier: Apache-2.0
// A compiler that works in several processes, and what those processes run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "normjit/compiler/compiler.h"

namespace normjit {

// The program that the processes run, normjit-compile.
struct CompileProgram {
  // Returns its path; called before each start. Empty: no program may be started.
  std::function<std::string()> find;
  // Called if a program that was found cannot serve. The reason is a sentence without its full stop.
  std::function<void(const std::string& path, std::string_view why)> refused;
};

// Compiles up to two sources at a time with `here`, and each further one in a child process. A child compiles
// one source at a time and is started when no other is idle. NVRTC's threads wait for each other: on a
// machine with 16 cores 153 kernels took 17.0 s on one thread, 8.4 s on 2, 5.0 s on 4 and 4.2 s on 8 and 16.
//
// If a child cannot be started or is of another build, no further child is started and `here` compiles all.
// A child that dies is replaced, and its kernel compiled once more; CompileFailed if that child dies too.
//
// Children live as long as this object, and end when this process ends in any way. Thread-safe. Waits only
// for the children's own pids, and changes no signal, handler or environment variable, so the host may handle
// or ignore SIGCHLD. A forked child of this process must not use the object.
std::shared_ptr<Compiler> make_process_compiler(std::shared_ptr<Compiler> here, CompileProgram program);

// The work of normjit-compile: compiles what the other end of `socket` requests, one source at a time, with
// the compiler that `make` returns for the libnvrtc named in the first message. Returns when the other end is
// closed. If that happens during a compile, ends this process at once, since a compile cannot be cancelled.
void serve_compiles(int socket, const std::function<std::shared_ptr<Compiler>(const std::string&)>& make);

}  // namespace normjit
