#include "cli/text_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace normjit::cli {

Result<std::string> read_text(const std::string& path) {
  const std::string shown = path == "-" ? "standard input" : path;
  std::FILE* file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) return Error{Code::BadArgument, shown + " cannot be opened: " + std::strerror(errno)};
  std::string text;
  char part[1 << 16];
  std::size_t bytes = 0;
  while ((bytes = std::fread(part, 1, sizeof part, file)) > 0) text.append(part, bytes);
  const bool failed = std::ferror(file) != 0;
  const int reason = errno;
  if (file != stdin) std::fclose(file);
  if (failed) return Error{Code::BadArgument, shown + " cannot be read: " + std::strerror(reason)};
  return text;
}

Result<void> write_text(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  bool good = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  int reason = errno;
  if (file != nullptr && std::fclose(file) != 0 && good) {
    good = false;
    reason = errno;
  }
  if (good) return {};
  return Error{Code::CacheIo, path + " cannot be written: " + std::strerror(reason)};
}

}  // namespace normjit::cli
