// SPDX-License-Identifier: Apache-2.0
// What somebody who can write a store, and cannot sign, may put there: none of it is believed.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>

#include "normjit/remote/remote.h"
#include "normjit/remote/value.h"
#include "tests/support/fake_store.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_seed.h"

namespace normjit::testing {
namespace {

using Kind = Remote::Answer::Kind;

class Poison : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string error = sodium_error(); !error.empty()) GTEST_SKIP() << "Skipped: " << error;
    key_ = std::make_unique<SecretKey>(SecretKey::generate().value());
    other_ = std::make_unique<SecretKey>(SecretKey::generate().value());
    Remote::Settings settings;
    settings.store = store_.remote();
    settings.trust = {key_->public_key().text()};
    reader_ = std::make_unique<Remote>(settings, make_posix_file_system(), [](std::string_view) {});
  }

  static std::string identity(int i) { return "source=" + std::to_string(i) + " arch=sm_90 options=-O3"; }
  static Entry entry(int i) {
    return {identity(i), {{"code", "cubin"}}, "code of " + std::to_string(i) + std::string(200, '\0')};
  }
  static std::string key_of(int i) { return value_key(entry_id(identity(i))); }

  FakeStore store_;
  std::unique_ptr<SecretKey> key_, other_;
  std::unique_ptr<Remote> reader_;
};

TEST_F(Poison, WhatIsSignedIsFound) {
  store_.set(key_of(1), seal(encode(entry(1)), key_.get()));
  const auto answer = reader_->look(identity(1));
  EXPECT_EQ(answer.kind, Kind::entry) << answer.why;
  EXPECT_EQ(answer.entry, entry(1));
}

TEST_F(Poison, TenThousandValuesAndNoneIsBelieved) {
  constexpr int kEntries = 20, kRounds = 10'000;
  std::vector<std::string> good;
  for (int i = 0; i < kEntries; ++i) good.push_back(seal(encode(entry(i)), key_.get()));
  std::mt19937_64 random(test_seed());
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  std::map<std::string, int> told;
  for (int round = 0; round < kRounds; ++round) {
    const auto i = static_cast<int>(below(kEntries));
    std::string value = good[static_cast<std::size_t>(i)];
    switch (round % 8) {
      case 0:
        value[below(value.size())] ^= static_cast<char>(1 << below(8));
        break;  // one bit
      case 1:
        value.resize(below(value.size()));
        break;  // cut
      case 2:
        value = good[(static_cast<std::size_t>(i) + 1 + below(kEntries - 1)) % kEntries];
        break;  // replayed
      case 3:
        value = encode(entry(i));
        break;  // unsigned
      case 4:
        value = seal(encode(entry(i)), other_.get());
        break;   // by somebody
      case 5: {  // the signature of one value before another
        const std::string other = good[(static_cast<std::size_t>(i) + 1) % kEntries];
        value = value.substr(0, value.find("\n\n") + 2) + other.substr(other.find("\n\n") + 2);
        break;
      }
      case 6:
        value += std::string(1 + below(40), 'x');
        break;  // longer
      case 7:   // anything
        for (char& c : value)
          if (below(50) == 0) c = static_cast<char>(random());
        break;
    }
    if (value == good[static_cast<std::size_t>(i)]) continue;
    store_.set(key_of(i), value);
    const auto answer = reader_->look(identity(i));
    // The line "key: ..." is for people, and not signed.
    if (answer.kind == Kind::entry) {
      EXPECT_EQ(unseal(value).entry_file, unseal(good[static_cast<std::size_t>(i)]).entry_file);
      EXPECT_EQ(unseal(value).signature, unseal(good[static_cast<std::size_t>(i)]).signature);
      continue;
    }
    ASSERT_EQ(answer.kind, Kind::untrusted);
    ++told[answer.why];
  }
  // Each kind is told apart.
  EXPECT_GT(told["unsigned"], kRounds / 10);
  EXPECT_GT(told["signed by a key that is not trusted"], kRounds / 10);
  EXPECT_GT(told["another entry than its key says"], kRounds / 10);
  EXPECT_GT(told["wrong signature"], kRounds / 10);
}

}  // namespace
}  // namespace normjit::testing
