// A file that scripts/embed_files.cmake made part of the program at build time.
#pragma once

#include <string_view>

namespace normjit {

struct EmbeddedFile {
  std::string_view name;  // without its folder: "hw.cuh"
  std::string_view text;
};

}  // namespace normjit
