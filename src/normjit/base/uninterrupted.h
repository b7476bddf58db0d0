// SPDX-License-Identifier: Apache-2.0
// System calls that signal handlers may interrupt.
#pragma once

#include <cerrno>

namespace normjit {

// Repeats a system call until no signal interrupts it.
template <class Call>
auto uninterrupted(const Call& call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

}  // namespace normjit
