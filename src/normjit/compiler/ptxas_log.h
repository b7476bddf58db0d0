// Parses what ptxas -v reports of a kernel.
#pragma once

#include <string_view>

namespace normjit {

// -1: not in the log.
struct PtxasFacts {
  int registers = -1;     // a thread
  int spill_bytes = -1;   // stores plus loads, called functions included
  int shared_bytes = -1;  // static shared memory a block

  friend bool operator==(const PtxasFacts&, const PtxasFacts&) = default;
};

// The facts of one entry point, by its name in the object code.
PtxasFacts parse_ptxas_log(std::string_view log, std::string_view kernel);

}  // namespace normjit
