// A file that was made part of the program at build time (scripts/embed_files.cmake).
#pragma once

#include <string_view>

namespace normjit {

struct EmbeddedFile {
  std::string_view name;  // without its folder: "hw.cuh"
  std::string_view text;
};

}  // namespace normjit
