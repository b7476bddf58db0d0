// SPDX-License-Identifier: Apache-2.0
// Why a kernel is a hit or a miss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "normjit/base/embedded_file.h"
#include "normjit/service.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

namespace fs = std::filesystem;
using Kind = RecordingFileSystem::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr NormSpec kSpec{.columns = 4096};

class WhyTest : public ::testing::Test {
 protected:
  WhyTest() { machine_.files->skip_flushes(); }

  // The kernel that an ordinary launch asks for.
  WhyReport why(Service service, const NormSpec& spec = kSpec, int arch = 90) {
    const auto reports = service.why(spec, profile_of(arch));
    EXPECT_TRUE(reports.ok());
    if (!reports) return {};
    const Plan plan = choose(spec, profile_of(arch), RowsRegime::many, Alignment::eight);
    const auto report = std::ranges::find(*reports, plan, &WhyReport::plan);
    EXPECT_NE(report, reports->end());
    return report == reports->end() ? WhyReport() : *report;
  }
  std::string entry_path() {
    for (const auto& file : fs::directory_iterator(machine_.directory.path()))
      if (file.path().extension() == ".njk") return file.path();
    return "";
  }
  static std::vector<std::string> fields(const WhyReport& report) {
    std::vector<std::string> fields;
    for (const auto& difference : report.differences) {
      EXPECT_NE(difference.asked, difference.stored);
      fields.push_back(difference.field);
    }
    return fields;
  }

  FakeMachine machine_;
};

TEST_F(WhyTest, KnowsWhereTheGenericKernelIs) {
  const auto generic = [&](Service service) {
    return service.why(kSpec, profile_of(87), generic_plan()).value();
  };
  const WhyReport missing = generic(machine_.service());
  EXPECT_EQ(missing.tier, "");
  EXPECT_EQ(missing.plan, generic_plan());
  if (!embedded_pack().empty()) {
    Seams seams = machine_.seams();
    seams.embedded = embedded_pack();
    EXPECT_EQ(generic(Service(machine_.options(), seams)).tier, "embedded");
  }
  ASSERT_TRUE(machine_.service().prepare(kSpec, {.plan = generic_plan()}).ok());
  const WhyReport kept = machine_.service().why(kSpec, profile_of(90), generic_plan()).value();
  EXPECT_EQ(kept.tier, machine_.directory.path());
  EXPECT_EQ(machine_.service().why(kSpec, profile_of(90), Plan{}).code(), Code::IllegalPlan);
}

TEST_F(WhyTest, NamesEveryKernelOfASpecAndItsUses) {
  const auto reports = machine_.service().why(kSpec, profile_of(90)).value();
  for (const Plan& plan : plans(kSpec, profile_of(90)))
    EXPECT_NE(std::ranges::find(reports, plan, &WhyReport::plan), reports.end());
  for (const WhyReport& report : reports) {
    EXPECT_NE(report.uses, "");
    EXPECT_EQ(report.id.size(), 32u);
    EXPECT_THAT(report.identity, HasSubstr("arch=sm_90"));
    EXPECT_EQ(report.tier, "");
    EXPECT_EQ(report.reason, "no kernel is stored to compare it with");
  }
  EXPECT_EQ(machine_.compiles(), 0);
  EXPECT_EQ(machine_.files->writes(), 0);
  EXPECT_FALSE(machine_.service().why({.columns = 0}, profile_of(90)).ok());
}

TEST_F(WhyTest, SaysWhichPlansAreOfBatchInvariantLaunches) {
  NormSpec spec = parse_spec("rmsnorm/cols=49001/f16").value();
  int found = 0;
  for (; found == 0 && spec.columns < 60'000; spec.columns += 2) {
    const Plan invariant = choose(spec, profile_of(90), RowsRegime::many, Alignment::one, true);
    for (const WhyReport& report : machine_.service().why(spec, profile_of(90)).value())
      if (report.plan == invariant) found += report.uses.starts_with("batch invariant");
  }
  EXPECT_EQ(found, 1) << "none has a plan of its own for them";
}

TEST_F(WhyTest, TellsTheTierThatHoldsIt) {
  Service service = machine_.service();
  ASSERT_TRUE(service.prepare(kSpec).ok());
  EXPECT_EQ(why(machine_.service()).tier, machine_.directory.path());
  EXPECT_THAT(why(machine_.service()).reason, HasSubstr("nvrtc 13.0"));
  const auto reports = service.why(kSpec, profile_of(90)).value();
  EXPECT_TRUE(std::ranges::any_of(reports, [](const auto& report) { return report.tier == "memory"; }));

  const TempDirectory other;
  Options options = machine_.options();
  options.cache_directory = other.path();
  options.layers = {machine_.directory.path()};
  EXPECT_EQ(why(Service(options, machine_.seams())).tier, machine_.directory.path());
  EXPECT_TRUE(fs::is_empty(other.path()));
}

TEST_F(WhyTest, TellsWhatStandsInItsPlace) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  const std::string path = entry_path();
  fs::permissions(path, fs::perms{0666});
  EXPECT_THAT(why(machine_.service()).reason, HasSubstr("can be written by other users"));
  fs::permissions(path, fs::perms{0644});
  machine_.files->fail_always(Kind::read, EIO);
  EXPECT_THAT(why(machine_.service()).reason, HasSubstr("cannot read " + path));
  machine_.files->heal();
  fs::resize_file(path, fs::file_size(path) - 1);
  const WhyReport report = why(machine_.service());
  EXPECT_THAT(report.reason, HasSubstr("checksum"));
  EXPECT_EQ(report.tier, "");
  EXPECT_TRUE(fs::exists(path)) << "only looked at";
}

TEST_F(WhyTest, TellsOfAnotherCompiler) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  class NewerCompiler final : public FakeCompiler {
   public:
    Result<Facts> facts() override {
      auto facts = FakeCompiler::facts();
      if (facts) facts->minor = 9;
      return facts;
    }
  };
  Options options = machine_.options();
  options.exact_toolchain = true;
  Seams seams = machine_.seams();
  seams.compiler = std::make_shared<NewerCompiler>();
  const WhyReport report = why(Service(options, seams));
  EXPECT_EQ(report.tier, "");
  EXPECT_THAT(report.reason, HasSubstr("NORMJIT_TOOLCHAIN=exact"));
}

TEST_F(WhyTest, TellsInWhatTheNearestDiffers) {
  NormSpec stored{.columns = 4096,
                  .input = DType::f16,
                  .output = DType::f16,
                  .weight = DType::f16,
                  .affine = Affine::weight_bias};
  ASSERT_TRUE(machine_.service().prepare(stored).ok());
  const std::string id = fs::path(entry_path()).stem();
  const auto expect_among = [&](const NormSpec& asked, const std::string& field) {
    const WhyReport report = why(machine_.service(), asked);
    EXPECT_EQ(report.nearest, id);
    EXPECT_THAT(fields(report), ::testing::Contains(field));
    EXPECT_THAT(report.reason, HasSubstr(field));
    EXPECT_THAT(fields(report), ::testing::Not(::testing::Contains("source")))
        << "it follows from the others";
  };
  NormSpec asked = stored;
  asked.columns = 4104;
  expect_among(asked, "columns");
  asked = stored;
  asked.input = DType::bf16;
  expect_among(asked, "input");
  asked = stored;
  asked.output = DType::f32;
  expect_among(asked, "output");
  asked = stored;
  asked.weight = DType::f32;
  expect_among(asked, "weight");
  asked = stored;
  asked.epsilon = 1e-6;
  expect_among(asked, "epsilon");
  asked = stored;
  asked.affine = Affine::none;
  expect_among(asked, "affine");
  asked = stored;
  asked.activation = Activation::gelu;
  expect_among(asked, "activation");
  asked = stored;
  asked.statistics = true;
  expect_among(asked, "statistics");

  const WhyReport report = why(machine_.service(), stored, 80);
  EXPECT_THAT(fields(report), ::testing::Contains("arch"));
}

TEST_F(WhyTest, TellsEachPlanFromTheOther) {
  const auto all = plans(kSpec, profile_of(90));
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  const auto reports = machine_.service().why(kSpec, profile_of(90)).value();
  int compared = 0;
  for (const WhyReport& report : reports) {
    if (!report.tier.empty()) continue;
    EXPECT_THAT(fields(report), ElementsAre("plan"));
    ++compared;
  }
  EXPECT_EQ(compared, int(reports.size()) - 1);
}

TEST_F(WhyTest, TellsOfOtherSource) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  const TempDirectory changed;
  fs::copy(NORMJIT_SOURCE_DIR "/templates", changed.path(), fs::copy_options::recursive);
  std::ofstream(changed / "number.cuh", std::ios::app) << "\n// another version\n";
  Options options = machine_.options();
  options.template_directory = changed.path();
  const WhyReport report = why(Service(options, machine_.seams()));
  EXPECT_THAT(fields(report), ElementsAre("source"));
  EXPECT_THAT(report.reason, HasSubstr("NORMJIT_TEMPLATE_DIR"));
}

// A sixteenth of the columns and all else equal is farther than equal columns and much that is not.
TEST_F(WhyTest, EqualColumnsAreNearer) {
  ASSERT_TRUE(machine_.service().prepare({.columns = 256}).ok());
  const std::string narrow = fs::path(entry_path()).stem();
  EXPECT_EQ(why(machine_.service()).nearest, narrow);
  NormSpec other = kSpec;
  other.input = other.output = DType::bf16;
  other.statistics = true;
  ASSERT_TRUE(machine_.service().prepare(other).ok());
  EXPECT_NE(why(machine_.service()).nearest, narrow);
}

TEST_F(WhyTest, ADirectoryThatCannotBeListedIsTheReason) {
  machine_.files->fail_always(Kind::list, EACCES);
  EXPECT_THAT(why(machine_.service()).reason, HasSubstr(machine_.directory.path()));
}

}  // namespace
}  // namespace normjit::testing
