// SPDX-License-Identifier: Apache-2.0
// What a process holds of the system.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>

namespace normjit::testing {

struct ProcessState {
  std::size_t files = 0;  // open descriptors
  std::size_t threads = 0;
  friend bool operator==(const ProcessState&, const ProcessState&) = default;
};

inline std::ostream& operator<<(std::ostream& out, const ProcessState& state) {
  return out << state.files << " files, " << state.threads << " threads";
}

inline ProcessState process_state() {
  const auto count = [](const char* folder) {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator{}));
  };
  return {.files = count("/proc/self/fd"), .threads = count("/proc/self/task")};
}

// Bytes of memory that are in RAM.
inline std::size_t resident_bytes() {
  std::ifstream stream("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  stream >> all >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace normjit::testing
