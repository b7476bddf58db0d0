// SPDX-License-Identifier: Apache-2.0
// A file that lists the specs that had to be compiled: the manifest of the next prebuild.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "normjit/base/fork.h"
#include "normjit/cache/file_system.h"
#include "normjit/cache/warn_once.h"

namespace normjit {

// Thread-safe; any number of processes may append to one file, and their lines do not mix. The lines are
// JSON. Best effort: a file that cannot be written is warned of once.
class MissLog {
 public:
  // An empty path logs nothing. Touches no file.
  MissLog(std::string path, std::shared_ptr<FileSystem> files, Warn warn)
      : path_(std::move(path)), files_(std::move(files)), warn_(std::move(warn)) {}

  // Appends a line for this spec text, once in this object's life. The architecture is a comment.
  void add(const std::string& spec, std::string_view arch);

 private:
  enum class Trouble { unwritten };

  const std::string path_;
  const std::shared_ptr<FileSystem> files_;
  WarnOnce<Trouble> warn_;
  ForkMutex mutex_;                // never held across a file access
  std::set<std::string> written_;  // specs
};

}  // namespace normjit
