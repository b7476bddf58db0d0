// SPDX-License-Identifier: Apache-2.0
#include "verify/text_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/support/temp_directory.h"
#include "verify/npy.h"

namespace normjit::oracle {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// While it lives, no file of this process grows beyond so many bytes: as a full disk, with EFBIG for ENOSPC.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old_);
    const struct rlimit limit = {bytes, old_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, signal_);
  }

 private:
  struct rlimit old_ = {};
  void (*signal_)(int);
};

class TextFile : public testing::Test {
 protected:
  static std::string contents(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(directory_.path()), fs::directory_iterator());
  }
  std::string path() const { return directory_ / "file"; }

  TempDirectory directory_;
};

TEST_F(TextFile, AFileIsReplacedWholeAndKeepsItsMode) {
  write_text(path(), "first").value();
  ASSERT_EQ(chmod(path().c_str(), 0640), 0);
  write_text(path(), "second").value();
  EXPECT_EQ(contents(path()), "second");
  EXPECT_EQ(fs::status(path()).permissions(), fs::perms(0640));
  EXPECT_EQ(files(), 1);
}

TEST_F(TextFile, AFullDiskLeavesTheOldFile) {
  write_text(path(), "old").value();
  const Matrix matrix(DType::f32, 100, 1000);
  Result<void> text, npy;
  {
    const FullDisk full(1000);
    text = write_text(path(), std::string(100'000, 'x'));
    npy = write_npy(path(), matrix, {100, 1000});
  }
  for (const Result<void>& written : {text, npy}) {
    EXPECT_EQ(written.code(), Code::CacheIo);
    EXPECT_THAT(written.error().message, HasSubstr(path() + " cannot be written: File too large"));
  }
  EXPECT_EQ(contents(path()), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(TextFile, LinksStayLinks) {
  write_text(path(), "old").value();
  fs::create_symlink("file", directory_ / "link");
  write_text(directory_ / "link", "new").value();
  EXPECT_TRUE(fs::is_symlink(directory_ / "link"));
  EXPECT_EQ(contents(path()), "new");
  fs::create_symlink("target", directory_ / "dangling");
  write_text(directory_ / "dangling", "made").value();
  EXPECT_EQ(contents(directory_ / "target"), "made");
}

TEST_F(TextFile, DevicesAndPipesAreWrittenDirectly) {
  write_text("/dev/null", "text").value();
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  std::string received;
  std::thread reader([&] { received = contents(path()); });
  const Result<void> written = write_text(path(), "text");
  reader.join();
  EXPECT_TRUE(written.ok());
  EXPECT_EQ(received, "text");
  EXPECT_TRUE(fs::is_fifo(path()));
}

TEST_F(TextFile, TheReasonIsThatOfTheCallThatFailed) {
  const Matrix matrix(DType::f32, 1, 4);
  for (const Result<void>& written : {write_text("/dev/full", "text"), write_npy("/dev/full", matrix, {4})}) {
    EXPECT_EQ(written.code(), Code::CacheIo);
    EXPECT_EQ(written.error().message, "/dev/full cannot be written: No space left on device");
  }
  EXPECT_THAT(write_text(directory_.path(), "text").error().message, HasSubstr("Is a directory"));
  EXPECT_THAT(write_text(directory_ / "no/file", "text").error().message, HasSubstr("No such file"));
}

TEST_F(TextFile, WhatIsReadIsBounded) {
  write_text(path(), "").value();
  fs::resize_file(path(), kMaxTextBytes);
  EXPECT_EQ(read_text(path()).value().size(), static_cast<std::size_t>(kMaxTextBytes));
  fs::resize_file(path(), kMaxTextBytes + 1);
  for (const std::string& large : {path(), std::string("/dev/zero")}) {
    const Result<std::string> text = read_text(large);
    EXPECT_EQ(text.code(), Code::BadArgument);
    if (!text) {
      EXPECT_THAT(text.error().message, HasSubstr(large + " has more than 64 MiB"));
    }
  }
}

}  // namespace
}  // namespace normjit::oracle
