// System calls in a process whose signal handlers may interrupt them.
#pragma once

#include <cerrno>

namespace normjit {

// Makes a system call again for as long as signals interrupt it.
template <class Call>
auto uninterrupted(const Call& call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

}  // namespace normjit
