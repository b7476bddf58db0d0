// SPDX-License-Identifier: Apache-2.0
// What a process is like before normjit's first work, and after its library was closed.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "normjit/service.h"
#include "tests/support/child.h"

namespace normjit::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

std::string memory_map() {
  std::stringstream text;
  text << std::ifstream("/proc/self/maps").rdbuf();
  return text.str();
}

// What needs neither compiler nor driver opens neither; and no thread outlives the call that has started it.
TEST(Quiet, NothingIsOpenedAndNoThreadRunsBeforeTheFirstPrepare) {
  const auto threads = names_in("/proc/self/task"), files = names_in("/proc/self/fd");
  {
    Options options = Options::from_environment();
    options.cache_directory.clear();
    const Service service(options);
    const DeviceProfile device = DeviceProfile::of(Arch{90}).value();
    ASSERT_TRUE(service.render({.columns = 64}, device, RowsRegime::many, Alignment::one).ok());
    EXPECT_EQ(names_in("/proc/self/task"), threads);
    EXPECT_EQ(names_in("/proc/self/fd"), files);
  }
  EXPECT_THAT(memory_map(), Not(HasSubstr("libcuda.so")));
  EXPECT_THAT(memory_map(), Not(HasSubstr("libnvrtc.so")));
}

#ifdef NORMJIT_LIBRARY
// Its handlers of forks and of the exit must not be left pointing to nothing.
TEST(Quiet, TheLibraryStaysWhenItIsClosed) {
  EXPECT_EQ(outcome_in_child(
                [] {
                  void* const library = ::dlopen(NORMJIT_LIBRARY, RTLD_NOW | RTLD_LOCAL);
                  return library != nullptr && ::dlclose(library) == 0 &&
                         ::dlopen(NORMJIT_LIBRARY, RTLD_NOW | RTLD_NOLOAD) != nullptr &&
                         outcome_in_child([] { return true; }) == "done";
                },
                Ending::exit_handlers),
            "done");
}
#endif

}  // namespace
}  // namespace normjit::testing
