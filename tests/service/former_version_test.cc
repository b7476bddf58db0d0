// SPDX-License-Identifier: Apache-2.0
// What 0.1 left behind stays of use: tests/data/0.1 has a cache directory, the pack that was exported from
// it, a manifest and a miss log, all written by 0.1. Its kernels are misses, its tuned plans are taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "cli/manifest.h"
#include "normjit/service.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;
using ::testing::StartsWith;

const std::string kData = NORMJIT_SOURCE_DIR "/tests/data/0.1";

// The use that each tuned plan is for is many rows of alignment 8 on sm_90.
struct Tuned {
  const char* spec;
  const char* plan;
};
constexpr Tuned kTuned[] = {
    {"layernorm/cols=64/f16/eps=1e-05",
     "staged_rows threads=64 threads_per_row=8 vector=2 per_thread=4 group_rows=4 blocks_per_sm=10"},
    {"layernorm/cols=20001/bf16/eps=1e-05",
     "block_row threads=512 threads_per_row=512 vector=1 per_thread=5 group_rows=1 blocks_per_sm=1 "
     "blocks_per_row=8 exchange=cluster"},
    {"layernorm/cols=4194304/f32/eps=1e-05",
     "persistent_row threads=512 threads_per_row=256 vector=4 per_thread=2 group_rows=1 blocks_per_sm=1 "
     "blocks_per_row=128 stages=28 exchange=grid unaligned=1"}};

struct Compiled {
  const char* spec;
  int arch;
  const char* plan;
  const char* id;
};
constexpr Compiled kCompiled[] = {
    {"layernorm/cols=64/f16/eps=1e-05", 90,
     "warp_rows threads=128 threads_per_row=4 vector=8 per_thread=2 group_rows=1 blocks_per_sm=9",
     "5c9c52352d1a50afbb6aecf80ab3f3f2"},
    {"layernorm/cols=32/bf16/eps=1e-05/w", 80,
     "warp_rows threads=128 threads_per_row=2 vector=8 per_thread=2 group_rows=1 blocks_per_sm=9",
     "d3728c682cb1207bd8c6dcaf75894cc8"}};

constexpr int kEntries = 5;

std::map<std::string, std::string> files_in(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& file : fs::directory_iterator(directory)) {
    if (!file.is_regular_file()) continue;
    std::ifstream stream(file.path(), std::ios::binary);
    files[file.path().filename()] = {std::istreambuf_iterator<char>(stream), {}};
  }
  return files;
}

// Once with the cache directory of 0.1, once with an empty one and the pack as a layer.
enum class As { directory, layer };

class FormerVersion : public ::testing::TestWithParam<As> {
 protected:
  FormerVersion() {
    if (GetParam() == As::layer)
      put(layers_ / "kernels.njp", files_in(kData)["kernels.njp"]);
    else
      for (const auto& [name, bytes] : files_in(kData + "/cache")) put(machine_.directory / name, bytes);
  }
  // Written by this user alone, whatever the checkout allows others.
  static void put(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  }
  Service service(int arch = 90) {
    Options options = machine_.options();
    if (GetParam() == As::layer) options.layers = {layers_ / "kernels.njp"};
    Seams seams = machine_.seams();
    seams.driver = std::make_shared<FakeDriver>(std::vector{profile_of(arch)});
    return Service(options, seams);
  }
  // The entries of 0.1 are as they were, and nothing was said of them.
  void expect_untouched() {
    EXPECT_THAT(machine_.warnings(), IsEmpty());
    if (GetParam() == As::directory) {
      EXPECT_THAT(files_in(machine_.directory.path()), IsSupersetOf(files_in(kData + "/cache")));
    }
    const VerifyReport report = service().verify(/*quarantine=*/true).value();
    EXPECT_THAT(report.flaws, IsEmpty());
    EXPECT_GE(report.entries, kEntries);
  }

  FakeMachine machine_;
  const TempDirectory layers_;
};

TEST_P(FormerVersion, KernelsAreMisses) {
  for (const auto& [spec, arch, plan, id] : kCompiled) {
    const int before = machine_.compiles();
    const auto kernel = service(arch).prepare(parse_spec(spec).value(), {.plan = parse_plan(plan).value()});
    ASSERT_TRUE(kernel.ok()) << kernel.error().message;
    EXPECT_EQ(kernel->origin(), Origin::compiled);
    EXPECT_EQ(machine_.compiles(), before + 1);
  }
  expect_untouched();
}

TEST_P(FormerVersion, WhyTellsOfTheOtherVersion) {
  for (const auto& [spec, arch, plan, id] : kCompiled) {
    const auto why =
        service().why(parse_spec(spec).value(), profile_of(arch), parse_plan(plan).value()).value();
    EXPECT_EQ(why.tier, "");
    EXPECT_EQ(why.nearest, id);
    EXPECT_THAT(why.reason, HasSubstr("from another version of normjit"));
  }
}

TEST_P(FormerVersion, TunedPlansAreTaken) {
  Service one = service();
  for (const auto& [text, plan] : kTuned) {
    const NormSpec spec = parse_spec(text).value();
    const RowsRegime measured = regime_of(4096, profile_of(90));
    const Plan rules = choose(spec, profile_of(90), measured, Alignment::eight);
    EXPECT_NE(to_text(rules), plan) << "or this test shows nothing";
    for (const RowsRegime regime : kRowsRegimes) {
      const auto tuned = one.tuned(spec, profile_of(90), regime, Alignment::eight).value();
      const bool is_named_so = regime == RowsRegime::many;
      ASSERT_EQ(tuned.has_value(), regime == measured || is_named_so) << text << " " << name(regime);
      if (tuned) EXPECT_EQ(to_text(*tuned), plan);
    }
    const RenderedKernel taken = one.render(spec, profile_of(90), measured, Alignment::eight).value();
    EXPECT_EQ(to_text(taken.plan), plan);
  }
  expect_untouched();
}

TEST_P(FormerVersion, EntriesAreListedInTodaysWords) {
  const std::vector<EntryReport> entries = service().entries().value();
  ASSERT_THAT(entries, SizeIs(kEntries));
  std::map<std::string, std::string> kernels, tuned;  // the plan of each spec
  for (const EntryReport& entry : entries) {
    EXPECT_FALSE(entry.damaged) << entry.error;
    (entry.code == "plan" ? tuned : kernels)[entry.spec] = entry.plan;
  }
  EXPECT_THAT(tuned, SizeIs(std::size(kTuned)));
  for (const auto& [spec, plan] : kTuned) EXPECT_EQ(tuned[spec], plan);
  EXPECT_THAT(kernels, SizeIs(std::size(kCompiled)));
  for (const Compiled& kernel : kCompiled) EXPECT_EQ(kernels[kernel.spec], kernel.plan);
}

TEST_P(FormerVersion, EntriesCanBeImportedAndExported) {
  Service one = service();
  const std::string source = GetParam() == As::directory ? kData + "/cache" : layers_ / "kernels.njp";
  FakeMachine other;
  Options shared = other.options();
  shared.shared_cache = true;  // others may be able to write to a checkout
  const ImportReport report = Service(shared, other.seams()).import_from({source}).value();
  EXPECT_EQ(report.imported, kEntries);
  EXPECT_THAT(report.errors, IsEmpty());
  EXPECT_THAT(files_in(other.directory.path()), IsSupersetOf(files_in(kData + "/cache")));

  const std::string pack = layers_ / "again.njp";
  ASSERT_TRUE(one.export_pack(pack).ok());
  EXPECT_EQ(files_in(layers_.path())["again.njp"], files_in(kData)["kernels.njp"]);
}

TEST_P(FormerVersion, ItsManifestAndMissLogArePrebuilt) {
  Service one = service();
  for (const char* name : {"/manifest.json", "/misses.jsonl"}) {
    const auto specs = cli::read_manifest(kData + name);
    ASSERT_TRUE(specs.ok()) << specs.error().message;
    ASSERT_THAT(*specs, SizeIs(2));
    const DeviceProfile device = profile_of(90);
    const PrebuildReport report = one.prebuild(*specs, {&device, 1}).value();
    EXPECT_GT(report.compiled, 0);
    EXPECT_EQ(report.compiled, report.requested) << report.failed << " failed";
  }
  // The tuned plan of a spec of the miss log is among them.
  const Kernel kernel = one.prepare(parse_spec(kTuned[0].spec).value(), {.rows_hint = 4096}).value();
  EXPECT_EQ(to_text(kernel.plan()), kTuned[0].plan);
  EXPECT_EQ(kernel.origin(), Origin::memory);
  expect_untouched();
}

INSTANTIATE_TEST_SUITE_P(Of01, FormerVersion, ::testing::Values(As::directory, As::layer),
                         [](const auto& info) { return info.param == As::layer ? "Layer" : "Directory"; });

}  // namespace
}  // namespace normjit::testing
