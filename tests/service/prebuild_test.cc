// SPDX-License-Identifier: Apache-2.0
// Filling the cache without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <thread>

#include "normjit/service.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

using Outcome = KernelReport::Outcome;
using ::testing::Each;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const NormSpec kSpecs[] = {
    {.columns = 64, .affine = Affine::weight_bias, .activation = Activation::gelu},
    {.columns = 4096, .input = DType::f16},
    {.columns = 4194304},
};

class PrebuildTest : public ::testing::Test {
 protected:
  static int kernels_of(std::span<const NormSpec> specs, std::span<const DeviceProfile> devices) {
    std::size_t kernels = 0;
    for (const NormSpec& spec : specs)
      for (const DeviceProfile& device : devices) kernels += plans(spec, device).size();
    return static_cast<int>(kernels);
  }

  FakeMachine machine_;
  Service service_ = machine_.service();
  const DeviceProfile devices_[2] = {profile_of(80), profile_of(90)};
  const int all_ = kernels_of(kSpecs, devices_);
};

TEST_F(PrebuildTest, CompilesEveryPlanOnceInOrder) {
  const PrebuildReport report = service_.prebuild(kSpecs, devices_).value();
  EXPECT_EQ(report.requested, all_);
  EXPECT_EQ(report.compiled, all_);
  EXPECT_EQ(report.cached + report.failed + report.missing + report.unstored, 0);
  EXPECT_EQ(machine_.compiles(), all_);
  EXPECT_EQ(machine_.driver->calls(), 0) << "no GPU, no driver";

  std::size_t at = 0;
  std::set<std::string> ids;
  for (const NormSpec& spec : kSpecs)
    for (const DeviceProfile& device : devices_)
      for (const Plan& plan : plans(spec, device)) {
        ASSERT_LT(at, report.results.size());
        const KernelReport& kernel = report.results[at++];
        EXPECT_EQ(kernel.spec, spec);
        EXPECT_EQ(kernel.arch, device.arch);
        EXPECT_EQ(kernel.plan, plan);
        EXPECT_EQ(kernel.outcome, Outcome::compiled);
        EXPECT_EQ(kernel.error, "");
        EXPECT_THAT(kernel.id, SizeIs(32));
        ids.insert(kernel.id);
      }
  EXPECT_EQ(at, report.results.size());
  EXPECT_EQ(ids.size(), at) << "one entry a kernel";
}

TEST_F(PrebuildTest, TheSecondRunCompilesNothing) {
  ASSERT_TRUE(service_.prebuild(kSpecs, devices_).ok());
  machine_.files->forget();
  const PrebuildReport report = machine_.service().prebuild(kSpecs, devices_).value();
  EXPECT_EQ(report.cached, all_);
  EXPECT_EQ(report.compiled, 0);
  EXPECT_THAT(report.results, Each(Field(&KernelReport::outcome, Outcome::cached)));
  EXPECT_EQ(machine_.compiles(), all_);
  EXPECT_EQ(machine_.files->writes(), 0);
}

TEST_F(PrebuildTest, ADryRunOnlyLooks) {
  ASSERT_TRUE(service_.prebuild({kSpecs, 1}, devices_).ok());
  const int compiled = machine_.compiles();
  machine_.files->forget();
  const PrebuildReport report =
      service_.prebuild(kSpecs, devices_, {.jobs = 0, .dry_run = true, .progress = {}}).value();
  EXPECT_EQ(report.requested, all_);
  EXPECT_EQ(report.cached, compiled);
  EXPECT_EQ(report.missing, all_ - compiled);
  EXPECT_EQ(machine_.compiles(), compiled);
  EXPECT_EQ(machine_.files->writes(), 0);
}

TEST_F(PrebuildTest, WhatIsAskedTwiceIsBuiltOnce) {
  const NormSpec twice[] = {
      kSpecs[0], kSpecs[0], {.columns = 64, .weight = DType::f16}, {.columns = 64, .weight = DType::f32}};
  const DeviceProfile devices[] = {devices_[1], devices_[1]};
  const NormSpec once[] = {kSpecs[0], {.columns = 64}};
  const PrebuildReport report = service_.prebuild(twice, devices).value();
  EXPECT_EQ(report.requested, kernels_of(once, {devices, 1}));
  EXPECT_EQ(machine_.compiles(), report.requested);
}

TEST_F(PrebuildTest, NothingToDoIsAnError) {
  EXPECT_EQ(service_.prebuild({}, devices_).code(), Code::BadArgument);
  EXPECT_EQ(service_.prebuild(kSpecs, {}).code(), Code::BadArgument);
}

TEST_F(PrebuildTest, NegativeJobsAreAnError) {
  EXPECT_EQ(service_.prebuild(kSpecs, devices_, {.jobs = -1, .dry_run = false, .progress = {}}).code(),
            Code::BadArgument);
  EXPECT_EQ(machine_.compiles(), 0);
}

// A compiler that cannot do one architecture.
class HalfCompiler final : public Compiler {
 public:
  explicit HalfCompiler(std::shared_ptr<Compiler> inner) : inner_(std::move(inner)) {}
  Result<Binary> compile(const Source& source, Arch arch) override {
    if (arch == Arch{80}) return Error{Code::CompileFailed, "not for sm_80"};
    return inner_->compile(source, arch);
  }
  Result<Facts> facts() override { return inner_->facts(); }

 private:
  const std::shared_ptr<Compiler> inner_;
};

TEST_F(PrebuildTest, AFailureIsCountedAndTheOthersGoOn) {
  Seams seams = machine_.seams();
  seams.compiler = std::make_shared<HalfCompiler>(machine_.compiler);
  Service service(machine_.options(), seams);
  const PrebuildReport report = service.prebuild(kSpecs, devices_).value();
  const int failed = kernels_of(kSpecs, {devices_, 1});
  EXPECT_EQ(report.failed, failed);
  EXPECT_EQ(report.compiled, all_ - failed);
  for (const KernelReport& kernel : report.results) {
    EXPECT_EQ(kernel.outcome, kernel.arch == Arch{80} ? Outcome::failed : Outcome::compiled);
    EXPECT_EQ(kernel.error, kernel.arch == Arch{80} ? "not for sm_80" : "");
  }
  const PrebuildReport second = service.prebuild(kSpecs, devices_).value();
  EXPECT_EQ(second.failed, failed) << "failures are not remembered as anything else";
  EXPECT_EQ(second.cached, all_ - failed);
}

TEST_F(PrebuildTest, ProgressIsCalledAfterEachKernel) {
  std::vector<int> done;
  std::set<std::string> ids;
  const auto progress = [&](const KernelReport& kernel, int count, int total) {
    done.push_back(count);
    ids.insert(kernel.id);
    EXPECT_EQ(total, all_);
  };
  ASSERT_TRUE(service_.prebuild(kSpecs, devices_, {.jobs = 7, .dry_run = false, .progress = progress}).ok());
  ASSERT_THAT(done, SizeIs(all_));
  for (int i = 0; i < all_; ++i) EXPECT_EQ(done[i], i + 1);
  EXPECT_THAT(ids, SizeIs(all_));
}

TEST_F(PrebuildTest, AsManyCompileAtOnceAsThereAreJobs) {
  constexpr int kJobs = 3;
  machine_.compiler->hold();
  std::thread build([&] {
    EXPECT_TRUE(service_.prebuild(kSpecs, devices_, {.jobs = kJobs, .dry_run = false, .progress = {}}).ok());
  });
  machine_.compiler->wait_for_calls(kJobs);  // would hang with fewer
  EXPECT_EQ(machine_.compiles(), kJobs);     // all stand still: a fourth would be one job too many
  machine_.compiler->release();
  build.join();
  EXPECT_EQ(machine_.compiles(), all_);
}

// So that no core is left with one when the others are done.
TEST_F(PrebuildTest, LongCompilesComeFirst) {
  ASSERT_TRUE(service_.prebuild(kSpecs, devices_, {.jobs = 1, .dry_run = false, .progress = {}}).ok());
  const std::vector<FakeCompiler::Call> calls = machine_.compiler->calls();
  const auto at = [&](const std::string& kernel, auto from, auto to) {
    return std::find_if(from, to,
                        [&](const FakeCompiler::Call& call) { return call.kernel.starts_with(kernel); });
  };
  const auto last_long = at("normjit_persistent_row_", calls.rbegin(), calls.rend()).base();
  ASSERT_NE(last_long, calls.begin());
  const auto first_short = at("normjit_warp_rows_", calls.begin(), calls.end());
  ASSERT_NE(first_short, calls.end());
  EXPECT_LE(last_long, first_short) << "a short compile is not put before a long one";
}

// The promise of prebuild: no row count, alignment or stride can ask for a kernel that is not there.
TEST_F(PrebuildTest, AfterItNoUseCompiles) {
  std::mt19937_64 random(20240131);
  const auto pick = [&](std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(random);
  };
  std::vector<NormSpec> specs(std::begin(kSpecs), std::end(kSpecs));
  for (int i = 0; i < 40; ++i) {
    NormSpec spec{.columns = pick(1, std::int64_t{1} << pick(0, 23))};
    spec.input = DType(pick(0, 3));
    spec.output = DType(pick(0, 3));
    spec.weight = DType(pick(0, 3));
    spec.affine = Affine(pick(0, 2));
    spec.activation = Activation(pick(0, 4));
    spec.statistics = pick(0, 1) != 0;
    specs.push_back(spec);
  }
  const DeviceProfile device = profile_of(90);
  ASSERT_EQ(service_.prebuild(specs, {&device, 1}).value().failed, 0);
  const int compiled = machine_.compiles();

  Service fresh = machine_.service();
  for (const NormSpec& spec : specs)
    for (int i = 0; i < 30; ++i) {
      const PrepareOptions use{.rows_hint = pick(0, std::int64_t{1} << pick(0, 20)),
                               .pointer_alignment = 8 << pick(0, 2),
                               .x_row_stride = pick(0, 2 * spec.columns),
                               .y_row_stride = pick(spec.columns, 2 * spec.columns)};
      const auto kernel = fresh.prepare(spec, use);
      ASSERT_TRUE(kernel.ok()) << kernel.error().message;
    }
  EXPECT_EQ(machine_.compiles(), compiled);
  EXPECT_THAT(machine_.warnings(), IsEmpty());
}

}  // namespace
}  // namespace normjit::testing
