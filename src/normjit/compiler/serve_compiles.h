// What the program normjit-compile does.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "normjit/compiler/compiler.h"

namespace normjit {

// Compiles what the other end of `socket` asks for, one source at a time, with what `make` gives for the
// libnvrtc that it names first. Returns once the other end is closed; where that happens during a compile,
// ends this process at once, for nothing else ends a compile.
void serve_compiles(int socket, const std::function<std::shared_ptr<Compiler>(const std::string&)>& make);

}  // namespace normjit
