#include "normjit/cache/read_file.h"

#include <fcntl.h>

#include "normjit/cache/system_call.h"

namespace normjit {
namespace {

using Outcome = FileContent::Outcome;

FileContent unreadable(const char* what, const std::string& path) {
  return {.outcome = Outcome::unreadable, .error = io_error(what, path, errno).message};
}

FileContent unfit(const std::string& path, const std::string& reason, std::int64_t size = 0) {
  return {.outcome = Outcome::unfit, .size = size, .error = path + " " + reason};
}

FileContent read_opened(FileSystem& files, int file, const std::string& path, std::int64_t size_limit) {
  struct stat facts = {};
  if (files.fstat(file, &facts) < 0) return unreadable("stat", path);
  if (!S_ISREG(facts.st_mode)) return unfit(path, "is not a regular file");
  if (facts.st_size > size_limit) {
    return unfit(path, "is larger than the " + std::to_string(size_limit) + " bytes allowed", facts.st_size);
  }
  FileContent content{.outcome = Outcome::read, .size = facts.st_size};
  content.bytes.resize(static_cast<std::size_t>(facts.st_size));
  std::size_t done = 0;
  while (done < content.bytes.size()) {
    const long got = uninterrupted(
        [&] { return files.read(file, content.bytes.data() + done, content.bytes.size() - done); });
    if (got < 0) return unreadable("read", path);
    if (got == 0) break;  // shorter than fstat said: what there is will not verify
    done += static_cast<std::size_t>(got);
  }
  content.bytes.resize(done);
  return content;
}

}  // namespace

FileContent read_file(FileSystem& files, const std::string& path, std::int64_t size_limit) {
  const int file = uninterrupted(
      [&] { return files.open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0); });
  if (file < 0) {
    if (errno == ENOENT) return {};
    if (errno == ELOOP) return unfit(path, "is a symbolic link");
    return unreadable("open", path);
  }
  FileContent content = read_opened(files, file, path, size_limit);
  files.close(file);
  return content;
}

}  // namespace normjit
