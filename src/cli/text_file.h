// Whole text files: what the tool reads and writes beside the cache.
#pragma once

#include <string>

#include "normjit/result.h"

namespace normjit::cli {

// The text of a file; "-" is standard input. BadArgument.
Result<std::string> read_text(const std::string& path);

// Writes or overwrites a file. CacheIo, whose exit status is the one for output files.
Result<void> write_text(const std::string& path, const std::string& text);

}  // namespace normjit::cli
