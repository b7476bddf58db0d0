// SPDX-License-Identifier: Apache-2.0
// Packs as layers of a Service that believes some keys, and a pack that is fetched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "normjit/remote/signature.h"
#include "normjit/service.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr NormSpec kSpec{.columns = 4096};

class SignedLayer : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string error = sodium_error(); !error.empty()) GTEST_SKIP() << error;
    key_.emplace(SecretKey::generate().value());
    write(path_, pack_);
  }

  static void write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  Service service() {
    Options options = machine_.options();
    options.layers = {path_};
    options.trust = {key_->public_key().text()};
    return Service(options, machine_.seams());
  }

  FakeMachine machine_;
  const TempDirectory folder_;
  const std::string path_ = folder_ / "kernels.njp";
  const std::string pack_ = FakeMachine::pack_of({kSpec});
  std::optional<SecretKey> key_;
};

TEST_F(SignedLayer, ServesWhereItsSignatureIsBesideIt) {
  write(path_ + ".minisig", key_->sign_file(pack_, "right"));
  Service service = this->service();
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::layer);
  EXPECT_THAT(machine_.warnings(), IsEmpty());
  EXPECT_EQ(service.environment().layers[0].error, "");
}

TEST_F(SignedLayer, IsNotUsedOtherwise) {
  const auto is_not_used = [&](const std::string& why) {
    FakeMachine machine;
    Options options = machine.options();
    options.layers = {path_};
    options.trust = {key_->public_key().text()};
    Service service(options, machine.seams());
    EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::compiled) << why;
    EXPECT_THAT(service.environment().layers[0].error, HasSubstr(why));
    EXPECT_THAT(machine.warnings(), ElementsAre(AllOf(HasSubstr(path_), HasSubstr(why))));
  };
  is_not_used("is not signed");
  write(path_ + ".minisig", SecretKey::generate()->sign_file(pack_, "right"));
  is_not_used(std::string(reason(Trusted::unknown_key)));
  write(path_ + ".minisig", key_->sign_file(pack_ + "x", "wrong"));
  is_not_used(std::string(reason(Trusted::wrong)));
}

TEST_F(SignedLayer, WithoutKeysSignaturesAreNotLookedAt) {
  Options options = machine_.options();
  options.layers = {path_};
  Service service(options, machine_.seams());
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::layer);
}

// A port that nothing listens on; or no plug-in.
TEST(FetchedLayer, CostsNothingButTimeWhereItCannotBeHad) {
  FakeMachine machine;
  Options options = machine.options();
  options.remote_pack = "http://user:secret@127.0.0.1:1/kernels.njp";
  options.remote_unsigned = true;
  Service service(options, machine.seams());
  EXPECT_EQ(machine.files->calls().size(), 0U);
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::compiled);
  EXPECT_EQ(service.prepare({.columns = 64}).value().origin(), Origin::compiled);
  EXPECT_THAT(machine.warnings(), ElementsAre(AllOf(HasSubstr("remote pack: "), Not(HasSubstr("secret")))));

  const Environment found = service.environment();
  EXPECT_EQ(found.remote_pack.url, "http://127.0.0.1:1/kernels.njp");
  EXPECT_NE(found.remote_pack.error, "");
  EXPECT_THAT(found.remote_pack.path, HasSubstr(options.cache_directory));
}

TEST(FetchedLayer, IsNotFetchedWhileItIsNotNeeded) {
  FakeMachine machine;
  machine.service().prepare(kSpec).value();
  const auto calls_of = [&](const std::function<void(Options&)>& change) {
    Options options = machine.options();
    change(options);
    Service service(options, machine.seams());
    machine.files->forget();
    EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::disk);
    return machine.files->calls().size();
  };
  // Tuned plans, of which there are none here, are looked for in every layer.
  const auto of_a_layer = calls_of([](Options& options) { options.layers = {"/absent/kernels.njp"}; });
  EXPECT_EQ(calls_of([](Options& options) {
              options.remote_pack = "http://127.0.0.1:1/kernels.njp";
              options.remote_unsigned = true;
            }),
            of_a_layer);
  EXPECT_THAT(machine.warnings(), IsEmpty());
}

}  // namespace
}  // namespace normjit::testing
