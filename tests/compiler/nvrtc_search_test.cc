// SPDX-License-Identifier: Apache-2.0
#include "normjit/compiler/nvrtc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/temp_directory.h"

namespace normjit {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

using Names = std::vector<std::string>;

Names names_of(const std::vector<NvrtcCandidate>& candidates) {
  Names names;
  for (const auto& candidate : candidates)
    names.push_back((candidate.only_if_loaded ? "loaded " : "") + candidate.name);
  return names;
}

// Opens nothing but `there`, and remembers what it was asked for.
struct FakeOpen {
  std::string there;
  Names* asked;

  Result<Nvrtc> operator()(const std::string& name, bool only_if_loaded) const {
    asked->push_back((only_if_loaded ? "loaded " : "") + name);
    if (name != there || only_if_loaded) return Error{Code::NoCompiler, "not here"};
    Nvrtc nvrtc;
    nvrtc.path = name;
    return nvrtc;
  }
};

TEST(NvrtcSearch, TheOrderOfPlaces) {
  const auto places = names_of(nvrtc_candidates("/opt/cuda", "/opt/normjit/bin", 0));
  const Names first(places.begin(), places.begin() + 14);
  EXPECT_THAT(
      first, ElementsAre("loaded libnvrtc.so.13", "loaded libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so.12",
                         "/opt/normjit/bin/libnvrtc.so.13", "/opt/normjit/bin/libnvrtc.so.12",
                         "/opt/normjit/bin/../lib/libnvrtc.so.13", "/opt/normjit/bin/../lib/libnvrtc.so.12",
                         "/opt/normjit/bin/../../nvidia/cu13/lib/libnvrtc.so.13",
                         "/opt/normjit/bin/../../nvidia/cu13/lib/libnvrtc.so.12",
                         "/opt/normjit/bin/../../nvidia/cuda_nvrtc/lib/libnvrtc.so.13",
                         "/opt/normjit/bin/../../nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                         "/opt/cuda/lib64/libnvrtc.so.13", "/opt/cuda/lib64/libnvrtc.so.12"));
  EXPECT_THAT(places, AllOf(Contains("/opt/cuda/lib/libnvrtc.so.13"),
                            Contains("/usr/local/cuda/lib64/libnvrtc.so.13")));
  EXPECT_EQ(std::ranges::count(places, "/usr/local/cuda/lib64/libnvrtc.so.13"), 1);
}

TEST(NvrtcSearch, TheUsualToolkitIsLookedIntoOnce) {
  const auto places = names_of(nvrtc_candidates("/usr/local/cuda", "", 0));
  EXPECT_EQ(std::ranges::count(places, "/usr/local/cuda/lib64/libnvrtc.so.13"), 1);
  EXPECT_EQ(names_of(nvrtc_candidates("", "", 0)), places);
}

TEST(NvrtcSearch, NoMajorAboveTheDrivers) {
  for (const auto& name : names_of(nvrtc_candidates("/opt/cuda", "/opt/normjit/bin", 12))) {
    EXPECT_THAT(name, Not(HasSubstr(".so.13")));
  }
  EXPECT_EQ(nvrtc_candidates("", "", 13), nvrtc_candidates("", "", 0));
}

TEST(NvrtcSearch, TakesTheFirstPlaceThatHasOne) {
  Names asked;
  const auto nvrtc = find_nvrtc({.explicit_path = {}, .cuda_home = "/opt/cuda", .driver_cuda_version = {}},
                                FakeOpen{"libnvrtc.so.12", &asked});
  ASSERT_TRUE(nvrtc.ok()) << nvrtc.error().message;
  EXPECT_EQ(nvrtc->path, "libnvrtc.so.12");
  EXPECT_THAT(asked, ElementsAre("loaded libnvrtc.so.13", "loaded libnvrtc.so.12", "libnvrtc.so.13",
                                 "libnvrtc.so.12"));
}

TEST(NvrtcSearch, AnExplicitPathIsTheOnlyPlace) {
  Names asked;
  const NvrtcSearch search{
      .explicit_path = "/mine/libnvrtc.so", .cuda_home = "/opt/cuda", .driver_cuda_version = {}};
  EXPECT_TRUE(find_nvrtc(search, FakeOpen{"/mine/libnvrtc.so", &asked}).ok());
  const auto failed = find_nvrtc(search, FakeOpen{"libnvrtc.so.13", &asked});
  EXPECT_THAT(asked, ElementsAre("/mine/libnvrtc.so", "/mine/libnvrtc.so"));
  ASSERT_EQ(failed.code(), Code::NoCompiler);
  EXPECT_THAT(failed.error().message,
              AllOf(HasSubstr("/mine/libnvrtc.so"), HasSubstr("not here"), HasSubstr("NORMJIT_NVRTC_PATH")));
}

TEST(NvrtcSearch, TheErrorListsEveryPlaceAndItsReason) {
  Names asked;
  const auto failed = find_nvrtc({.explicit_path = {}, .cuda_home = "/opt/cuda", .driver_cuda_version = {}},
                                 FakeOpen{"", &asked});
  ASSERT_EQ(failed.code(), Code::NoCompiler);
  ASSERT_GT(asked.size(), 10u);
  for (std::string name : asked) {
    if (name.starts_with("loaded ")) name.erase(0, 7);
    EXPECT_THAT(failed.error().message, HasSubstr("\n  " + name + ": not here"));
  }
  EXPECT_THAT(failed.error().message, HasSubstr("NORMJIT_NVRTC_PATH"));
}

TEST(NvrtcSearch, TheErrorTellsOfTheDriversLimit) {
  Names asked;
  const auto failed =
      find_nvrtc({.explicit_path = {}, .cuda_home = {}, .driver_cuda_version = [] { return 12040; }},
                 FakeOpen{"libnvrtc.so.13", &asked});
  ASSERT_EQ(failed.code(), Code::NoCompiler);
  EXPECT_THAT(failed.error().message, HasSubstr("driver is for CUDA 12 "));
}

TEST(NvrtcSearch, LooksBesideThisProgram) {
  Names asked;
  (void)find_nvrtc({}, FakeOpen{"", &asked});
  const std::string here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  EXPECT_THAT(asked, Contains(here + "/libnvrtc.so.13"));
}

TEST(OpenNvrtc, RefusesALibraryThatIsNoNvrtc) {
  const auto nvrtc = open_nvrtc("libm.so.6", false);
  ASSERT_EQ(nvrtc.code(), Code::NoCompiler);
  EXPECT_THAT(nvrtc.error().message, HasSubstr("nvrtcVersion"));
}

TEST(OpenNvrtc, GivesTheReasonWithoutTheName) {
  const TempDirectory directory;
  const auto nvrtc = open_nvrtc(directory / "libnvrtc.so.13", false);
  ASSERT_EQ(nvrtc.code(), Code::NoCompiler);
  EXPECT_THAT(nvrtc.error().message, AllOf(HasSubstr("No such file"), Not(HasSubstr(directory.path()))));
}

}  // namespace
}  // namespace normjit
