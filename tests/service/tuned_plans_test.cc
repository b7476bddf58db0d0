// SPDX-License-Identifier: Apache-2.0
// Tuned plans on disk: found by whoever has the same device, and harmless whatever is wrong with them.
#include "normjit/service/tuned_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "normjit/base/text.h"
#include "tests/support/recording_file_system.h"
#include "tests/support/temp_directory.h"

namespace normjit::testing {
namespace {

using Kind = RecordingFileSystem::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr NormSpec kSpec{.columns = 4096, .affine = Affine::weight_bias};

// A legal plan for it with so many threads.
Plan resident(int threads) {
  return {.strategy = Strategy::block_row,
          .threads = threads,
          .threads_per_row = threads,
          .vector = 4,
          .per_thread = 4096 / 4 / threads};
}

class TunedPlansTest : public ::testing::Test {
 protected:
  // As a new process has it.
  struct Process {
    explicit Process(TunedPlansTest& test, const std::string& directory)
        : cache({.directory = directory}, test.files_,
                [&](std::string_view text) { test.troubles_.emplace_back(text); }),
          plans(cache, [&](std::string_view text) { test.warnings_.emplace_back(text); }) {}
    Cache cache;
    TunedPlans plans;
  };
  std::unique_ptr<Process> process() { return std::make_unique<Process>(*this, directory_.path()); }

  TunedPlan tuned(int threads) const {
    return {
        .spec = kSpec, .device = device_, .plan = resident(threads), .rows = 500, .fraction_of_copy = 0.9};
  }
  std::optional<Plan> found() {
    return process()->plans.find(kSpec, device_, RowsRegime::many, Alignment::eight);
  }

  // The file of the one entry there is.
  std::string entry_path() const {
    std::vector<std::string> paths;
    for (const auto& file : std::filesystem::directory_iterator(directory_.path()))
      if (file.path().extension() == ".njk") paths.push_back(file.path());
    EXPECT_THAT(paths, SizeIs(1));
    return paths.front();
  }
  // The entry of `from` with another body, whole in itself.
  void forge(const TunedPlan& from, const std::string& body) {
    const auto writer = process();
    ASSERT_TRUE(writer->plans.store(from).ok());
    auto listed = writer->cache.list().value();
    ASSERT_THAT(listed, SizeIs(1));
    Entry entry = *listed[0].entry;
    entry.body = body;
    ASSERT_TRUE(writer->cache.store(entry, /*replace=*/true));
  }

  const TempDirectory directory_;
  const std::shared_ptr<RecordingFileSystem> files_ = std::make_shared<RecordingFileSystem>();
  std::vector<std::string> troubles_, warnings_;  // of the cache; of the tuned plans
  const DeviceProfile device_ = DeviceProfile::of(Arch{90}).value();
};

TEST_F(TunedPlansTest, WhatOneProcessStoresAnotherFinds) {
  EXPECT_EQ(found(), std::nullopt);
  for (const int threads : {256, 512}) {
    ASSERT_TRUE(process()->plans.store(tuned(threads)).ok());
    EXPECT_EQ(found(), resident(threads)) << "the later one replaces the earlier";
  }
  EXPECT_THAT(troubles_, IsEmpty());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(TunedPlansTest, ServeTheUseThatTheyWereMeasuredForAndNoOther) {
  const auto writer = process();
  ASSERT_TRUE(writer->plans.store(tuned(256)).ok());
  const auto reader = process();
  const auto find = [&](const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                        Alignment alignment) { return reader->plans.find(spec, device, regime, alignment); };
  EXPECT_EQ(find(kSpec, device_, RowsRegime::few, Alignment::eight), std::nullopt);
  EXPECT_EQ(find(kSpec, device_, RowsRegime::many, Alignment::four), std::nullopt);
  NormSpec spec = kSpec;
  spec.epsilon = 1e-6;
  EXPECT_EQ(find(spec, device_, RowsRegime::many, Alignment::eight), std::nullopt);

  const auto changed = [&](auto DeviceProfile::*member) {
    DeviceProfile other = device_;
    other.*member += 1;
    return find(kSpec, other, RowsRegime::many, Alignment::eight);
  };
  EXPECT_EQ(changed(&DeviceProfile::sm_count), std::nullopt);
  EXPECT_EQ(changed(&DeviceProfile::threads_per_sm), std::nullopt);
  EXPECT_EQ(changed(&DeviceProfile::blocks_per_sm), std::nullopt);
  EXPECT_EQ(changed(&DeviceProfile::registers_per_sm), std::nullopt);
  EXPECT_EQ(changed(&DeviceProfile::shared_per_block), std::nullopt);
  EXPECT_EQ(changed(&DeviceProfile::shared_per_sm), std::nullopt);
  EXPECT_EQ(changed(&DeviceProfile::l2_bytes), std::nullopt);
  DeviceProfile other = device_;
  other.arch = Arch{80};
  EXPECT_EQ(find(kSpec, other, RowsRegime::many, Alignment::eight), std::nullopt);
  EXPECT_EQ(find(kSpec, device_, RowsRegime::many, Alignment::eight), resident(256));
}

TEST_F(TunedPlansTest, ALookUpOpensItsFilesOnceAndWritesNothing) {
  ASSERT_TRUE(process()->plans.store(tuned(256)).ok());
  const auto reader = process();
  for (const RowsRegime regime : {RowsRegime::many, RowsRegime::few}) {
    SCOPED_TRACE(name(regime));
    files_->forget();
    const auto first = reader->plans.find(kSpec, device_, regime, Alignment::eight);
    EXPECT_EQ(first.has_value(), regime == RowsRegime::many);
    EXPECT_EQ(files_->count(Kind::open), regime == RowsRegime::many ? 1 : 2) << "one of 0.1, too";
    EXPECT_EQ(files_->count(Kind::list), 0);
    EXPECT_EQ(files_->writes(), 0);
    files_->forget();
    EXPECT_EQ(reader->plans.find(kSpec, device_, regime, Alignment::eight), first);
    EXPECT_THAT(files_->calls(), IsEmpty());
  }
}

TEST_F(TunedPlansTest, AnAnswerStandsForTheLifeOfAProcess) {
  const auto first = process();
  EXPECT_EQ(first->plans.find(kSpec, device_, RowsRegime::many, Alignment::eight), std::nullopt);
  ASSERT_TRUE(first->plans.store(tuned(256)).ok());
  EXPECT_EQ(first->plans.find(kSpec, device_, RowsRegime::many, Alignment::eight), std::nullopt);
  EXPECT_EQ(found(), resident(256));
}

TEST_F(TunedPlansTest, WithoutADirectoryThereAreNone) {
  Process memory_only(*this, "");
  EXPECT_EQ(memory_only.plans.find(kSpec, device_, RowsRegime::many, Alignment::eight), std::nullopt);
  EXPECT_EQ(memory_only.plans.store(tuned(256)).code(), Code::CacheIo);
  EXPECT_THAT(memory_only.plans.list(), IsEmpty());
  EXPECT_THAT(files_->calls(), IsEmpty());
}

TEST_F(TunedPlansTest, ADamagedEntryIsNoneAndCanBeStoredAnew) {
  ASSERT_TRUE(process()->plans.store(tuned(256)).ok());
  const std::string path = entry_path();
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT(process()->plans.list(), IsEmpty());
  EXPECT_EQ(found(), std::nullopt);
  EXPECT_THAT(troubles_, ElementsAre(HasSubstr(path)));
  ASSERT_TRUE(process()->plans.store(tuned(512)).ok());
  EXPECT_EQ(found(), resident(512));
}

TEST_F(TunedPlansTest, AnUnreadableEntryIsNone) {
  ASSERT_TRUE(process()->plans.store(tuned(256)).ok());
  files_->fail(Kind::open, EACCES);
  EXPECT_EQ(found(), std::nullopt);
  EXPECT_EQ(found(), resident(256)) << "it was left alone";
}

// What a newer or older version may have kept, or a hand that knows the format.
TEST_F(TunedPlansTest, AnEntryThatIsNoLegalPlanIsNone) {
  TunedPlan narrow = tuned(256);
  narrow.alignment = Alignment::two;
  narrow.plan.vector = 2;
  narrow.plan.per_thread *= 2;
  TunedPlan old = tuned(256);
  old.device = DeviceProfile::of(Arch{80}).value();
  const std::string cluster =
      "block_row threads=128 threads_per_row=128 vector=4 per_thread=4 blocks_per_row=2 exchange=cluster";
  ASSERT_TRUE(check(parse_plan(cluster).value(), kSpec, device_).ok()) << "legal on sm_90";
  const struct {
    TunedPlan tuned;
    std::string body;
  } forged[] = {
      {tuned(256), ""},
      {tuned(256), "another_strategy threads=256"},
      {tuned(256), to_text(resident(256)) + " further=1"},
      {tuned(256), "block_row threads=100 threads_per_row=100 vector=4 per_thread=11"},
      {tuned(256), "block_row threads=256 threads_per_row=256 vector=4 per_thread=1"},
      {narrow, to_text(resident(256))},
      {old, cluster},
  };
  for (const auto& [from, body] : forged) {
    SCOPED_TRACE(body);
    forge(from, body);
    warnings_.clear();
    const auto reader = process();
    EXPECT_EQ(reader->plans.find(kSpec, from.device, from.regime, from.alignment), std::nullopt);
    EXPECT_EQ(reader->plans.find(kSpec, from.device, from.regime, from.alignment), std::nullopt);
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr("is not used"))) << "told once";
    EXPECT_THAT(reader->plans.list(), IsEmpty());
    std::filesystem::remove(entry_path());
  }
}

TEST_F(TunedPlansTest, AnIllegalPlanIsNotStored) {
  TunedPlan illegal = tuned(256);
  illegal.plan.per_thread = 1;
  EXPECT_EQ(process()->plans.store(illegal).code(), Code::IllegalPlan);
  TunedPlan wide = tuned(256);
  wide.alignment = Alignment::two;
  const auto refused = process()->plans.store(wide);
  EXPECT_EQ(refused.code(), Code::IllegalPlan);
  EXPECT_THAT(refused.error().message, HasSubstr("4 elements at once"));
  EXPECT_THAT(files_->calls(), IsEmpty());
}

TEST_F(TunedPlansTest, ADirectoryThatTakesNothingGoesOnAnswering) {
  ASSERT_TRUE(process()->plans.store(tuned(256)).ok());
  for (const int trouble : {EROFS, ENOSPC}) {
    files_->fail_creation(trouble);
    EXPECT_EQ(process()->plans.store(tuned(512)).code(), Code::CacheIo);
    EXPECT_EQ(found(), resident(256));
  }
}

TEST_F(TunedPlansTest, ListHasAllThatCanBeFoundAndNoKernels) {
  EXPECT_THAT(process()->plans.list(), IsEmpty());
  const auto writer = process();
  TunedPlan few = tuned(512), small = tuned(1024);
  few.regime = RowsRegime::few;
  small.device.sm_count = 20;
  for (const TunedPlan& kept : {tuned(256), few, small}) ASSERT_TRUE(writer->plans.store(kept).ok());
  ASSERT_TRUE(writer->cache.store({"source=0 arch=sm_90", {{"plan", to_text(resident(128))}}, "code"}));

  std::vector<std::string> found;
  for (const TunedPlan& kept : process()->plans.list()) {
    EXPECT_EQ(kept.spec, kSpec);
    EXPECT_EQ(kept.alignment, Alignment::eight);
    found.push_back(shortest(kept.plan.threads) + " " + std::string(name(kept.regime)) + " " +
                    shortest(kept.device.sm_count));
    EXPECT_EQ(process()->plans.find(kept.spec, kept.device, kept.regime, kept.alignment), kept.plan);
  }
  EXPECT_THAT(found, ::testing::UnorderedElementsAre("256 many 132", "512 1/2 132", "1024 many 20"));
}

TEST_F(TunedPlansTest, AnEntrySaysWhatItIsFor) {
  ASSERT_TRUE(process()->plans.store(tuned(256)).ok());
  const Entry entry = *process()->cache.list().value().at(0).entry;
  EXPECT_EQ(entry.body, to_text(resident(256)));
  std::vector<std::string> keys;
  for (const auto& [key, value] : entry.facts) {
    keys.push_back(key);
    EXPECT_NE(value, "") << key;
  }
  EXPECT_THAT(keys, ElementsAre("code", "spec", "arch", "device", "regime", "alignment", "plan", "rows",
                                "fraction_of_copy", "rules"));
}

}  // namespace
}  // namespace normjit::testing
