// SPDX-License-Identifier: Apache-2.0
// A file that scripts/embed_files.cmake embedded in the program at build time.
#pragma once

#include <string_view>

namespace normjit {

struct EmbeddedFile {
  std::string_view name;  // "hw.cuh", "schedule/ring.cuh"
  std::string_view text;
};

}  // namespace normjit
