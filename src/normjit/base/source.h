// SPDX-License-Identifier: Apache-2.0
// The source of a kernel, from the generator to the compiler.
#pragma once

#include <string>

namespace normjit {

struct Source {
  std::string text;    // one complete CUDA C++ translation unit; #line directives name the template files
  std::string kernel;  // the extern "C" entry point
  std::string description;  // for error messages: the canonical spec and the plan
};

}  // namespace normjit
