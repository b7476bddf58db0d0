// SPDX-License-Identifier: Apache-2.0
#include "normjit/base/dynamic_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/support/temp_directory.h"

namespace normjit {
namespace {

using testing::HasSubstr;

constexpr const char* kMath = "libm.so.6";

TEST(DynamicLibrary, OpensASonameAndFindsSymbols) {
  std::string why;
  const DynamicLibrary library = DynamicLibrary::open(kMath, &why);
  ASSERT_TRUE(library) << why;
  const auto cosine = reinterpret_cast<double (*)(double)>(library.symbol("cos"));
  ASSERT_NE(cosine, nullptr);
  EXPECT_EQ(cosine(0.0), 1.0);
  EXPECT_EQ(library.symbol("no_such_function"), nullptr);
}

TEST(DynamicLibrary, KnowsItsFile) {
  const std::string path = DynamicLibrary::open(kMath).path();
  EXPECT_TRUE(std::filesystem::path(path).is_absolute()) << path;
  EXPECT_EQ(std::filesystem::path(path).filename(), kMath);
}

TEST(DynamicLibrary, OpensAFile) {
  const std::string path = DynamicLibrary::open(kMath).path();
  EXPECT_EQ(DynamicLibrary::open(path).path(), path);
}

TEST(DynamicLibrary, FailsWithTheLoadersReason) {
  std::string why;
  EXPECT_FALSE(DynamicLibrary::open("libnormjit-no-such.so.1", &why));
  EXPECT_THAT(why, HasSubstr("libnormjit-no-such.so.1"));

  const TempDirectory directory;
  std::ofstream(directory / "text.so") << "not a library";
  EXPECT_FALSE(DynamicLibrary::open(directory / "text.so", &why));
  EXPECT_THAT(why, HasSubstr("text.so"));
}

TEST(DynamicLibrary, AnEmptyNameIsNotTheProgram) {
  std::string why;
  EXPECT_FALSE(DynamicLibrary::open("", &why));
  EXPECT_FALSE(why.empty());
  EXPECT_FALSE(DynamicLibrary::already_loaded(""));
}

TEST(DynamicLibrary, AlreadyLoadedLoadsNothing) {
  const std::string soname = "libanl.so.1";  // of every glibc, used by hardly any program
  if (DynamicLibrary::already_loaded(soname)) GTEST_SKIP() << soname << " is loaded in this process.";
  ASSERT_TRUE(DynamicLibrary::open(soname));
  EXPECT_TRUE(DynamicLibrary::already_loaded(soname));
}

TEST(DynamicLibrary, AnEmptyOneHasNothing) {
  const DynamicLibrary none;
  EXPECT_FALSE(none);
  EXPECT_EQ(none.symbol("cos"), nullptr);
  EXPECT_EQ(none.path(), "");
}

TEST(FileOfAddress, IsTheProgramOrALibrary) {
  static const int here = 0;
  EXPECT_EQ(file_of_address(&here), std::filesystem::read_symlink("/proc/self/exe"));
  const DynamicLibrary library = DynamicLibrary::open(kMath);
  EXPECT_EQ(file_of_address(library.symbol("cos")), library.path());
  EXPECT_EQ(file_of_address(nullptr), "");
}

}  // namespace
}  // namespace normjit
