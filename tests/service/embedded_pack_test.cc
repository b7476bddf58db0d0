// SPDX-License-Identifier: Apache-2.0
// The generic kernels that are part of this library, as far as it was built with them.
#include "normjit/base/embedded_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "normjit/cache/pack.h"
#include "normjit/compiler/cubin.h"
#include "normjit/service/binary_store.h"
#include "normjit/service/prepared.h"
#include "tests/support/fake_machine.h"
#include "tests/support/launch_facts.h"

namespace normjit::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr NormSpec kOneOfEach[] = {{.columns = 77, .input = DType::f16},
                                   {.columns = 77, .input = DType::f64},
                                   {.backward = true, .columns = 77, .input = DType::f16},
                                   {.backward = true, .columns = 77, .input = DType::f64}};

class EmbeddedPackTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (embedded_pack().empty()) GTEST_SKIP() << "This library was built without generic kernels.";
  }
  static Seams with_embedded(const FakeMachine& machine) {
    Seams seams = machine.seams();
    seams.embedded.reset();
    return seams;
  }
};

// As many as there are targets, so that none is from older templates.
TEST_F(EmbeddedPackTest, HasAllKernelsForEveryArchitectureAndNothingElse) {
  const Pack pack("embedded", embedded_pack());
  const BinaryStore binaries(nullptr, nullptr, nullptr, "", false, nullptr);
  const auto listed = pack.list();
  ASSERT_TRUE(listed.ok() && !listed->empty() && listed->front().entry.ok());
  const bool knows_all = listed->front().entry->fact("toolchain") >= "nvrtc 13.0";
  std::set<std::string> ids;
  for (const DeviceProfile& device : DeviceProfile::known())
    for (const NormSpec& spec : kOneOfEach) {
      const Identified kernel = binaries.identify(spec, generic_plan(), device.arch).value();
      const Lookup found = pack.look(kernel.identity);
      if (!knows_all && found.kind == Lookup::Kind::absent) continue;  // an architecture newer than it
      ASSERT_EQ(found.kind, Lookup::Kind::entry) << device.arch.name() << found.error << "; build again";
      EXPECT_EQ(found.entry.fact("code"), "cubin");
      EXPECT_EQ(found.entry.fact("arch"), target_of(generic_plan(), spec, device.arch).name());
      EXPECT_EQ(found.entry.fact("spill_bytes"), "0");
      const auto facts = cubin_facts(found.entry.body, kernel.draft.kernel);
      ASSERT_TRUE(facts) << device.arch.name();
      EXPECT_THAT(launch_trouble(*facts, generic_plan(), spec, device, launch_shape(generic_plan(), spec)),
                  IsEmpty());
      ids.insert(kernel.id);
    }
  EXPECT_EQ(listed->size(), ids.size());
}

TEST_F(EmbeddedPackTest, ServesWithoutACompilerAndLeavesNoFile) {
  FakeMachine machine({89, 90});
  machine.compiler->fail({Code::NoCompiler, "there is none"});
  Service service(machine.options(), with_embedded(machine));
  for (const int device : {0, 1})
    for (const NormSpec& spec : kOneOfEach) {
      const auto kernel = service.prepare(spec, {.device = device, .plan = generic_plan()});
      ASSERT_TRUE(kernel.ok()) << kernel.error().message;
      EXPECT_EQ(kernel->origin(), Origin::embedded);
      EXPECT_EQ(name(kernel->origin()), "embedded");
    }
  EXPECT_EQ(machine.loads(), 2 * std::ssize(kOneOfEach));
  EXPECT_EQ(machine.files->writes(), 0);
  EXPECT_THAT(service.entries().value(), IsEmpty());
  EXPECT_THAT(machine.warnings(), IsEmpty());
}

// One that the driver does not take is compiled, once.
TEST_F(EmbeddedPackTest, ARefusedKernelIsCompiled) {
  FakeMachine machine;
  machine.driver->refuse_load(1);
  Service service(machine.options(), with_embedded(machine));
  EXPECT_EQ(service.prepare({.columns = 77}, {.plan = generic_plan()}).value().origin(), Origin::compiled);
  EXPECT_EQ(machine.compiles(), 1);
  EXPECT_THAT(machine.warnings(), SizeIs(1));
  Service later(machine.options(), with_embedded(machine));
  EXPECT_EQ(later.prepare({.columns = 77}, {.plan = generic_plan()}).value().origin(), Origin::disk);
}

TEST_F(EmbeddedPackTest, OtherTemplatesAreOtherKernels) {
  FakeMachine machine;
  const TempDirectory templates;
  std::filesystem::copy(NORMJIT_SOURCE_DIR "/templates", templates.path(),
                        std::filesystem::copy_options::recursive);
  std::ofstream(templates / "schedule/generic.cu", std::ios::app) << "// edited\n";
  Options options = machine.options();
  options.template_directory = templates.path();
  Service service(options, with_embedded(machine));
  EXPECT_EQ(service.prepare({.columns = 77}, {.plan = generic_plan()}).value().origin(), Origin::compiled);
}

TEST_F(EmbeddedPackTest, TheEnvironmentShowsForWhatItIs) {
  FakeMachine machine;
  const Environment found = Service(machine.options(), with_embedded(machine)).environment();
  EXPECT_THAT(found.embedded_archs, ::testing::Contains(Arch{80}));
  EXPECT_THAT(found.embedded_archs, ::testing::Contains(Arch{90}));
  EXPECT_EQ(found.embedded_error, "");
}

TEST(EmbeddedPack, DamageIsShownAndCostsACompile) {
  FakeMachine machine;
  Seams seams = machine.seams();
  seams.embedded = "normjit-pack 1\nnot really";
  Service service(machine.options(), seams);
  EXPECT_EQ(service.prepare({.columns = 77}, {.plan = generic_plan()}).value().origin(), Origin::compiled);
  EXPECT_THAT(machine.warnings(), ::testing::ElementsAre(HasSubstr("embedded is not a valid pack")));
  EXPECT_THAT(service.environment().embedded_error, HasSubstr("embedded is not a valid pack"));
}

}  // namespace
}  // namespace normjit::testing
