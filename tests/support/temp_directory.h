// A fresh directory under the test's temporary directory, removed with all that is in it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace normjit {

class TempDirectory {
 public:
  TempDirectory() : path_(::testing::TempDir() + "/normjit-XXXXXX") {
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
