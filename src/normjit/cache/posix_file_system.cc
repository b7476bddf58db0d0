// SPDX-License-Identifier: Apache-2.0
// The real FileSystem: each function is its system call.
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string_view>

#include "normjit/cache/file_system.h"

namespace normjit {
namespace {

class PosixFileSystem final : public FileSystem {
 public:
  int open(const char* path, int flags, unsigned mode) override { return ::open(path, flags, mode); }
  long read(int file, void* to, std::size_t bytes) override { return ::read(file, to, bytes); }
  long pread(int file, void* to, std::size_t bytes, long long offset) override {
    return ::pread(file, to, bytes, offset);
  }
  long write(int file, const void* from, std::size_t bytes) override { return ::write(file, from, bytes); }
  int fstat(int file, struct stat* facts) override { return ::fstat(file, facts); }
  int lstat(const char* path, struct stat* facts) override { return ::lstat(path, facts); }
  int fsync(int file) override { return ::fsync(file); }
  int lock(int file, int command, struct flock* range) override { return ::fcntl(file, command, range); }
  int close(int file) override { return ::close(file); }
  int link(const char* from, const char* to) override { return ::link(from, to); }
  int rename(const char* from, const char* to) override { return std::rename(from, to); }
  int unlink(const char* path) override { return ::unlink(path); }
  int mkdir(const char* path, unsigned mode) override { return ::mkdir(path, mode); }

  int list(const char* path, std::vector<std::string>& names) override {
    DIR* directory = ::opendir(path);
    if (!directory) return -1;
    names.clear();
    errno = 0;  // how readdir tells an error from the end
    while (const dirent* entry = ::readdir(directory)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    const int error = errno;
    ::closedir(directory);
    errno = error;
    return error == 0 ? 0 : -1;
  }
};

}  // namespace

std::shared_ptr<FileSystem> make_posix_file_system() { return std::make_shared<PosixFileSystem>(); }

}  // namespace normjit
