// SPDX-License-Identifier: Apache-2.0
// A remote store by itself: answers, leases, offers, and what each fault of the store costs.
#include "normjit/remote/remote.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "normjit/remote/value.h"
#include "tests/support/child.h"
#include "tests/support/fake_store.h"
#include "tests/support/recording_file_system.h"
#include "tests/support/temp_directory.h"

namespace normjit::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = Remote::Answer::Kind;

const std::string kIdentity = "source=1 arch=sm_90 options=-O3";

Entry entry_of(const std::string& identity) {
  return {identity, {{"code", "cubin"}}, std::string("code\0code", 9)};
}
std::string key_of(const std::string& identity) { return value_key(entry_id(identity)); }

class RemoteTest : public ::testing::Test {
 protected:
  Remote::Settings settings() {
    Remote::Settings settings;
    settings.store = store_.remote();
    settings.unsigned_values = true;
    settings.limits.breaker.slow = 10s;  // a busy machine is slow by itself
    return settings;
  }
  std::unique_ptr<Remote> remote(const Remote::Settings& settings) {
    return std::make_unique<Remote>(settings, files_, [this](std::string_view text) {
      const std::lock_guard lock(mutex_);
      warnings_.emplace_back(text);
    });
  }
  std::unique_ptr<Remote> remote() { return remote(settings()); }
  std::vector<std::string> warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }

  FakeStore store_;
  const std::shared_ptr<RecordingFileSystem> files_ = std::make_shared<RecordingFileSystem>();
  std::mutex mutex_;
  std::vector<std::string> warnings_;
};

TEST_F(RemoteTest, FindsWhatAnotherHasOffered) {
  const Entry entry = entry_of(kIdentity);
  std::promise<Remote::Sent> sent;
  {
    const auto writer = remote();
    writer->offer(entry, [&](const Remote::Sent& outcome) { sent.set_value(outcome); });
  }
  EXPECT_TRUE(sent.get_future().get().stored);
  const auto answer = remote()->look(kIdentity);
  ASSERT_EQ(answer.kind, Kind::entry);
  EXPECT_EQ(answer.entry, entry);
  EXPECT_EQ(answer.bytes, encode(entry).size());
  EXPECT_EQ(remote()->look("another").kind, Kind::absent);
  EXPECT_EQ(store_.calls().close, 3);
  EXPECT_THAT(warnings(), IsEmpty());
}

TEST_F(RemoteTest, DoesNothingBeforeItIsAsked) {
  const auto idle = remote();
  EXPECT_EQ(store_.calls().all(), 0);
  EXPECT_THAT(files_->calls(), IsEmpty());
}

// Without a key that is trusted nothing would be believed, so nothing is asked; and who cannot sign offers
// nothing.
TEST_F(RemoteTest, SaysOnceThatNoKeyIsTrusted) {
  Remote::Settings unset = settings();
  unset.unsigned_values = false;
  const auto reader = remote(unset);
  EXPECT_EQ(reader->look(kIdentity).kind, Kind::not_asked);
  EXPECT_EQ(reader->look_or_lease(kIdentity).kind, Kind::not_asked);
  reader->offer(entry_of(kIdentity), {});
  EXPECT_EQ(store_.calls().all(), 0);
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("NORMJIT_TRUST")));
}

TEST_F(RemoteTest, BelievesNoDamagedAndNoMisnamedValue) {
  const std::string file = encode(entry_of(kIdentity));
  const auto reader = remote();
  store_.set(key_of(kIdentity), encode(entry_of("source=2 arch=sm_90 options=-O3")));
  EXPECT_EQ(reader->look(kIdentity).why, "another entry than its key says");
  for (std::size_t i = 0; i < file.size(); ++i) {
    std::string damaged = file;
    damaged[i] ^= 0x20;
    store_.set(key_of(kIdentity), damaged);
    const auto answer = reader->look(kIdentity);
    EXPECT_EQ(answer.kind, Kind::untrusted) << i;
    EXPECT_EQ(answer.why, "damaged") << i;
    store_.set(key_of(kIdentity), file.substr(0, i));
    EXPECT_EQ(reader->look(kIdentity).kind, Kind::untrusted) << i;
  }
  store_.set(key_of(kIdentity), file);
  EXPECT_EQ(reader->look(kIdentity).kind, Kind::entry);
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("is not used")));
}

TEST_F(RemoteTest, AFailureIsToldOnceAndEndsTheCallsForAWhile) {
  Remote::Settings impatient = settings();
  impatient.limits.breaker.pause = 500ms;
  const auto reader = remote(impatient);
  store_.fail("the server has moved");
  EXPECT_EQ(reader->look(kIdentity).kind, Kind::failed);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(reader->look(kIdentity).kind, Kind::not_asked);
  EXPECT_EQ(store_.calls().get, 1);
  store_.fail("");
  std::this_thread::sleep_for(520ms);
  EXPECT_EQ(reader->look(kIdentity).kind, Kind::absent);
  EXPECT_EQ(reader->look(kIdentity).kind, Kind::absent);
  EXPECT_EQ(store_.calls().get, 3);
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("the server has moved")));
}

TEST_F(RemoteTest, ASlowStoreCountsAsDownOnceItHasCostTooMuch) {
  Remote::Settings settings = this->settings();
  settings.limits.breaker.slow = 5ms;
  settings.limits.breaker.lost = 20ms;
  const auto reader = remote(settings);
  store_.delay(10ms);
  for (int i = 0; i < 20; ++i) reader->look(kIdentity);
  EXPECT_LE(store_.calls().get, 2);
}

// Neither leases nor offers make up for slow looks.
TEST_F(RemoteTest, ASlowStoreCountsAsDownForThoseWhoMayOffer) {
  Remote::Settings settings = this->settings();
  settings.limits.breaker.slow = 5ms;
  settings.limits.breaker.lost = 25ms;
  const auto writer = remote(settings);
  store_.delay(10ms);
  for (int i = 0; i < 20; ++i) {
    writer->look_or_lease(std::to_string(i));
    writer->give_up(std::to_string(i));
    writer->flush();
  }
  EXPECT_LE(store_.calls().get, 3);
  EXPECT_LE(store_.calls().lease, 2);
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("answers slowly")));
}

// A store that has no room, or gives no right to write, is still good for those who read.
TEST_F(RemoteTest, ARefusedOfferEndsOffersAndNotLooks) {
  const auto writer = remote();
  store_.refuse_writes("no room");
  store_.set(key_of("present"), encode(entry_of("present")));
  for (int i = 0; i < 3; ++i) {
    writer->offer(entry_of(std::to_string(i)), {});
    writer->flush();
    EXPECT_EQ(writer->look("present").kind, Kind::entry);
  }
  EXPECT_EQ(store_.calls().put, 1);
  EXPECT_EQ(writer->look_or_lease("absent").kind, Kind::absent);
  EXPECT_EQ(store_.calls().lease, 0);
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("no room")));
}

TEST_F(RemoteTest, FindsWhatComesBetweenItsLookAndItsLease) {
  const auto maker = remote();
  store_.set_behind_a_look(key_of(kIdentity), encode(entry_of(kIdentity)));
  EXPECT_EQ(maker->look_or_lease(kIdentity).kind, Kind::entry);
  EXPECT_FALSE(store_.has_lease(lease_key(entry_id(kIdentity))));
}

TEST_F(RemoteTest, AMissTakesOneLookAndOneLease) {
  const auto maker = remote();
  EXPECT_EQ(maker->look_or_lease(kIdentity).kind, Kind::absent);
  EXPECT_EQ(store_.calls().get, 1);
  EXPECT_EQ(store_.calls().lease, 1);
}

TEST_F(RemoteTest, SlowOffersCostNothing) {
  Remote::Settings settings = this->settings();
  settings.limits.breaker.slow = 5ms;
  settings.limits.breaker.lost = 20ms;
  const auto writer = remote(settings);
  store_.delay(10ms);
  for (int i = 0; i < 8; ++i) writer->offer(entry_of(std::to_string(i)), {}, /*wait=*/true);
  writer->flush();
  EXPECT_EQ(store_.values().size(), 8U);
}

// Whoever looks or asks: an operator who has mended the store need not wait.
TEST_F(RemoteTest, AProbeThatIsAnsweredEndsThePause) {
  const auto asker = remote();
  store_.fail("gone");
  EXPECT_EQ(asker->look(kIdentity).kind, Kind::failed);
  EXPECT_FALSE(asker->probe().ok());
  store_.fail("");
  EXPECT_EQ(asker->look(kIdentity).kind, Kind::not_asked);
  EXPECT_TRUE(asker->probe().ok());
  EXPECT_EQ(asker->look(kIdentity).kind, Kind::absent);
}

TEST_F(RemoteTest, AMistakeInTheKeysIsNoReasonToBelieveEverything) {
  Remote::Settings mistaken = settings();
  mistaken.trust = {"/nonexistent.pub"};
  const auto reader = remote(mistaken);
  EXPECT_EQ(reader->look(kIdentity).kind, Kind::not_asked);
  reader->offer(entry_of(kIdentity), {});
  EXPECT_EQ(store_.calls().all(), 0);
}

TEST_F(RemoteTest, WhatWasAbsentIsKnownForAWhile) {
  Remote::Settings settings = this->settings();
  settings.limits.breaker.pause = 300ms;
  const auto reader = remote(settings);
  EXPECT_TRUE(reader->may_have(kIdentity));
  EXPECT_EQ(reader->look(kIdentity).kind, Kind::absent);
  EXPECT_FALSE(reader->may_have(kIdentity));
  std::this_thread::sleep_for(320ms);
  EXPECT_TRUE(reader->may_have(kIdentity));
}

TEST_F(RemoteTest, AMissGivesALeaseWhichTheOfferEnds) {
  const auto maker = remote();
  EXPECT_EQ(maker->look_or_lease(kIdentity).kind, Kind::absent);
  const std::string lease = lease_key(entry_id(kIdentity));
  EXPECT_TRUE(store_.has_lease(lease));
  maker->offer(entry_of(kIdentity), {});
  for (int i = 0; i < 1000 && store_.has_lease(lease); ++i) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(store_.has_lease(lease));
  EXPECT_EQ(store_.values().count(key_of(kIdentity)), 1U);
}

TEST_F(RemoteTest, ALeaseThatIsGivenUpIsFree) {
  const auto maker = remote();
  EXPECT_EQ(maker->look_or_lease(kIdentity).kind, Kind::absent);
  maker->give_up(kIdentity);
  maker->give_up("never leased");
  const std::string lease = lease_key(entry_id(kIdentity));
  for (int i = 0; i < 1000 && store_.has_lease(lease); ++i) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(store_.has_lease(lease));
  EXPECT_EQ(store_.calls().put, 0);
}

TEST_F(RemoteTest, ALeaseIsRenewedWhileItsHolderCompiles) {
  Remote::Settings settings = this->settings();
  settings.limits.lease = 800ms;
  settings.limits.renew = 50ms;
  const auto maker = remote(settings);
  EXPECT_EQ(maker->look_or_lease(kIdentity).kind, Kind::absent);
  for (int i = 0; i < 24; ++i) {
    std::this_thread::sleep_for(50ms);
    EXPECT_TRUE(store_.has_lease(lease_key(entry_id(kIdentity)))) << i;
  }
  EXPECT_GT(store_.calls().lease, 3);
}

TEST_F(RemoteTest, WaitsForTheMachineThatCompiles) {
  const auto waiter = remote();
  store_.take_lease(lease_key(entry_id(kIdentity)), 10s);
  std::thread other([&] {
    std::this_thread::sleep_for(80ms);
    store_.set(key_of(kIdentity), encode(entry_of(kIdentity)));
  });
  const auto answer = waiter->look_or_lease(kIdentity);
  other.join();
  EXPECT_EQ(answer.kind, Kind::entry);
  EXPECT_GT(answer.waited, 40);
}

TEST_F(RemoteTest, CompilesInPlaceOfAMachineThatIsGone) {
  const auto waiter = remote();
  store_.take_lease(lease_key(entry_id(kIdentity)), 150ms);
  const auto answer = waiter->look_or_lease(kIdentity);
  EXPECT_EQ(answer.kind, Kind::absent);
  EXPECT_GT(answer.waited, 40);
  EXPECT_TRUE(store_.has_lease(lease_key(entry_id(kIdentity))));
}

TEST_F(RemoteTest, DoesNotWaitForEver) {
  Remote::Settings settings = this->settings();
  settings.limits.patience = 50ms;
  const auto waiter = remote(settings);
  store_.take_lease(lease_key(entry_id(kIdentity)), 60s);
  EXPECT_EQ(waiter->look_or_lease(kIdentity).kind, Kind::absent);
}

TEST_F(RemoteTest, AStoreWithoutLeasesIsOnlyAsked) {
  store_.has_leases = false;
  const auto maker = remote();
  EXPECT_EQ(maker->look_or_lease(kIdentity).kind, Kind::absent);
  maker->offer(entry_of(kIdentity), {});
  maker->give_up(kIdentity);
  for (int i = 0; i < 1000 && store_.values().empty(); ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(store_.values().size(), 1U);
  EXPECT_EQ(store_.calls().release, 0);
}

TEST_F(RemoteTest, OffersBeyondTheQueueAreDroppedAndOthersSentAtTheEnd) {
  Remote::Settings settings = this->settings();
  settings.limits.offers = 3;
  {
    const auto writer = remote(settings);
    store_.hold_puts();
    for (int i = 0; i < 20; ++i) writer->offer(entry_of(std::to_string(i)), {});
    store_.release_puts();
  }
  EXPECT_GE(store_.values().size(), 3U);
  EXPECT_LE(store_.values().size(), 4U);  // one may have been on its way
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("some are not offered")));
}

TEST_F(RemoteTest, AnOfferMayWaitForRoom) {
  Remote::Settings settings = this->settings();
  settings.limits.offers = 2;
  {
    const auto writer = remote(settings);
    for (int i = 0; i < 50; ++i) writer->offer(entry_of(std::to_string(i)), {}, /*wait=*/true);
  }
  EXPECT_EQ(store_.values().size(), 50U);
  EXPECT_THAT(warnings(), IsEmpty());
}

TEST_F(RemoteTest, ADownStoreDropsOffersAtOnce) {
  store_.fail("gone");
  const auto writer = remote();
  for (int i = 0; i < 10; ++i) writer->offer(entry_of(std::to_string(i)), {});
  SUCCEED();  // the end does not hang
}

// Machines that miss the same keys at the same time: each key is compiled by one of them.
TEST_F(RemoteTest, OneOfManyMachinesCompiles) {
  constexpr int kMachines = 8, kKeys = 10;
  std::atomic<int> compiles = 0, found = 0;
  std::vector<std::thread> machines;
  for (int machine = 0; machine < kMachines; ++machine) {
    machines.emplace_back([&] {
      const auto own = remote();
      for (int key = 0; key < kKeys; ++key) {
        const std::string identity = "key " + std::to_string(key);
        if (own->look_or_lease(identity).kind == Kind::entry) {
          ++found;
          continue;
        }
        ++compiles;
        std::this_thread::sleep_for(10ms);
        own->offer(entry_of(identity), {});
      }
    });
  }
  for (std::thread& machine : machines) machine.join();
  EXPECT_EQ(compiles, kKeys);
  EXPECT_EQ(found, kMachines * kKeys - kKeys);
}

TEST_F(RemoteTest, AForkedChildAsksForItself) {
  NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
  const auto shared = remote();
  EXPECT_EQ(shared->look_or_lease(kIdentity).kind, Kind::absent);  // with a thread that renews the lease
  EXPECT_EQ(outcome_in_child([&] {
              const bool waits = shared->look("another").kind == Kind::absent;
              shared->offer(entry_of("another"), {});
              while (store_.values().empty()) std::this_thread::sleep_for(1ms);
              return waits;
            }),
            "done");
  EXPECT_THAT(store_.values(), IsEmpty());  // the child's memory is its own
}

TEST_F(RemoteTest, AnUnknownSchemeIsSaid) {
  Remote::Settings settings;
  settings.url = "ftp://user:secret@host/path?token=1";
  settings.unsigned_values = true;
  EXPECT_EQ(remote(settings)->look(kIdentity).kind, Kind::failed);
  ASSERT_EQ(warnings().size(), 1U);
  EXPECT_THAT(warnings()[0], HasSubstr("ftp://host/path"));
  EXPECT_THAT(warnings()[0], ::testing::Not(HasSubstr("secret")));
  EXPECT_THAT(warnings()[0], ::testing::Not(HasSubstr("token")));
}

TEST(ShownUrl, HasNoSecrets) {
  EXPECT_EQ(shown_url("redis://host:6379/0"), "redis://host:6379/0");
  EXPECT_EQ(shown_url("redis://:pass@host"), "redis://host");
  EXPECT_EQ(shown_url("https://a:b@c@host/p/q?x=y#z"), "https://host/p/q");
  EXPECT_EQ(shown_url("s3://bucket/prefix?region=x&endpoint=http://h"), "s3://bucket/prefix");
  for (const char* const secret :
       {"s3://bucket/prefix?endpoint=http://u:secret@h", "user:secret@host", "redis://user:se#secret@host",
        "redis://:a?secret@host/0", "redis://:a/secret@host"})
    EXPECT_THAT(shown_url(secret), ::testing::Not(HasSubstr("secret"))) << secret;
}

// ---- One verdict for a node ----

class BreakerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Breaker> process() {
    return std::make_unique<Breaker>("redis://host", directory_.path(), make_posix_file_system(), false,
                                     kLimits);
  }
  static constexpr Breaker::Limits kLimits{.pause = 600ms};
  TempDirectory directory_;
};

TEST_F(BreakerTest, OneProcessFailsAndAllKnow) {
  const auto first = process(), second = process(), third = process();
  EXPECT_TRUE(first->lets_through());
  EXPECT_TRUE(second->lets_through());
  EXPECT_TRUE(first->failed());
  EXPECT_FALSE(first->lets_through());
  EXPECT_FALSE(second->lets_through());
  EXPECT_FALSE(third->lets_through());
  EXPECT_FALSE(process()->lets_through());
}

TEST_F(BreakerTest, AfterThePauseOneProcessAsks) {
  std::vector<std::unique_ptr<Breaker>> processes;
  for (int i = 0; i < 8; ++i) processes.push_back(process());
  ASSERT_TRUE(processes[0]->lets_through());
  processes[0]->failed();
  for (const auto& one : processes) EXPECT_FALSE(one->lets_through());
  std::this_thread::sleep_for(630ms);
  std::atomic<int> asked = 0;
  std::atomic<Breaker*> who = nullptr;
  std::vector<std::thread> threads;
  for (const auto& one : processes)
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        if (one->lets_through()) ++asked, who = one.get();
      });
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(asked, 1);
  who.load()->succeeded(1ms);
  std::this_thread::sleep_for(50ms);  // the others look again soon
  for (const auto& one : processes) EXPECT_TRUE(one->lets_through());
}

TEST_F(BreakerTest, AFailedProbeIsAnotherPause) {
  const auto one = process();
  ASSERT_TRUE(one->lets_through());
  one->failed();
  std::this_thread::sleep_for(630ms);
  ASSERT_TRUE(one->lets_through());
  EXPECT_FALSE(one->failed());
  EXPECT_FALSE(one->lets_through());
  EXPECT_FALSE(process()->lets_through());
}

TEST_F(BreakerTest, WithoutADirectoryAProcessJudgesAlone) {
  const auto alone = [&] { return Breaker("x", "", make_posix_file_system(), false, kLimits); };
  Breaker first = alone(), second = alone();
  ASSERT_TRUE(first.lets_through());
  first.failed();
  EXPECT_FALSE(first.lets_through());
  EXPECT_TRUE(second.lets_through());
  EXPECT_EQ(first.path(), "");
}

TEST_F(BreakerTest, ADirectoryThatCannotBeWrittenIsAsNone) {
  Breaker breaker("x", "/proc/no/such", make_posix_file_system(), false, kLimits);
  ASSERT_TRUE(breaker.lets_through());
  breaker.failed();
  EXPECT_FALSE(breaker.lets_through());
  std::this_thread::sleep_for(630ms);
  EXPECT_TRUE(breaker.lets_through());
  breaker.succeeded(1ms);
  EXPECT_TRUE(breaker.lets_through());
}

// ---- Values ----

TEST(Values, AnUnsignedValueIsTheFile) {
  EXPECT_EQ(seal("file", nullptr), "file");
  EXPECT_EQ(unseal("file").entry_file, "file");
  EXPECT_EQ(unseal("file").signature, "");
  EXPECT_EQ(unseal("normjit-signed 1\nkey: A\nsignature: B\n\nrest").entry_file, "rest");
  EXPECT_EQ(unseal("normjit-signed 1\nkey: A\nsignature: B\n\nrest").signature, "B");
  const std::string cut = "normjit-signed 1\nkey: A\nsignature: B\n";
  EXPECT_EQ(unseal(cut).entry_file, cut);
}

}  // namespace
}  // namespace normjit::testing
