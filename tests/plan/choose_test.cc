// What every plan of the planner must be, whatever its rules are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "normjit/plan.h"
#include "tests/support/random_spec.h"

namespace normjit {
namespace {

constexpr std::uint64_t kSpecs = 3'000;

template <class Check>
void for_random_specs(std::uint64_t count, Check check) {
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const LayerNormSpec spec = canonical(random_spec(random));
    SCOPED_TRACE(to_text(spec));
    check(spec, random);
    if (testing::Test::HasFailure()) return;  // one example is enough
  }
}

bool contains(const std::vector<Plan>& plans, const Plan& plan) {
  return std::find(plans.begin(), plans.end(), plan) != plans.end();
}

TEST(Choose, EveryPlanIsLegal) {
  for_random_specs(kSpecs, [](const LayerNormSpec& spec, Random&) {
    for (const DeviceProfile& device : DeviceProfile::known())
      for (const RowsRegime regime : kRowsRegimes)
        for (const Alignment alignment : kAlignments) {
          const auto legal = check(choose(spec, device, regime, alignment), spec, device);
          ASSERT_TRUE(legal.ok()) << legal.error().message;
        }
  });
}

// Divides the columns, needs no more than the alignment class promises, and no access is wider than 16 bytes
// of the wider of input and output; and it is the widest such.
TEST(Choose, TheVectorIsTheWidestThatFits) {
  for_random_specs(kSpecs, [](const LayerNormSpec& spec, Random&) {
    for (const DeviceProfile& device : DeviceProfile::known())
      for (const RowsRegime regime : kRowsRegimes)
        for (const Alignment alignment : kAlignments) {
          int widest = 1;
          for (const int vector : {2, 4, 8})
            if (spec.columns % vector == 0 && vector <= static_cast<int>(alignment) &&
                vector * size_of(spec.input) <= 16 && vector * size_of(spec.output) <= 16)
              widest = vector;
          ASSERT_EQ(choose(spec, device, regime, alignment).vector, widest);
        }
  });
}

TEST(Choose, ThePlansAreAClosedSetWithoutRepetition) {
  for_random_specs(kSpecs, [](const LayerNormSpec& spec, Random&) {
    for (const DeviceProfile& device : DeviceProfile::known()) {
      const std::vector<Plan> all = plans(spec, device);
      std::size_t reached = 0;
      for (std::size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(std::count(all.begin(), all.end(), all[i]), 1) << to_text(all[i]);
        bool chosen = false;
        for (const RowsRegime regime : kRowsRegimes)
          for (const Alignment alignment : kAlignments)
            chosen |= choose(spec, device, regime, alignment) == all[i];
        reached += chosen;
      }
      ASSERT_EQ(reached, all.size()) << "a plan that no launch can ask for";
      for (const RowsRegime regime : kRowsRegimes)
        for (const Alignment alignment : kAlignments)
          ASSERT_TRUE(contains(all, choose(spec, device, regime, alignment)));
    }
  });
}

// A tensor of a launch: base address and the distance of its rows, in bytes.
struct Tensor {
  DType dtype;
  std::uint64_t address = 0, stride = 0;
};

// Aligned for its elements, as the launch demands, and often no better.
Tensor random_tensor(Random& random, DType dtype, std::int64_t columns) {
  const auto size = static_cast<std::uint64_t>(size_of(dtype));
  const auto elements = [&](int bits) { return random.below(std::uint64_t{1} << bits) << random.below(6); };
  const std::uint64_t dense = static_cast<std::uint64_t>(columns);
  const std::uint64_t stride = random.coin() ? dense : random.coin() ? dense + elements(8) : elements(40);
  return {dtype, elements(34) * size, stride * size};
}

// After a prebuild nothing can miss: whatever the rows, pointers and strides, the launch asks for a plan of
// the closed set; and that plan's accesses are aligned in every row.
TEST(Choose, EveryLaunchFindsItsPlanAmongThePrebuiltOnes) {
  for_random_specs(kSpecs, [](const LayerNormSpec& spec, Random& random) {
    for (const DeviceProfile& device : DeviceProfile::known()) {
      const std::vector<Plan> all = plans(spec, device);
      for (int launch = 0; launch < 8; ++launch) {
        const std::int64_t rows = random_columns(random, std::int64_t{1} << 40);
        std::vector<Tensor> tensors = {random_tensor(random, spec.input, spec.columns),
                                       random_tensor(random, spec.output, spec.columns)};
        for (int i = 0; i < static_cast<int>(spec.affine); ++i) {
          tensors.push_back(random_tensor(random, spec.weight, spec.columns));
          tensors.back().stride = 0;
        }
        Alignment alignment = Alignment::eight;
        for (const Tensor& tensor : tensors)
          alignment = std::min(alignment, alignment_of(tensor.address | tensor.stride, tensor.dtype));
        ASSERT_GE(alignment, Alignment::one);

        const Plan plan = choose(spec, device, regime_of(rows, device), alignment);
        ASSERT_TRUE(contains(all, plan)) << to_text(plan);
        for (const Tensor& tensor : tensors) {
          const auto access = static_cast<std::uint64_t>(std::min(16, plan.vector * size_of(tensor.dtype)));
          for (const std::uint64_t row : {0, 1, 2, 3, 1001})
            ASSERT_EQ((tensor.address + row * tensor.stride) % access, 0u) << to_text(plan);
        }
      }
    }
  });
}

// So a prebuild for sm_90 serves every GPU of it, whatever its size.
TEST(Choose, DependsOnTheArchitectureNotOnTheSizeOfTheGpu) {
  for_random_specs(1'000, [](const LayerNormSpec& spec, Random& random) {
    for (const DeviceProfile& device : DeviceProfile::known()) {
      DeviceProfile other = device;
      other.sm_count = static_cast<int>(random.between(1, 500));
      other.l2_bytes = random.between(1, 1 << 28);
      for (const RowsRegime regime : kRowsRegimes)
        for (const Alignment alignment : kAlignments)
          ASSERT_EQ(choose(spec, other, regime, alignment), choose(spec, device, regime, alignment));
    }
  });
}

TEST(Choose, IgnoresWhatDoesNotShapeTheKernel) {
  for_random_specs(1'000, [](const LayerNormSpec& spec, Random& random) {
    LayerNormSpec other = spec;
    other.epsilon = 0.25;
    other.scale = -3;
    if (spec.affine == Affine::none) other.weight = DType::f64;
    const DeviceProfile& device = DeviceProfile::known()[random.below(DeviceProfile::known().size())];
    EXPECT_EQ(plans(other, device), plans(spec, device));
  });
}

TEST(Choose, TheReferenceWorkloadsGetTheStrategiesMadeForThem) {
  const DeviceProfile h200 = DeviceProfile::of({.number = 90}).value();
  const LayerNormSpec gigantic{.columns = 4194304, .affine = Affine::weight_bias};
  const LayerNormSpec short_rows{
      .columns = 64, .affine = Affine::weight_bias, .activation = Activation::gelu};
  EXPECT_EQ(choose(gigantic, h200, RowsRegime::few, Alignment::eight).strategy, Strategy::two_reads);
  EXPECT_EQ(choose(short_rows, h200, RowsRegime::many, Alignment::eight).strategy, Strategy::packed_rows);
  EXPECT_EQ(choose({.columns = 4096}, h200, RowsRegime::many, Alignment::eight).strategy,
            Strategy::resident_row);
}

// A longer row never goes back to a strategy for shorter rows.
TEST(Choose, StrategiesFollowEachOtherAsRowsGrow) {
  const DeviceProfile device = DeviceProfile::of({.number = 90}).value();
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64})
    for (const RowsRegime regime : kRowsRegimes)
      for (const Alignment alignment : kAlignments) {
        std::array<bool, 3> seen{};
        Strategy last = Strategy::packed_rows;
        for (std::int64_t columns = 8; columns < (1 << 20); columns += 8 * (1 + columns / 512)) {
          const Plan plan = choose({.columns = columns, .input = dtype}, device, regime, alignment);
          ASSERT_GE(plan.strategy, last) << to_text(plan) << " at " << columns << " columns";
          last = plan.strategy;
          seen[static_cast<std::size_t>(last)] = true;
        }
        EXPECT_THAT(seen, testing::Each(true)) << "a strategy that no length reaches";
      }
}

}  // namespace
}  // namespace normjit
