#include "normjit/cache/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include "normjit/cache/system_call.h"

namespace normjit {
namespace {

using Outcome = FileContent::Outcome;

FileContent unreadable(const char* what, const std::string& path) {
  return {.outcome = Outcome::unreadable, .error = io_error(what, path, errno).message};
}

FileContent read_opened(FileSystem& files, int file, const std::string& path, std::int64_t size_limit,
                        bool shared) {
  struct stat facts = {};
  if (files.fstat(file, &facts) < 0) return unreadable("stat", path);
  FileContent content{.size = facts.st_size, .modified = facts.st_mtime};
  const auto refuse = [&](Outcome outcome, const std::string& reason) {
    content.outcome = outcome;
    content.error = path + " " + reason;
    return content;
  };
  if (!S_ISREG(facts.st_mode)) return refuse(Outcome::unfit, "is not a regular file");
  if (const std::string reason = distrust(facts, shared); !reason.empty())
    return refuse(Outcome::untrusted, reason);
  if (facts.st_size > size_limit)
    return refuse(Outcome::unfit, "is larger than the " + std::to_string(size_limit) + " bytes allowed");

  // A file that was truncated since fstat fails its checksum later.
  const auto read = [&](char* at, std::size_t count, std::size_t) { return files.read(file, at, count); };
  if (!read_fully(static_cast<std::size_t>(facts.st_size), content.bytes, read))
    return unreadable("read", path);
  content.outcome = Outcome::read;
  return content;
}

}  // namespace

std::string distrust(const struct stat& facts, bool shared) {
  if (shared) return {};
  if (facts.st_uid != 0 && facts.st_uid != geteuid())
    return "belongs to the user with the id " + std::to_string(facts.st_uid);
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "can be written by other users";
  return {};
}

FileContent read_file(FileSystem& files, const std::string& path, std::int64_t size_limit, bool shared) {
  const int file = uninterrupted(
      [&] { return files.open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0); });
  if (file < 0) {
    if (errno == ENOENT) return {};
    if (errno == ELOOP) return {.outcome = Outcome::unfit, .error = path + " is a symbolic link"};
    return unreadable("open", path);
  }
  FileContent content = read_opened(files, file, path, size_limit, shared);
  files.close(file);
  return content;
}

}  // namespace normjit
