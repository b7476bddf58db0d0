// The compiler that a Service uses unless a test gives it another.
#pragma once

#include <memory>

#include "normjit/compiler/compiler.h"
#include "normjit/driver/driver.h"
#include "normjit/service.h"

namespace normjit {

// NVRTC, searched for as the options say; no newer than `driver` can load, where there is a driver.
std::shared_ptr<Compiler> make_default_compiler(const Options& options, std::shared_ptr<Driver> driver);

}  // namespace normjit
