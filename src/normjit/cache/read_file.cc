// SPDX-License-Identifier: Apache-2.0
#include "normjit/cache/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "normjit/base/text.h"
#include "normjit/cache/system_call.h"

namespace normjit {

using Kind = Lookup::Kind;

namespace {

// Reads `bytes` bytes, or up to the end of the file, with read(at, count, done), which calls read() or
// pread(). False if that fails, with errno.
template <class Read>
bool read_fully(std::size_t bytes, std::string& to, const Read& read) {
  to.resize(bytes);
  std::size_t done = 0;
  while (done < bytes) {
    const long got = uninterrupted([&] { return read(to.data() + done, bytes - done, done); });
    if (got < 0) return false;
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  to.resize(done);
  return true;
}

}  // namespace

std::string distrust(const struct stat& facts, bool shared) {
  if (shared) return {};
  if (facts.st_uid != 0 && facts.st_uid != geteuid())
    return "belongs to the user with the id " + std::to_string(facts.st_uid);
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "can be written by other users";
  return {};
}

OpenFile::OpenFile(FileSystem& files, const std::string& path, bool shared, Links links)
    : files_(&files), path_(path) {
  const int flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC | (links == Links::refuse ? O_NOFOLLOW : 0);
  file_ = uninterrupted([&] { return files.open(path.c_str(), flags, 0); });
  const int error = errno;
  // ELOOP is also the answer for a directory that is reached through a loop of links.
  if (file_ < 0 && error == ELOOP && links == Links::refuse && files.lstat(path.c_str(), &facts_) == 0)
    refuse(Kind::damaged, path + " is a symbolic link");
  else if (file_ < 0)
    refuse(error == ENOENT ? Kind::absent : Kind::unreadable, io_error("open", path, error).message);
  else if (files.fstat(file_, &facts_) < 0)
    refuse(Kind::unreadable, io_error("stat", path, errno).message);
  else if (!S_ISREG(facts_.st_mode))
    refuse(Kind::damaged, path + " is not a regular file");
  else if (const std::string reason = distrust(facts_, shared); !reason.empty())
    refuse(Kind::untrusted, concat({path, " ", reason}));
}

OpenFile::OpenFile(std::string_view bytes) : memory_(bytes) {
  facts_.st_size = static_cast<off_t>(bytes.size());
}

OpenFile::~OpenFile() {
  if (file_ >= 0) files_->close(file_);
}

bool OpenFile::refuse(Kind kind, std::string error) {
  trouble_ = {.kind = kind, .error = std::move(error)};
  return false;
}

bool OpenFile::read_all(std::int64_t limit, std::string& to) {
  if (trouble_.kind != Kind::entry) return false;
  if (facts_.st_size > limit)
    return refuse(Kind::damaged, concat({path_, " is larger than the ", shortest(limit), " bytes allowed"}));
  // A file that was truncated since fstat fails its checksum later.
  const auto read = [&](char* at, std::size_t count, std::size_t) { return files_->read(file_, at, count); };
  return read_fully(static_cast<std::size_t>(facts_.st_size), to, read) ||
         refuse(Kind::unreadable, io_error("read", path_, errno).message);
}

bool OpenFile::read_at(std::int64_t offset, std::size_t bytes, std::string& to) {
  if (!files_) {
    to = memory_.substr(static_cast<std::size_t>(offset), bytes);
    return true;
  }
  const auto read = [&](char* at, std::size_t count, std::size_t done) {
    return files_->pread(file_, at, count, offset + static_cast<long long>(done));
  };
  return read_fully(bytes, to, read) || refuse(Kind::unreadable, io_error("read", path_, errno).message);
}

}  // namespace normjit
