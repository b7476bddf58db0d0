// SPDX-License-Identifier: Apache-2.0
// A pack that is fetched from a URL, here from a server in this process.
#include "normjit/remote/remote_pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "normjit/cache/entry.h"
#include "normjit/cache/pack.h"
#include "normjit/remote/signature.h"
#include "tests/support/child.h"
#include "tests/support/recording_file_system.h"
#include "tests/support/temp_directory.h"

namespace normjit::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = Lookup::Kind;

constexpr const char* kUrl = "https://user:secret@web.example/kernels.njp?token=1";
constexpr const char* kSignatureUrl = "https://user:secret@web.example/kernels.njp.minisig?token=1";

Entry entry_of(const std::string& identity) {
  return {identity, {{"spec", identity}}, "code of " + identity};
}

std::string pack_of(const std::vector<std::string>& identities) {
  std::map<std::string, std::string> entries;
  for (const std::string& identity : identities) entries[entry_id(identity)] = encode(entry_of(identity));
  return encode_pack(entries);
}

// Files by URL, each with a version.
struct WebServer {
  std::map<std::string, std::string> files;
  bool has_versions = true;
  Outcome failure = {.kind = NORMJIT_REMOTE_DONE};  // in place of every answer, unless DONE
  std::chrono::milliseconds delay{0};
  std::atomic<int> sent = 0, unchanged = 0, calls = 0;

  RemotePack::Fetch fetch() {
    return [this](const std::string& url, const std::string& version, std::size_t max_bytes,
                  std::chrono::milliseconds, std::string& bytes, std::string& new_version) -> Outcome {
      ++calls;
      std::this_thread::sleep_for(delay);
      if (failure.kind != NORMJIT_REMOTE_DONE) return failure;
      const auto file = files.find(url);
      if (file == files.end()) return {.kind = NORMJIT_REMOTE_ABSENT};
      const std::string now = '"' + entry_id(file->second) + '"';
      if (has_versions && version == now) {
        ++unchanged;
        return {.kind = NORMJIT_REMOTE_UNCHANGED};
      }
      if (file->second.size() > max_bytes) return {.kind = NORMJIT_REMOTE_REFUSED, .why = "too large"};
      ++sent;
      bytes = file->second;
      new_version = has_versions ? now : "";
      return {.kind = NORMJIT_REMOTE_DONE};
    };
  }
};

class RemotePackTest : public ::testing::Test {
 protected:
  RemotePackTest() { server_.files[kUrl] = pack_of({"a", "b"}); }

  RemotePack pack(std::chrono::milliseconds pause = 1h, std::vector<std::string> trust = {}) {
    return RemotePack(
        {.url = kUrl,
         .trust = trust,
         .unsigned_values = trust.empty(),
         .directory = directory_ / "cache",
         .limits = {.pause = pause}},
        files_, [this](std::string_view text) { warnings_.emplace_back(text); }, server_.fetch());
  }
  // As if their time were over.
  void age_verdicts() {
    namespace fs = std::filesystem;
    for (const auto& file : fs::directory_iterator(directory_ / "cache"))
      if (file.path().extension() == ".down")
        fs::last_write_time(file, fs::file_time_type::clock::now() - 2h);
  }
  Kind look(const RemotePack& pack, const std::string& identity) { return pack.layer()->look(identity).kind; }

  // How many of eight processes that need this entry at once, here threads, do not find it.
  int misses_of_eight(const std::string& identity) {
    std::vector<std::thread> threads;
    std::atomic<int> missed = 0;
    for (int i = 0; i < 8; ++i)
      threads.emplace_back([&] {
        RemotePack mine = this->pack();
        mine.refresh();
        missed += look(mine, identity) != Kind::entry;
      });
    for (std::thread& thread : threads) thread.join();
    return missed;
  }

  const TempDirectory directory_;
  const std::shared_ptr<RecordingFileSystem> files_ = std::make_shared<RecordingFileSystem>();
  WebServer server_;
  std::vector<std::string> warnings_;
};

TEST_F(RemotePackTest, TouchesNothingBeforeItIsNeeded) {
  RemotePack pack = this->pack();
  EXPECT_THAT(files_->calls(), IsEmpty());
  EXPECT_EQ(look(pack, "a"), Kind::absent);
  EXPECT_THAT(*pack.layer()->list(), IsEmpty());
  EXPECT_EQ(server_.calls, 0);
  EXPECT_EQ(pack.shown(), "https://web.example/kernels.njp");
}

TEST_F(RemotePackTest, IsFetchedOnceForAllProcesses) {
  RemotePack first = pack(), second = pack();
  first.refresh();
  first.refresh();
  second.refresh();
  EXPECT_EQ(server_.calls, 1);
  for (RemotePack* one : {&first, &second}) {
    EXPECT_EQ(one->layer()->look("a").entry, entry_of("a"));
    EXPECT_EQ(look(*one, "c"), Kind::absent);
    EXPECT_THAT(*one->layer()->list(), SizeIs(2));
  }
  RemotePack next = pack();  // as of a process that starts later
  EXPECT_EQ(look(next, "b"), Kind::entry);
  EXPECT_EQ(server_.calls, 1);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(RemotePackTest, ThreadsThatNeedItTogetherWaitForOneFetch) {
  EXPECT_EQ(misses_of_eight("a"), 0);
  EXPECT_EQ(server_.sent, 1);
}

TEST_F(RemotePackTest, AfterAPauseOnlyANewOneIsSent) {
  RemotePack pack = this->pack(0ms);
  pack.refresh();
  pack.refresh();
  EXPECT_EQ(server_.sent, 1);
  EXPECT_EQ(server_.unchanged, 1);
  server_.files[kUrl] = pack_of({"b", "c"});
  pack.refresh();
  EXPECT_EQ(server_.sent, 2);
  EXPECT_EQ(look(pack, "a"), Kind::absent);
  EXPECT_EQ(look(pack, "c"), Kind::entry);
}

TEST_F(RemotePackTest, AServerWithoutVersionsSendsItEachTime) {
  server_.has_versions = false;
  RemotePack pack = this->pack(0ms);
  pack.refresh();
  pack.refresh();
  EXPECT_EQ(server_.sent, 2);
  EXPECT_EQ(look(pack, "a"), Kind::entry);
}

TEST_F(RemotePackTest, ACopyThatWasRemovedOrDamagedIsFetchedAgain) {
  RemotePack pack = this->pack(0ms);
  const std::string& path = pack.layer()->path();
  pack.refresh();
  std::filesystem::remove(path);
  pack.refresh();
  EXPECT_EQ(look(pack, "a"), Kind::entry);
  std::ofstream(path, std::ios::trunc) << "normjit-pack 1\n";
  pack.refresh();
  EXPECT_EQ(look(pack, "a"), Kind::entry);
  EXPECT_EQ(server_.sent, 3);
}

TEST_F(RemotePackTest, AFaultIsToldOnceAndTheOldOneStays) {
  RemotePack pack = this->pack(0ms);
  pack.refresh();
  const Outcome faults[] = {{.kind = NORMJIT_REMOTE_FAILED, .why = "no answer"},
                            {.kind = NORMJIT_REMOTE_REFUSED, .why = "answered 403"},
                            {.kind = NORMJIT_REMOTE_ABSENT},
                            {.kind = 77, .why = "an outcome that nobody knows"}};
  for (const Outcome& fault : faults) {
    server_.failure = fault;
    pack.refresh();
    EXPECT_FALSE(pack.fetch().ok());
    EXPECT_EQ(look(pack, "a"), Kind::entry);
  }
  EXPECT_THAT(warnings_, ElementsAre("remote pack: no answer; kernels are compiled instead"));
}

TEST_F(RemotePackTest, BytesThatAreNoPackAreNotKept) {
  const std::string sound = pack_of({"a", "b"});
  const auto flipped = [&](std::size_t at) {
    std::string bytes = sound;
    bytes[at] ^= 1;
    return bytes;
  };
  const std::string poisons[] = {"<html>not found</html>",          "",          sound.substr(0, 40),
                                 sound.substr(0, sound.size() - 1), sound + "x", flipped(20)};
  RemotePack pack = this->pack(0ms);
  for (const std::string& poison : poisons) {
    server_.files[kUrl] = poison;
    pack.refresh();
    EXPECT_FALSE(std::filesystem::exists(pack.layer()->path()));
  }
  EXPECT_THAT(warnings_, SizeIs(1));
}

TEST_F(RemotePackTest, ADownServerIsAskedOnceInAPauseByAllProcesses) {
  server_.failure = {.kind = NORMJIT_REMOTE_FAILED, .why = "no answer"};
  for (int i = 0; i < 5; ++i) pack().refresh();
  EXPECT_EQ(server_.calls, 1);
}

// A directory that is not new: the pause behind the last fetch is over.
TEST_F(RemotePackTest, AllWaitForOneFetchAlsoAfterAPause) {
  pack().refresh();
  age_verdicts();
  server_.files[kUrl] = pack_of({"c"});
  server_.delay = 100ms;
  EXPECT_EQ(misses_of_eight("c"), 0);
  EXPECT_EQ(server_.sent, 2);
}

TEST_F(RemotePackTest, SaysWhetherTheLayerMayHaveChanged) {
  RemotePack pack = this->pack();
  const auto begin = pack.changes();
  EXPECT_TRUE(pack.is_due());
  pack.refresh();
  const auto fetched = pack.changes();
  EXPECT_NE(fetched, begin);
  EXPECT_FALSE(pack.is_due());
  pack.refresh();
  EXPECT_EQ(pack.changes(), fetched);
}

// Neither can be guessed from the name of a file, and a new password is no new pack.
TEST_F(RemotePackTest, UserPasswordAndQueryAreInNoName) {
  RemotePack one = this->pack();
  RemotePack other(
      {.url = "https://other:password@web.example/kernels.njp?token=2", .directory = directory_ / "cache"},
      files_, {}, server_.fetch());
  EXPECT_EQ(one.layer()->path(), other.layer()->path());
}

TEST_F(RemotePackTest, WithoutAKeyNoCopyIsBelieved) {
  pack().refresh();
  RemotePack signed_pack({.url = kUrl, .directory = directory_ / "cache"}, files_, {}, server_.fetch());
  EXPECT_EQ(look(signed_pack, "a"), Kind::untrusted);
}

TEST_F(RemotePackTest, NeedsADirectoryAndAKey) {
  RemotePack nowhere({.url = kUrl, .unsigned_values = true}, files_, {}, server_.fetch());
  EXPECT_THAT(nowhere.fetch().error().message, HasSubstr("cache directory"));
  RemotePack nobody({.url = kUrl, .directory = directory_.path()}, files_, {}, server_.fetch());
  EXPECT_THAT(nobody.fetch().error().message, HasSubstr("NORMJIT_TRUST"));
  EXPECT_EQ(server_.calls, 0);
}

TEST_F(RemotePackTest, AForkedChildGoesOn) {
  RemotePack pack = this->pack(0ms);
  pack.refresh();
  EXPECT_EQ(outcome_in_child([&] {
              pack.refresh();
              return look(pack, "a") == Kind::entry;
            }),
            "done");
}

// --- Signed

class SignedRemotePack : public RemotePackTest {
 protected:
  void SetUp() override {
    if (const std::string error = sodium_error(); !error.empty()) GTEST_SKIP() << error;
    key_.emplace(SecretKey::generate().value());
    trust_ = {key_->public_key().text()};
  }
  void sign(const SecretKey& key) {
    server_.files[kSignatureUrl] = key.sign_file(server_.files[kUrl], "test");
  }

  std::optional<SecretKey> key_;
  std::vector<std::string> trust_;
};

TEST_F(SignedRemotePack, IsTakenByItsSignature) {
  sign(*key_);
  RemotePack pack = this->pack(1h, trust_);
  pack.refresh();
  EXPECT_EQ(look(pack, "a"), Kind::entry);
  EXPECT_EQ(look(this->pack(1h, trust_), "a"), Kind::entry) << "the next process";
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(SignedRemotePack, IsNewIfItsSignatureIs) {
  sign(*key_);
  RemotePack pack = this->pack(0ms, trust_);
  pack.refresh();
  EXPECT_EQ(server_.sent, 2) << "the signature and the pack";
  pack.refresh();
  EXPECT_EQ(server_.calls, 3);
  EXPECT_EQ(server_.unchanged, 1);
  server_.files[kUrl] = pack_of({"c"});
  sign(*key_);
  pack.refresh();
  EXPECT_EQ(look(pack, "c"), Kind::entry);
  EXPECT_EQ(server_.sent, 4);
}

TEST_F(SignedRemotePack, APackOfAnotherKeyIsNotEvenSent) {
  sign(SecretKey::generate().value());
  RemotePack pack = this->pack(0ms, trust_);
  pack.refresh();
  pack.refresh();
  EXPECT_EQ(server_.sent, 2) << "signatures";
}

TEST_F(SignedRemotePack, IsNotTakenOtherwise) {
  const SecretKey foreign = SecretKey::generate().value();
  RemotePack pack = this->pack(0ms, trust_);
  const auto is_refused = [&] {
    pack.refresh();
    return pack.fetch().code() == Code::Untrusted && look(pack, "a") == Kind::absent;
  };
  EXPECT_TRUE(is_refused()) << "no signature";
  sign(foreign);
  EXPECT_TRUE(is_refused()) << "of another key";
  server_.files[kUrl] = pack_of({"a"});
  sign(*key_);
  server_.files[kUrl] = pack_of({"a", "b"});
  EXPECT_TRUE(is_refused()) << "of another pack";
  server_.files[kSignatureUrl] = "untrusted comment: none\n";
  EXPECT_TRUE(is_refused()) << "of nothing";
  EXPECT_THAT(warnings_, SizeIs(1));
}

TEST_F(SignedRemotePack, ANewSignatureOfTheSameBytesIsFetched) {
  sign(*key_);
  pack(0ms, trust_).refresh();
  const SecretKey next = SecretKey::generate().value();
  RemotePack pack = this->pack(0ms, {next.public_key().text()});
  EXPECT_EQ(look(pack, "a"), Kind::untrusted) << "the copy of this machine is not of this key";
  sign(next);
  pack.refresh();
  EXPECT_EQ(look(pack, "a"), Kind::entry);
}

TEST_F(SignedRemotePack, NoChangedByteIsTaken) {
  sign(*key_);
  RemotePack pack = this->pack(0ms, trust_);
  const std::string sound = server_.files[kUrl], signature = server_.files[kSignatureUrl];
  for (std::size_t i = 0; i < sound.size() + signature.size(); ++i) {
    std::string changed = sound, other = signature;
    // The comment that is not signed may be any.
    const std::size_t signed_from = signature.find('\n') + 1;
    if (i < sound.size())
      changed[i] = static_cast<char>(changed[i] ^ (1 << i % 8));
    else if (i - sound.size() < signed_from)
      continue;
    else
      other[i - sound.size()] = static_cast<char>(other[i - sound.size()] ^ 1);
    server_.files[kUrl] = changed;
    server_.files[kSignatureUrl] = other;
    pack.refresh();
    ASSERT_EQ(look(pack, "a"), Kind::absent) << "byte " << i;
  }
}

}  // namespace
}  // namespace normjit::testing
