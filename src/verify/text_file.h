// SPDX-License-Identifier: Apache-2.0
// Whole files: what the tool reads and writes beside the cache.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "normjit/result.h"

namespace normjit::oracle {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// No manifest and no stored suite is larger: a line of a manifest has about 100 bytes.
inline constexpr std::int64_t kMaxTextBytes = std::int64_t{64} << 20;

// The text of a file of at most kMaxTextBytes; "-" is standard input. BadArgument.
Result<std::string> read_text(const std::string& path);

// Writes a file with `write`, which returns false, with errno, once a write failed. A regular file is written
// aside in the same directory and then renamed: it appears whole, and until then an older one stays. A device
// or FIFO is written directly. CacheIo, whose exit status is the one for output files.
Result<void> write_file(const std::string& path, const std::function<bool(std::FILE*)>& write);
Result<void> write_text(const std::string& path, const std::string& text);

}  // namespace normjit::oracle
