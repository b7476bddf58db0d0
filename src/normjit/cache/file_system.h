// SPDX-License-Identifier: Apache-2.0
// The system calls of the cache, one function each: tests count them and make them fail.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace normjit {

// A seam. Every function has the meaning, the return value and the errno of the system call of its name.
// Implementations are thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual int open(const char* path, int flags, unsigned mode) = 0;
  virtual long read(int file, void* to, std::size_t bytes) = 0;
  virtual long pread(int file, void* to, std::size_t bytes, long long offset) = 0;
  virtual long write(int file, const void* from, std::size_t bytes) = 0;
  virtual int fstat(int file, struct stat* facts) = 0;
  virtual int lstat(const char* path, struct stat* facts) = 0;
  virtual int fsync(int file) = 0;
  // fcntl(): F_OFD_SETLK or F_OFD_GETLK.
  virtual int lock(int file, int command, struct flock* range) = 0;
  virtual int close(int file) = 0;
  virtual int link(const char* from, const char* to) = 0;
  virtual int rename(const char* from, const char* to) = 0;
  virtual int unlink(const char* path) = 0;
  virtual int mkdir(const char* path, unsigned mode) = 0;
  // The names in a directory without "." and "..", or -1.
  virtual int list(const char* path, std::vector<std::string>& names) = 0;
};

std::shared_ptr<FileSystem> make_posix_file_system();

}  // namespace normjit
