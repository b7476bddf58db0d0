// SPDX-License-Identifier: Apache-2.0
// A fresh directory, removed with all that is in it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace normjit {

class TempDirectory {
 public:
  // Under the test's temporary directory.
  TempDirectory() : TempDirectory(::testing::TempDir()) {}
  // In memory where the system has that, for tests that make very many files.
  static TempDirectory in_memory() {
    constexpr const char* kMemory = "/dev/shm";
    return TempDirectory(::access(kMemory, W_OK) == 0 ? kMemory : ::testing::TempDir());
  }
  explicit TempDirectory(std::string_view parent) : path_(std::string(parent) + "/normjit-XXXXXX") {
    EXPECT_NE(::mkdtemp(path_.data()), nullptr) << "cannot make " << path_;
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace normjit
