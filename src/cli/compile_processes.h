// A compiler whose work is done by several processes of this tool.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "normjit/compiler/compiler.h"
#include "normjit/driver/driver.h"
#include "normjit/service.h"

namespace normjit::cli {

// Compiles with `here`, as long as few threads do so at once. NVRTC's threads wait for each other: on a
// machine with 16 cores 153 kernels took 17.0 s on one, 8.4 s on 2, 5.0 s on 4 and 4.2 s on 8 and 16. So each
// further compile goes to a child process, which serves one at a time: as many are started as are ever needed
// at once. They live as long as this object; when this process dies, however it does, they end too.
//
// `child` is the program and arguments of a process that calls serve_compiles() on its standard input. Where
// the system refuses to start one, `here` compiles. A child that dies is replaced, and its kernel compiled
// once more; CompileFailed if that child dies too.
std::shared_ptr<Compiler> make_process_compiler(std::shared_ptr<Compiler> here,
                                                std::vector<std::string> child);

// The one that a prebuild of these options uses: a Service's own, and children of this very program.
std::shared_ptr<Compiler> make_prebuild_compiler(const Options& options, std::shared_ptr<Driver> driver);

// The child's part: answers requests until the other end of `socket` is closed, and ends this process at once
// if that happens during a compile.
void serve_compiles(Compiler& compiler, int socket);

}  // namespace normjit::cli
