// SPDX-License-Identifier: Apache-2.0
#include "verify/text_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "normjit/base/text.h"

namespace normjit::oracle {
namespace {

Error unwritable(const std::string& path, int reason) {
  return {Code::CacheIo, concat({path, " cannot be written: ", std::strerror(reason)})};
}

// 0, or the errno of the call that failed.
int fill(int descriptor, const std::function<bool(std::FILE*)>& write) {
  std::FILE* file = descriptor < 0 ? nullptr : fdopen(descriptor, "wb");
  if (file == nullptr) return errno;
  const int reason = write(file) && std::fflush(file) == 0 ? 0 : errno;
  if (std::fclose(file) != 0 && reason == 0) return errno;
  return reason;
}

// The path behind links, as far as the file exists.
std::string resolved(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr), std::free);
  return real ? real.get() : path;
}

// A name in the same directory. Processes of two containers may have the same number, so it is random.
std::string name_aside(const std::string& path) {
  std::random_device random;
  const std::string directory = path.substr(0, path.find_last_of('/') + 1);
  return concat({directory, ".normjit-", shortest(random()), shortest(random()), ".tmp"});
}

}  // namespace

Result<std::string> read_text(const std::string& path) {
  const std::string shown = path == "-" ? "standard input" : path;
  const auto wrong = [&](std::string_view what) { return Error{Code::BadArgument, concat({shown, what})}; };
  const File opened(path == "-" ? nullptr : std::fopen(path.c_str(), "rb"));
  std::FILE* file = path == "-" ? stdin : opened.get();
  if (file == nullptr) return wrong(concat({" cannot be opened: ", std::strerror(errno)}));
  std::string text;
  char part[1 << 16];
  std::size_t bytes = 0;
  while ((bytes = std::fread(part, 1, sizeof part, file)) > 0) {
    text.append(part, bytes);
    if (std::ssize(text) > kMaxTextBytes)
      return wrong(" has more than 64 MiB, which no manifest or suite has");
  }
  if (std::ferror(file) != 0) return wrong(concat({" cannot be read: ", std::strerror(errno)}));
  return text;
}

Result<void> write_file(const std::string& path, const std::function<bool(std::FILE*)>& write) {
  constexpr unsigned kMode = 0666;  // less the umask
  struct stat facts = {}, link = {};
  const bool exists = stat(path.c_str(), &facts) == 0;
  const bool dangling = !exists && lstat(path.c_str(), &link) == 0;
  if (!dangling && (!exists || S_ISREG(facts.st_mode))) {
    const std::string place = resolved(path), aside = name_aside(place);
    const int descriptor = open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
    // A directory that takes no new file may have an old one that can be written.
    const bool closed = descriptor < 0 && exists && (errno == EACCES || errno == EPERM || errno == EROFS);
    if (!closed) {
      if (descriptor < 0) return unwritable(path, errno);
      if (exists) (void)fchmod(descriptor, facts.st_mode & 0777);  // as it was
      int reason = fill(descriptor, write);
      if (reason == 0 && std::rename(aside.c_str(), place.c_str()) != 0) reason = errno;
      if (reason == 0) return {};
      unlink(aside.c_str());
      return unwritable(path, reason);
    }
  }
  const int reason = fill(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode), write);
  if (reason != 0) return unwritable(path, reason);
  return {};
}

Result<void> write_text(const std::string& path, const std::string& text) {
  return write_file(
      path, [&](std::FILE* file) { return std::fwrite(text.data(), 1, text.size(), file) == text.size(); });
}

}  // namespace normjit::oracle
