// SPDX-License-Identifier: Apache-2.0
// A pack that machines fetch from a real web server, and from S3.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "normjit/base/text.h"
#include "normjit/remote/remote_pack.h"
#include "normjit/remote/signature.h"
#include "normjit/service.h"
#include "tests/support/fake_machine.h"
#include "tests/support/servers.h"

namespace normjit::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr NormSpec kSpec{.columns = 4096};
constexpr NormSpec kOther{.columns = 64};

class PackOnWeb : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_plugin("http")) GTEST_SKIP() << "Skipped: the plug-in for HTTP is not built";
    if (const std::string error = sodium_error(); !error.empty()) GTEST_SKIP() << "Skipped: " << error;
    key_.emplace(SecretKey::generate().value());
    auto directory = std::make_unique<TempDirectory>();
    folder_ = directory->path();
    std::filesystem::permissions(folder_, std::filesystem::perms(0755));
    server_ = nginx_server_of(concat({"root ", folder_, ";\n", "access_log ", folder_, "/access.log;\n"}),
                              std::move(directory));
    if (!server_) GTEST_SKIP() << "Skipped: there is no nginx";
    publish({kSpec});
  }

  void publish(const std::vector<NormSpec>& specs) {
    const std::string pack = FakeMachine::pack_of(specs);
    const auto write = [&](const std::string& name, const std::string& bytes) {
      std::ofstream(folder_ + "/new", std::ios::binary) << bytes;
      // nginx makes a version of time and size.
      std::filesystem::last_write_time(
          folder_ + "/new", std::filesystem::file_time_type::clock::now() - 1h + ++published_ * 10s);
      std::filesystem::rename(folder_ + "/new", folder_ + "/" + name);
    };
    write("kernels.njp.minisig", key_->sign_file(pack, "of a test"));
    write("kernels.njp", pack);
  }
  std::string url() const { return "http://" + server_->address() + "/kernels.njp"; }
  // A new process of this machine.
  Service service(const FakeMachine& machine) const {
    Options options = machine.options();
    options.remote_pack = url();
    options.trust = {key_->public_key().text()};
    return Service(options, machine.seams());
  }
  // Whether so many requests for this file were answered like that. The server writes its log behind the
  // answer.
  ::testing::AssertionResult answered(const std::string& file, int status, int expected) const {
    const std::string request = concat({"\"GET /", file, " HTTP/1.1\" ", shortest(status), " "});
    int count = -1;
    for (int i = 0; i < 100 && count < expected; ++i) {
      if (count >= 0) std::this_thread::sleep_for(50ms);
      std::ifstream log(folder_ + "/access.log");
      count = 0;
      for (std::string line; std::getline(log, line);) count += line.find(request) != line.npos;
    }
    if (count == expected) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << count << " requests for " << file << " were answered " << status;
  }

  std::optional<SecretKey> key_;
  std::string folder_;
  int published_ = 0;
  std::unique_ptr<Server> server_;
};

TEST_F(PackOnWeb, ServesEveryProcessOfAMachineAndIsFetchedOnce) {
  const FakeMachine machine;
  EXPECT_EQ(service(machine).prepare(kSpec).value().origin(), Origin::layer);
  EXPECT_EQ(service(machine).prepare(kSpec).value().origin(), Origin::disk);
  EXPECT_EQ(service(machine).prepare(kSpec, {.rows_hint = 1}).value().origin(), Origin::layer);
  EXPECT_EQ(machine.compiles(), 0);
  EXPECT_EQ(service(machine).prepare(kOther).value().origin(), Origin::compiled);
  EXPECT_TRUE(answered("kernels.njp", 200, 1));
  EXPECT_TRUE(answered("kernels.njp.minisig", 200, 1));
  EXPECT_THAT(machine.warnings(), IsEmpty());
  const Environment found = service(machine).environment();
  EXPECT_EQ(found.remote_pack.url, url());
  EXPECT_EQ(found.remote_pack.error, "");
  EXPECT_THAT(found.layers, ElementsAre(::testing::Field(&Environment::Layer::path, found.remote_pack.path)));
}

TEST_F(PackOnWeb, ServesWhereNothingIsCompiled) {
  const FakeMachine machine;
  Options options = machine.options();
  options.remote_pack = url();
  options.trust = {key_->public_key().text()};
  options.mode = Mode::cached_only;
  Service service(options, machine.seams());
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::layer);
  EXPECT_EQ(service.prepare(kOther).code(), Code::NotCached);
}

TEST_F(PackOnWeb, IsSentAgainOnlyIfItIsNew) {
  const TempDirectory cache;
  const auto files = FakeMachine().files;
  RemotePack pack({.url = url(),
                   .trust = {key_->public_key().text()},
                   .directory = cache.path(),
                   .limits = {.pause = 0ms}},
                  files, {});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pack.fetch().ok()) << pack.fetch().error().message;
  EXPECT_TRUE(answered("kernels.njp", 200, 1));
  EXPECT_TRUE(answered("kernels.njp.minisig", 304, 2));
  publish({kSpec, kOther});
  ASSERT_TRUE(pack.fetch().ok());
  EXPECT_TRUE(answered("kernels.njp", 200, 2));
}

TEST_F(PackOnWeb, AnAbsentForeignOrUnreachableOneCostsNothingButTime) {
  const auto expect_compiled = [&](const std::string& why) {
    const FakeMachine machine;
    EXPECT_EQ(service(machine).prepare(kSpec).value().origin(), Origin::compiled);
    EXPECT_THAT(machine.warnings(), ElementsAre(AllOf(HasSubstr("remote pack: "), HasSubstr(why))));
  };
  std::ofstream(folder_ + "/kernels.njp", std::ios::app) << "x";
  expect_compiled(std::string(reason(Trusted::wrong)));
  std::filesystem::remove(folder_ + "/kernels.njp");
  expect_compiled("there is no http://");
  std::filesystem::remove(folder_ + "/kernels.njp.minisig");
  expect_compiled("is not signed");
  server_->stop();
  expect_compiled("was not reached");
}

TEST_F(PackOnWeb, AServerThatSwallowsPacketsIsGivenUpAfterHalfASecond) {
  const SilentPort silent;
  const FakeMachine machine;
  Options options = machine.options();
  options.remote_pack = concat({"http://127.0.0.1:", shortest(silent.port()), "/kernels.njp"});
  options.trust = {key_->public_key().text()};
  Service service(options, machine.seams());
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::compiled);
  EXPECT_THAT(machine.warnings(), ElementsAre(HasSubstr("within 500 ms")));
}

TEST(PackOnS3, IsTakenAndComparedByItsVersion) {
  if (!has_plugin("http")) GTEST_SKIP() << "Skipped: the plug-in for HTTP is not built";
  const auto s3 = s3_server();
  if (!s3) GTEST_SKIP() << "Skipped: there is no moto_server";
  const std::string place = concat({"?endpoint=http://", s3->address()});
  ::setenv("AWS_ACCESS_KEY_ID", "test", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "test", 1);
  Sessions sessions("s3://kernels" + place);
  const std::string value(800'000, 'k');
  ASSERT_EQ(sessions
                .call([&](const normjit_remote& store, char* why, std::size_t size) {
                  return store.put(store.user, "nj1:pack", value.data(), value.size(), 5000, why, size);
                })
                .kind,
            NORMJIT_REMOTE_DONE);
  std::string bytes, version, ignored;
  const auto fetch = [&](const std::string& key, const std::string& known) {
    return fetch_file("s3://kernels/" + key + place, known, 1 << 20, 5s, bytes,
                      known.empty() ? version : ignored);
  };
  const Outcome first = fetch("nj1/pack", "");
  ASSERT_EQ(first.kind, NORMJIT_REMOTE_DONE) << first.why;
  EXPECT_EQ(bytes, value);
  EXPECT_NE(version, "");
  EXPECT_EQ(fetch("nj1/pack", version).kind, NORMJIT_REMOTE_UNCHANGED);
  EXPECT_EQ(fetch("nj1/pack", "\"another\"").kind, NORMJIT_REMOTE_DONE);
  EXPECT_EQ(fetch("nj1/none", "").kind, NORMJIT_REMOTE_ABSENT);
  const Outcome large = fetch_file("s3://kernels/nj1/pack" + place, "", 1000, 5s, bytes, ignored);
  EXPECT_EQ(large.kind, NORMJIT_REMOTE_REFUSED);
}

}  // namespace
}  // namespace normjit::testing
