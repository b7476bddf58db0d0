// SPDX-License-Identifier: Apache-2.0
// The compiler that a Service uses unless a test gives it another.
#pragma once

#include <memory>
#include <string>

#include "normjit/compiler/compiler.h"
#include "normjit/driver/driver.h"
#include "normjit/service.h"

namespace normjit {

// NVRTC, searched for as the options say; no newer than `driver` can load, where there is a driver. Its
// helpers() are processes of the program normjit-compile that is installed with this library.
std::shared_ptr<Compiler> make_default_compiler(const Options& options, std::shared_ptr<Driver> driver);

// `here`, with helpers() that run the program found from the file `own`. The log is told once why there are
// none; it may be empty.
std::shared_ptr<Compiler> make_helped_compiler(std::shared_ptr<Compiler> here, std::string own,
                                               LogCallback log);

// The program normjit-compile that belongs to a library or program with the file `own`: beside it, or in
// libexec/normjit of the same prefix.
struct FoundProgram {
  std::string path;     // empty: there is none
  std::string refusal;  // why it may not be started, or empty: as a cache entry it must be a regular file
                        // that this user or root owns and no other user can write
};
FoundProgram find_compile_program(const std::string& own);

}  // namespace normjit
