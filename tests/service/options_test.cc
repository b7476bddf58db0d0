// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "normjit/service.h"

namespace normjit {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Starts every test with none of the variables set, and puts them back.
class OptionsFromEnvironment : public ::testing::Test {
 protected:
  static constexpr const char* kVariables[] = {"NORMJIT_CACHE_DIR",
                                               "XDG_CACHE_HOME",
                                               "HOME",
                                               "NORMJIT_NVRTC_PATH",
                                               "CUDA_HOME",
                                               "CUDA_PATH",
                                               "NORMJIT_LOG",
                                               "NORMJIT_TEMPLATE_DIR",
                                               "NORMJIT_MODE",
                                               "NORMJIT_TOOLCHAIN",
                                               "NORMJIT_CACHE_MAX_BYTES",
                                               "NORMJIT_CACHE_SHARED",
                                               "NORMJIT_REMOTE",
                                               "NORMJIT_REMOTE_PACK",
                                               "NORMJIT_TRUST",
                                               "NORMJIT_SIGN_KEY"};
  OptionsFromEnvironment() {
    for (const char* name : kVariables) {
      if (const char* value = ::getenv(name)) before_[name] = value;
      ::unsetenv(name);
    }
  }
  ~OptionsFromEnvironment() override {
    for (const char* name : kVariables) ::unsetenv(name);
    for (const auto& [name, value] : before_) set(name.c_str(), value.c_str());
  }
  static void set(const char* name, const char* value) { ASSERT_EQ(::setenv(name, value, 1), 0); }

 private:
  std::map<std::string, std::string> before_;
};

TEST_F(OptionsFromEnvironment, AreEmptyWithoutVariables) {
  const Options options = Options::from_environment();
  EXPECT_EQ(options.cache_directory, "");
  EXPECT_EQ(options.compiler_path, "");
  EXPECT_EQ(options.cuda_home, "");
  EXPECT_EQ(options.template_directory, "");
  EXPECT_THAT(options.trust, IsEmpty());
  EXPECT_EQ(options.sign_key, "");
  EXPECT_FALSE(options.log);
}

TEST_F(OptionsFromEnvironment, TheNearestNameOfTheCacheWins) {
  set("HOME", "/home/me");
  EXPECT_EQ(Options::from_environment().cache_directory, "/home/me/.cache/normjit");
  set("XDG_CACHE_HOME", "/caches");
  EXPECT_EQ(Options::from_environment().cache_directory, "/caches/normjit");
  set("NORMJIT_CACHE_DIR", "/mine");
  EXPECT_EQ(Options::from_environment().cache_directory, "/mine");
  set("NORMJIT_CACHE_DIR", "");
  EXPECT_EQ(Options::from_environment().cache_directory, "/caches/normjit") << "empty is unset";
}

TEST_F(OptionsFromEnvironment, CudaHomeGoesBeforeCudaPath) {
  set("CUDA_PATH", "/cuda-a");
  EXPECT_EQ(Options::from_environment().cuda_home, "/cuda-a");
  set("CUDA_HOME", "/cuda-b");
  EXPECT_EQ(Options::from_environment().cuda_home, "/cuda-b");
}

TEST_F(OptionsFromEnvironment, TakeCompilerAndTemplates) {
  set("NORMJIT_NVRTC_PATH", "/lib/libnvrtc.so");
  set("NORMJIT_TEMPLATE_DIR", "/src/templates");
  const Options options = Options::from_environment();
  EXPECT_EQ(options.compiler_path, "/lib/libnvrtc.so");
  EXPECT_EQ(options.template_directory, "/src/templates");
}

TEST_F(OptionsFromEnvironment, TakeWhatMachinesShare) {
  EXPECT_EQ(Options::from_environment().remote_pack, "");
  set("NORMJIT_REMOTE", "redis://host");
  set("NORMJIT_REMOTE_PACK", "https://host/kernels.njp");
  EXPECT_EQ(Options::from_environment().remote, "redis://host");
  EXPECT_EQ(Options::from_environment().remote_pack, "https://host/kernels.njp");
}

TEST_F(OptionsFromEnvironment, TakeKeysBetweenSpacesAndCommas) {
  set("NORMJIT_TRUST", "RWone two.pub,/three.pub ,  four.pub,");
  set("NORMJIT_SIGN_KEY", "/my key");
  const Options options = Options::from_environment();
  EXPECT_THAT(options.trust, ElementsAre("RWone", "two.pub", "/three.pub", "four.pub"));
  EXPECT_EQ(options.sign_key, "/my key");
  EXPECT_THAT(options.warnings, IsEmpty());
  set("NORMJIT_TRUST", " , ,");
  EXPECT_THAT(Options::from_environment().trust, IsEmpty());
}

TEST_F(OptionsFromEnvironment, AKnownLogLevelTurnsTheLogOn) {
  for (const char* level : {"debug", "info", "warn", "error"}) {
    set("NORMJIT_LOG", level);
    EXPECT_TRUE(Options::from_environment().log) << level;
  }
  set("NORMJIT_LOG", "loud");
  EXPECT_FALSE(Options::from_environment().log);
}

TEST_F(OptionsFromEnvironment, TakeWhatTheyUnderstandWithoutAWarning) {
  set("NORMJIT_MODE", "cached-only");
  set("NORMJIT_TOOLCHAIN", "exact");
  set("NORMJIT_CACHE_MAX_BYTES", "1K");
  set("NORMJIT_CACHE_SHARED", "1");
  set("NORMJIT_LOG", "error");
  const Options options = Options::from_environment();
  EXPECT_EQ(options.mode, Mode::cached_only);
  EXPECT_TRUE(options.exact_toolchain);
  EXPECT_EQ(options.max_cache_bytes, 1024);
  EXPECT_TRUE(options.shared_cache);
  EXPECT_THAT(options.warnings, IsEmpty());
  for (const char* name : {"NORMJIT_MODE", "NORMJIT_TOOLCHAIN", "NORMJIT_CACHE_MAX_BYTES"}) set(name, "");
  EXPECT_THAT(Options::from_environment().warnings, IsEmpty()) << "empty is unset";
}

TEST_F(OptionsFromEnvironment, WarnOfWhatTheyDoNotUnderstand) {
  set("NORMJIT_MODE", "Lazy");
  set("NORMJIT_TOOLCHAIN", "same");
  set("NORMJIT_CACHE_MAX_BYTES", "256 MB");
  set("NORMJIT_CACHE_SHARED", "yes");
  set("NORMJIT_LOG", "loud");
  Options options = Options::from_environment();
  EXPECT_EQ(options.mode, Mode::eager);
  EXPECT_FALSE(options.exact_toolchain);
  EXPECT_EQ(options.max_cache_bytes, Options().max_cache_bytes);
  EXPECT_FALSE(options.shared_cache);
  EXPECT_THAT(options.warnings,
              ElementsAre(HasSubstr("NORMJIT_CACHE_MAX_BYTES is '256 MB'"), HasSubstr("NORMJIT_CACHE_SHARED"),
                          HasSubstr("NORMJIT_TOOLCHAIN"), HasSubstr("eager, lazy or cached-only"),
                          HasSubstr("NORMJIT_LOG is 'loud'")));

  std::vector<std::string> said;
  options.log = [&](LogLevel level, std::string_view text) {
    EXPECT_EQ(level, LogLevel::warn);
    said.emplace_back(text);
  };
  const Service service(options);
  EXPECT_EQ(said, options.warnings);
}

}  // namespace
}  // namespace normjit
