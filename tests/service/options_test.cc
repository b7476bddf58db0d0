#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>
#include <optional>
#include <string>

#include "normjit/service.h"

namespace normjit {
namespace {

// Starts every test with none of the variables set, and puts them back.
class OptionsFromEnvironment : public ::testing::Test {
 protected:
  static constexpr const char* kVariables[] = {"NORMJIT_CACHE_DIR",  "XDG_CACHE_HOME",      "HOME",
                                               "NORMJIT_NVRTC_PATH", "CUDA_HOME",           "CUDA_PATH",
                                               "NORMJIT_LOG",        "NORMJIT_TEMPLATE_DIR"};
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

TEST_F(OptionsFromEnvironment, AKnownLogLevelTurnsTheLogOn) {
  for (const char* level : {"debug", "info", "warn", "error"}) {
    set("NORMJIT_LOG", level);
    EXPECT_TRUE(Options::from_environment().log) << level;
  }
  set("NORMJIT_LOG", "loud");
  EXPECT_FALSE(Options::from_environment().log);
}

}  // namespace
}  // namespace normjit
