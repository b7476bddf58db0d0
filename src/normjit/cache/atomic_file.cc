// SPDX-License-Identifier: Apache-2.0
#include "normjit/cache/atomic_file.h"

#include <fcntl.h>
#include <sys/random.h>

#include <cstdint>
#include <cstdio>
#include <utility>

#include "normjit/cache/file_names.h"
#include "normjit/cache/system_call.h"

namespace normjit {
namespace {

bool make_directory(FileSystem& files, const std::string& path, unsigned mode) {
  return files.mkdir(path.c_str(), mode) == 0 || errno == EEXIST;
}

bool make_with_parents(FileSystem& files, const std::string& path, unsigned mode) {
  if (make_directory(files, path, mode)) return true;
  const std::size_t slash = path.find_last_of('/');
  if (errno != ENOENT || slash == std::string::npos || slash == 0) return false;
  return make_with_parents(files, path.substr(0, slash), mode) && make_directory(files, path, mode);
}

// Appends 16 random digits from getrandom(). Process ids and clocks repeat across containers that share a
// directory.
bool append_random(std::string& text) {
  std::uint64_t number = 0;
  if (uninterrupted([&] { return getrandom(&number, sizeof number, 0); }) != sizeof number) return false;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(number));
  text += digits;
  return true;
}

}  // namespace

Result<void> make_directories(FileSystem& files, const std::string& directory, bool shared) {
  if (make_with_parents(files, directory, shared ? 0777 : 0700)) return {};
  return io_error("make the directory", directory, errno);
}

AtomicFile::AtomicFile(FileSystem& files, std::string directory, std::string_view name, bool shared,
                       unsigned mode)
    : files_(files),
      directory_(std::move(directory)),
      path_(directory_ + '/' + std::string(name)),
      shared_(shared),
      mode_(mode) {}

AtomicFile::~AtomicFile() {
  if (file_ >= 0) files_.close(file_);
  if (!temporary_.empty()) files_.unlink(temporary_.c_str());
}

Result<void> AtomicFile::create() {
  std::string path = path_ + '.';
  if (!append_random(path)) return io_error("get random bytes for", path, errno);
  path += kTemporarySuffix;
  const auto open = [&] {
    return files_.open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode_);
  };
  file_ = uninterrupted(open);
  if (file_ < 0 && errno == ENOENT) {
    if (Result<void> made = make_directories(files_, directory_, shared_); !made) return made;
    file_ = uninterrupted(open);
  }
  if (file_ < 0) return io_error("create", path, errno);
  temporary_ = std::move(path);
  return {};
}

Result<void> AtomicFile::write(std::string_view bytes, bool flush) {
  while (!bytes.empty()) {
    const long put = uninterrupted([&] { return files_.write(file_, bytes.data(), bytes.size()); });
    if (put <= 0) return io_error("write", temporary_, put < 0 ? errno : EIO);
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  if (flush && uninterrupted([&] { return files_.fsync(file_); }) < 0)
    return io_error("flush", temporary_, errno);
  // Network file systems report a full disk or quota at close(). After EINTR the file is closed.
  if (files_.close(std::exchange(file_, -1)) < 0 && errno != EINTR)
    return io_error("close", temporary_, errno);
  return {};
}

Result<void> AtomicFile::publish(bool replace) {
  was_taken_ = false;
  if (!replace) {
    if (files_.link(temporary_.c_str(), path_.c_str()) == 0) return {};
    was_taken_ = errno == EEXIST;
    if (was_taken_) return {};
    // Some file systems lack or forbid hard links. rename() is as atomic, but the last publisher wins.
  }
  if (files_.rename(temporary_.c_str(), path_.c_str()) < 0) return io_error("publish", path_, errno);
  // The destructor still unlinks: if link() succeeded but its reply was lost (NFS), both names are one file,
  // and rename() keeps both.
  return {};
}

}  // namespace normjit
