// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/kernel_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <memory>
#include <set>
#include <thread>
#include <type_traits>
#include <vector>

#include "normjit/service/prepared.h"
#include "tests/support/child.h"

namespace normjit::testing {
namespace {

Use use(int number) { return {.spec = canonical({.columns = 1 + number}), .device = 0}; }

// A kernel that says for which use it was made, and which one for it in turn.
Kernel kernel(int number, int version = 0) {
  Plan plan;
  plan.threads = 32;
  plan.threads_per_row = plan.vector = plan.per_thread = 1;
  return Kernel(std::make_shared<const Kernel::Prepared>(use(number).spec, plan, DeviceProfile{}, version,
                                                         /*driver=*/nullptr));
}
int number_of(const KernelTable::Record& record) {
  return static_cast<int>(record.kernel.spec().columns) - 1;
}
int version_of(const KernelTable::Record& record) { return record.kernel.prepared().device; }

UseKey key(int number) { return UseKey(use(number)); }

TEST(KernelTable, FindsWhatWasPutThereAndNothingElse) {
  KernelTable table;
  constexpr int kUses = 10'000;
  for (int i = 0; i < kUses; ++i) {
    EXPECT_EQ(table.find(key(i)), nullptr);
    EXPECT_EQ(number_of(table.insert(key(i), kernel(i))), i);
  }
  for (int i = 0; i < kUses; ++i) {
    const KernelTable::Record* found = table.find(key(i));
    ASSERT_NE(found, nullptr) << i;
    EXPECT_EQ(number_of(*found), i);
  }
  EXPECT_EQ(table.find(key(kUses)), nullptr);
}

TEST(KernelTable, TheFirstStaysUntilItIsReplaced) {
  KernelTable table;
  const KernelTable::Record& first = table.insert(key(1), kernel(1, 1));
  EXPECT_EQ(&table.insert(key(1), kernel(1, 2)), &first);
  EXPECT_EQ(table.find(key(1)), &first);
  const KernelTable::Record& second = table.replace(key(1), kernel(1, 3));
  EXPECT_EQ(table.find(key(1)), &second);
  EXPECT_EQ(version_of(second), 3);
  EXPECT_EQ(version_of(first), 1) << "a reader may be launching it";
  EXPECT_EQ(version_of(table.replace(key(2), kernel(2, 4))), 4) << "also where there was none";
}

TEST(KernelTable, KernelsLiveAsLongAsTheTable) {
  std::weak_ptr<const Kernel::Prepared> old, unwanted;
  const auto watched = [](std::weak_ptr<const Kernel::Prepared>& by) {
    auto prepared = std::make_shared<const Kernel::Prepared>(use(1).spec, Plan{.threads_per_row = 1},
                                                             DeviceProfile{}, 0, /*driver=*/nullptr);
    by = prepared;
    return Kernel(std::move(prepared));
  };
  {
    KernelTable table;
    table.insert(key(1), watched(old));
    table.insert(key(1), watched(unwanted));
    table.replace(key(1), kernel(1));
    EXPECT_TRUE(unwanted.expired());
    EXPECT_FALSE(old.expired());
  }
  EXPECT_TRUE(old.expired());
}

TEST(KernelTable, EveryFactOfAUseCounts) {
  Use base{.spec = {.columns = 64, .affine = Affine::weight_bias}, .device = 1};
  std::vector<Use> uses = {base};
  const auto other = [&](auto change) {
    uses.push_back(base);
    change(uses.back());
  };
  other([](Use& u) { u.spec.norm = Norm::rms; });
  other([](Use& u) { u.spec.columns = 65; });
  other([](Use& u) { u.spec.columns = 0x7fffffff; });
  other([](Use& u) { u.spec.residual = Residual::before; });
  other([](Use& u) { u.spec.sum = true; });
  for (const DType dtype : {DType::f16, DType::bf16, DType::f64}) {
    other([&](Use& u) { u.spec.input = dtype; });
    other([&](Use& u) { u.spec.output = dtype; });
    other([&](Use& u) { u.spec.weight = dtype; });
  }
  other([](Use& u) { u.spec.epsilon = 1e-6; });
  other([](Use& u) { u.spec.affine = Affine::weight; });
  for (const Activation activation :
       {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu})
    other([&](Use& u) { u.spec.activation = activation; });
  other([](Use& u) { u.spec.scale = -1; });
  other([](Use& u) { u.spec.statistics = true; });
  other([](Use& u) { u.device = 2; });
  other([](Use& u) { u.device = 0x101; });
  other([](Use& u) { u.device = 0xffff; });
  other([](Use& u) { u.regime = RowsRegime::few; });
  other([](Use& u) { u.regime = RowsRegime::lone; });
  for (const Alignment alignment : {Alignment::two, Alignment::four, Alignment::eight})
    other([&](Use& u) { u.alignment = alignment; });
  other([](Use& u) { u.workspace = true; });
  std::set<std::uint64_t> hashes;
  for (const Use& a : uses) {
    hashes.insert(UseKey(a).hash());
    for (const Use& b : uses) EXPECT_EQ(UseKey(a) == UseKey(b), &a == &b);
  }
  EXPECT_EQ(hashes.size(), uses.size());
}

// Each field alone, at each bit of its place: a change of one changes the key, and no two changes make one
// key.
TEST(UseKey, EveryBitOfEveryFieldChangesTheKey) {
  const Use base{.spec = {.columns = 0, .epsilon = 0, .scale = 0}, .device = 0};
  std::vector<UseKey> keys = {UseKey(base)};
  each_field([&](const auto& field) {
    using Value = typename std::decay_t<decltype(field)>::Value;
    for (int bit = 0; bit < field.bits(); ++bit) {
      Use use = base;
      const auto flipped = word_of(use.spec.*field.member) ^ (std::uint64_t{1} << bit);
      if constexpr (std::is_same_v<Value, double>)
        use.spec.*field.member = std::bit_cast<double>(flipped);
      else
        use.spec.*field.member = static_cast<Value>(flipped);
      keys.push_back(UseKey(use));
    }
  });
  for (int bit = 0; bit < 16; ++bit) keys.push_back(UseKey({base.spec, 1 << bit}));
  for (std::size_t a = 0; a < keys.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) EXPECT_FALSE(keys[a] == keys[b]) << a << " and " << b;
  EXPECT_GT(UseKey::kBitsLeft, 0);
}

// Two writers insert and replace while the table grows; what a reader has seen never goes back.
TEST(KernelTable, ReadersSeeWholeRecordsWhileWritersAreAtWork) {
  constexpr int kUses = 2000, kVersions = 3;
  KernelTable table;
  std::atomic<int> writers = 2, wrong = 0, found_early = 0;
  std::vector<std::thread> threads;
  for (int writer = 0; writer < 2; ++writer)
    threads.emplace_back([&, writer] {
      for (int i = writer; i < kUses; i += 2) {
        while (i > kUses / 2 && found_early == 0) std::this_thread::yield();  // for a reader to be there
        for (int version = 0; version < kVersions; ++version)
          if (version_of(table.replace(key(i), kernel(i, version))) != version) ++wrong;
        if (number_of(table.insert(key(i ^ 1), kernel(i ^ 1))) != (i ^ 1)) ++wrong;  // the other's
      }
      --writers;
    });
  for (int reader = 0; reader < 4; ++reader)
    threads.emplace_back([&] {
      std::vector<int> seen(kUses, -1);
      for (bool last = false; !last;) {
        last = writers == 0;
        for (int i = 0; i < kUses; ++i) {
          const KernelTable::Record* record = table.find(key(i));
          const int version = record == nullptr ? -1 : version_of(*record);
          if (record != nullptr && number_of(*record) != i) ++wrong;
          if (version < seen[i] || (last && version != kVersions - 1)) ++wrong;
          found_early += !last && version >= 0;
          seen[i] = version;
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(KernelTable, AForkFindsItWhole) {
  NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
  KernelTable table;
  std::atomic<int> inserted = 0;
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    while (!stop) {
      for (int i = inserted, end = i + 8; i < end; inserted = ++i) table.insert(key(i), kernel(i));
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  constexpr int kChildren = 100;
  const int done = done_children(kChildren, 4, [&](int) {
    const int there = inserted;
    for (int i = 0; i < there; ++i)
      if (const auto* record = table.find(key(i)); record == nullptr || number_of(*record) != i) return false;
    for (int i = there; i < there + 200; ++i)
      if (number_of(table.insert(key(i), kernel(i))) != i || table.find(key(i)) == nullptr) return false;
    return true;
  });
  stop = true;
  writer.join();
  EXPECT_EQ(done, kChildren);
  EXPECT_GT(inserted, 100) << "or the table did not grow meanwhile";
}

}  // namespace
}  // namespace normjit::testing
