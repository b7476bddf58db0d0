// SPDX-License-Identifier: Apache-2.0
// Packs in memory as layers of a Service: what one process of a job sends to the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>

#include "normjit/remote/signature.h"
#include "normjit/service.h"
#include "tests/support/child.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr NormSpec kSpec{.columns = 4096};
constexpr NormSpec kOther{.columns = 64};

class MemoryLayer : public ::testing::Test {
 protected:
  Service service(std::vector<std::string> trust, std::string cache_directory) {
    Options options = machine_.options();
    options.trust = std::move(trust);
    options.cache_directory = std::move(cache_directory);
    return Service(options, machine_.seams());
  }

  FakeMachine machine_;
  const DeviceProfile device_ = profile_of(90);
  const std::string pack_ = FakeMachine::pack_of({kSpec});
};

TEST_F(MemoryLayer, ServesEveryKernelAndIsCopied) {
  Options options = machine_.options();
  options.mode = Mode::cached_only;
  Service service(options, machine_.seams());
  EXPECT_EQ(service.prepare(kSpec).code(), Code::NotCached);
  ASSERT_TRUE(service.add_layer(pack_).ok());
  for (const std::int64_t rows : {0, 1, 100, 1'000'000})
    for (const int alignment : {16, 8, 4}) {
      const auto kernel = service.prepare(kSpec, {.rows_hint = rows, .pointer_alignment = alignment});
      ASSERT_TRUE(kernel.ok()) << kernel.error().message;
      EXPECT_TRUE(kernel->origin() == Origin::layer || kernel->origin() == Origin::disk);
    }
  EXPECT_EQ(service.prepare(kOther).code(), Code::NotCached);
  EXPECT_EQ(machine_.service().prepare(kSpec).value().origin(), Origin::disk) << "the next process";
  EXPECT_EQ(machine_.compiles(), 0);
  EXPECT_EQ(service.counters().compiles, 0U);
  EXPECT_THAT(machine_.warnings(), IsEmpty());
}

TEST_F(MemoryLayer, ServesWithoutADirectory) {
  Service service = machine_.service_without_cache();
  ASSERT_TRUE(service.add_layer(pack_).ok());
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::layer);
  EXPECT_EQ(machine_.compiles(), 0);
  EXPECT_EQ(machine_.files->writes(), 0);
}

TEST_F(MemoryLayer, BelongsToItsService) {
  Service one = machine_.service_without_cache();
  Service other = machine_.service_without_cache();
  ASSERT_TRUE(one.add_layer(pack_).ok());
  EXPECT_EQ(other.prepare(kSpec).value().origin(), Origin::compiled);
  Service moved = std::move(one);
  EXPECT_EQ(moved.prepare(kSpec).value().origin(), Origin::layer);
}

TEST_F(MemoryLayer, EveryReportNamesIt) {
  Service service = machine_.service();
  ASSERT_TRUE(service.add_layer(pack_).ok());
  ASSERT_TRUE(service.add_layer(FakeMachine::pack_of({kOther})).ok());
  const auto layers = service.environment().layers;
  ASSERT_THAT(layers, SizeIs(2));
  EXPECT_EQ(layers[0].path, "memory layer 1");
  EXPECT_EQ(layers[1].path, "memory layer 2");
  EXPECT_GT(layers[1].entries, 0);
  EXPECT_EQ(layers[1].error, "");
  EXPECT_THAT(service.why(kSpec, device_).value(), Each(Field(&WhyReport::tier, "memory layer 1")));
  EXPECT_THAT(service.why(kOther, device_).value(),
              Each(AllOf(Field(&WhyReport::tier, "memory layer 2"),
                         Field(&WhyReport::reason, HasSubstr("memory layer 2 holds it")))));
  EXPECT_THAT(service.entries().value(), SizeIs(layers[0].entries + layers[1].entries));
  EXPECT_THAT(service.entries().value(), Contains(Field(&EntryReport::tier, "memory layer 2")));
  EXPECT_EQ(service.verify().value().entries, layers[0].entries + layers[1].entries);
  const std::string both = machine_.directory / "both.njp";
  EXPECT_EQ(service.export_pack(both).value().entries, layers[0].entries + layers[1].entries);
}

TEST_F(MemoryLayer, WhatIsNoPackIsRefusedAndChangesNothing) {
  Service service = machine_.service();
  std::string damaged = pack_;
  damaged[pack_.find("\n\n") / 2] ^= 1;
  for (const std::string& wrong : {std::string(), std::string("x"), damaged, pack_ + "x",
                                   pack_.substr(0, pack_.size() / 2), pack_.substr(0, pack_.size() - 1)}) {
    const auto added = service.add_layer(wrong);
    EXPECT_EQ(added.code(), Code::BadArgument) << wrong.size();
    EXPECT_THAT(added.error().message, HasSubstr("the layer in memory is not a valid pack"));
  }
  EXPECT_THAT(service.environment().layers, IsEmpty());
  EXPECT_THAT(service.why(kSpec, device_).value(), Each(Field(&WhyReport::tier, "")));
  EXPECT_THAT(machine_.warnings(), IsEmpty());
}

TEST_F(MemoryLayer, ADamagedEntryIsCompiled) {
  std::string damaged = pack_;
  for (std::size_t at = pack_.find("\n\n") + 2; at < damaged.size(); at += 16) damaged[at] ^= 1;
  Service service = machine_.service();
  ASSERT_TRUE(service.add_layer(damaged).ok());
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::compiled);
  EXPECT_THAT(machine_.warnings(), Contains(HasSubstr("memory layer 1")));
  EXPECT_THAT(service.verify().value().flaws, Not(IsEmpty()));
}

TEST_F(MemoryLayer, WithTrustedKeysItNeedsTheirSignature) {
  if (const std::string error = sodium_error(); !error.empty()) GTEST_SKIP() << error;
  const auto key = SecretKey::generate(), stranger = SecretKey::generate();
  const std::string right = key->sign_file(pack_, "right");
  Service service = this->service({key->public_key().text()}, "");
  std::string changed = pack_;
  changed.back() ^= 1;
  const auto expect_untrusted = [&](const std::string& pack, const std::string& signature,
                                    const std::string& why) {
    const auto added = service.add_layer(pack, signature);
    EXPECT_EQ(added.code(), Code::Untrusted) << why;
    EXPECT_THAT(added.error().message, AllOf(HasSubstr("the layer in memory"), HasSubstr(why)));
  };
  expect_untrusted(pack_, "", "is not signed");
  expect_untrusted(pack_, "x", std::string(reason(Trusted::malformed)));
  expect_untrusted(pack_, stranger->sign_file(pack_, "right"), std::string(reason(Trusted::unknown_key)));
  expect_untrusted(changed, right, std::string(reason(Trusted::wrong)));
  EXPECT_THAT(service.environment().layers, IsEmpty());

  ASSERT_TRUE(service.add_layer(pack_, right).ok());
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::layer);
  EXPECT_EQ(service.add_layer("x", key->sign_file("x", "")).code(), Code::BadArgument);
}

TEST_F(MemoryLayer, AKeyThatIsNoneIsNamed) {
  const std::string path = machine_.directory / "no.pub";
  std::ofstream(path) << "no key\n";
  Service wrong = service({path}, "");
  const auto added = wrong.add_layer(pack_);
  EXPECT_EQ(added.code(), Code::BadArgument);
  EXPECT_THAT(added.error().message, HasSubstr(path));
  EXPECT_THAT(wrong.environment().layers, IsEmpty());
}

TEST_F(MemoryLayer, WithoutTrustedKeysASignatureIsNotLookedAt) {
  EXPECT_TRUE(machine_.service().add_layer(pack_, "x").ok());
}

TEST_F(MemoryLayer, AForkedChildHasItAndMayAddItsOwn) {
  NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
  Service service = machine_.service_without_cache();
  ASSERT_TRUE(service.add_layer(pack_).ok());
  const std::string other = FakeMachine::pack_of({kOther});
  EXPECT_EQ(outcome_in_child([&] {
              const auto inherited = service.prepare(kSpec);
              return inherited.ok() && inherited->origin() == Origin::layer &&
                     service.add_layer(other).ok() &&
                     service.prepare(kOther).value().origin() == Origin::layer;
            }),
            "done");
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::layer);
  EXPECT_EQ(service.prepare(kOther).value().origin(), Origin::compiled) << "it was the child's";
}

}  // namespace
}  // namespace normjit::testing
