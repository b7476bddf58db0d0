// SPDX-License-Identifier: Apache-2.0
// Properties of the planner that hold for every spec whatever the costs are, and the choices that matter
// most.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "normjit/plan.h"
#include "tests/support/plan_checks.h"
#include "tests/support/random_spec.h"

namespace normjit {
namespace {

DeviceProfile profile(int arch) { return DeviceProfile::of({.number = arch}).value(); }

NormSpec any_spec(Random& random) { return canonical(random_spec(random)); }

bool contains(const std::vector<Plan>& plans, const Plan& plan) {
  return std::find(plans.begin(), plans.end(), plan) != plans.end();
}

// The most elements that 16 bytes hold of the wider of input and output.
int widest_vector(const NormSpec& spec) { return 16 / std::max(size_of(spec.input), size_of(spec.output)); }

int access_bytes(const Plan& plan, const NormSpec& spec) {
  return plan.vector * std::max(size_of(spec.input), size_of(spec.output));
}

TEST(Candidates, AreLegalRankedAndExplained) {
  for_random_uses(
      2'000, any_spec,
      [](const NormSpec& spec, const DeviceProfile& device, RowsRegime regime, Alignment alignment) {
        const std::vector<Candidate> all = candidates(spec, device, regime, alignment);
        ASSERT_FALSE(all.empty());
        for (std::size_t i = 0; i < all.size(); ++i) {
          const auto legal = check(all[i].plan, spec, device);
          ASSERT_TRUE(legal.ok()) << legal.error().message;
          ASSERT_TRUE(std::isfinite(all[i].cost)) << to_text(all[i].plan);
          ASSERT_GT(all[i].cost, 0) << to_text(all[i].plan);
          ASSERT_FALSE(all[i].why.empty()) << to_text(all[i].plan);
          if (i > 0) {
            ASSERT_LE(all[i - 1].cost, all[i].cost);
          }
          for (std::size_t j = 0; j < i; ++j) ASSERT_NE(all[j].plan, all[i].plan) << to_text(all[i].plan);
        }
        ASSERT_EQ(choose(spec, device, regime, alignment), all.front().plan);
      });
}

// Whose bits must not depend on the place of a row do without sums that begin where the row's address says.
TEST(Candidates, OfBatchInvariantUsesAddInOneOrder) {
  int realigned = 0;
  for_random_uses(100, any_spec,
                  [&](const NormSpec& spec, const DeviceProfile& device, RowsRegime, Alignment alignment) {
                    // Rows of f64 pass unaligned through a ring also where they begin with a vector.
                    const bool with_vectors = static_cast<int>(alignment) * size_of(spec.input) >= 16;
                    const auto depends_on_place = [&](const Candidate& one) {
                      return one.plan.unaligned &&
                             !(with_vectors && one.plan.strategy == Strategy::persistent_row);
                    };
                    const RowsRegime many = RowsRegime::many;
                    const std::vector<Candidate> invariant = candidates(spec, device, many, alignment, true);
                    ASSERT_TRUE(std::ranges::none_of(invariant, depends_on_place));
                    ASSERT_EQ(choose(spec, device, many, alignment, true), invariant.front().plan);
                    ASSERT_FALSE(fallback(spec, device, many, alignment, true).unaligned);
                    realigned +=
                        std::ranges::any_of(candidates(spec, device, many, alignment), depends_on_place);
                  });
  EXPECT_GT(realigned, 0);
}

// Aligned plans keep to the alignment of the tensors; accesses of unaligned plans have the full width.
TEST(Candidates, NoAccessIsWiderThanTheTensorsAllow) {
  for_random_uses(
      1'000, any_spec,
      [](const NormSpec& spec, const DeviceProfile& device, RowsRegime regime, Alignment alignment) {
        for (const Candidate& candidate : candidates(spec, device, regime, alignment)) {
          const Plan& plan = candidate.plan;
          if (plan.strategy == Strategy::persistent_row && plan.unaligned) {
            ASSERT_EQ(plan.vector * size_of(spec.input), 16) << to_text(plan);
          } else if (plan.unaligned) {
            ASSERT_EQ(access_bytes(plan, spec), 16) << to_text(plan);
          } else {
            ASSERT_LE(plan.vector, static_cast<int>(alignment)) << to_text(plan);
            ASSERT_EQ(spec.columns % plan.vector, 0) << to_text(plan);
          }
        }
      });
}

// persistent_row alone may: it reads wider vectors of x where x is narrower than y.
TEST(Candidates, AlignedRowsAreNotUnaligned) {
  for_random_uses(
      1'000, any_spec,
      [](NormSpec spec, const DeviceProfile& device, RowsRegime regime, Alignment alignment) {
        const int widest = widest_vector(spec);
        if (static_cast<int>(alignment) < widest) return;
        spec.columns = std::max<std::int64_t>(widest, spec.columns / widest * widest);
        for (const Candidate& candidate : candidates(spec, device, regime, alignment))
          ASSERT_TRUE(!candidate.plan.unaligned || candidate.plan.strategy == Strategy::persistent_row)
              << to_text(candidate.plan);
      });
}

TEST(Candidates, TheGenericKernelIsOfferedWhereNoOtherServes) {
  const NormSpec spec = parse_spec("rmsnorm/cols=4096/bf16/out=e4m3/w/q=128").value();
  for (const Alignment alignment : kAlignments)
    for (const Candidate& candidate : candidates(spec, h200(), RowsRegime::many, alignment))
      EXPECT_EQ(candidate.plan.strategy == Strategy::generic, alignment < Alignment::four)
          << to_text(candidate.plan);
}

TEST(Fallback, NeedsNoBlocksThatRunTogether) {
  for_random_uses(
      2'000, any_spec,
      [](const NormSpec& spec, const DeviceProfile& device, RowsRegime regime, Alignment alignment) {
        const Plan plan = fallback(spec, device, regime, alignment);
        ASSERT_EQ(plan.strategy, Strategy::split_row);
        ASSERT_EQ(plan.exchange, Exchange::none);
        const auto legal = check(plan, spec, device);
        ASSERT_TRUE(legal.ok()) << legal.error().message;
      });
}

TEST(Plans, AreWhatChooseAndFallbackReturnWithoutRepetition) {
  for_random_specs(1'000, any_spec, [](const NormSpec& spec, const DeviceProfile& device, Random&) {
    const std::vector<Plan> all = plans(spec, device);
    std::vector<Plan> wanted;
    for (const RowsRegime regime : kRowsRegimes)
      for (const Alignment alignment : kAlignments) {
        wanted.push_back(choose(spec, device, regime, alignment));
        if (wanted.back().exchange != Exchange::none)
          wanted.push_back(fallback(spec, device, regime, alignment));
      }
    std::vector<Plan> invariant;
    for (const Alignment alignment : kAlignments) {
      const RowsRegime many = RowsRegime::many;
      invariant.push_back(choose(spec, device, many, alignment, true));
      if (invariant.back().exchange != Exchange::none)
        invariant.push_back(fallback(spec, device, many, alignment, true));
    }
    for (const Plan& plan : plans(spec, device, {.batch_invariant = true}))
      ASSERT_TRUE(contains(invariant, plan)) << to_text(plan);
    wanted.insert(wanted.end(), invariant.begin(), invariant.end());
    for (const Plan& plan : wanted) ASSERT_TRUE(contains(all, plan)) << "missing: " << to_text(plan);
    for (const Plan& plan : all) {
      const auto legal = check(plan, spec, device);
      ASSERT_TRUE(legal.ok()) << legal.error().message;
      ASSERT_EQ(std::count(all.begin(), all.end(), plan), 1) << to_text(plan);
      ASSERT_TRUE(contains(wanted, plan)) << "a plan that no launch can ask for: " << to_text(plan);
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

// After a prebuild nothing can miss: whatever the rows, pointers and strides are, the launch needs a plan of
// the closed set. The accesses of that plan are aligned in every row, unless the plan is for unaligned rows.
TEST(Plans, EveryLaunchFindsItsOwn) {
  for_random_specs(1'000, any_spec, [](const NormSpec& spec, const DeviceProfile& device, Random& random) {
    const std::vector<Plan> all = plans(spec, device);
    for (int launch = 0; launch < 16; ++launch) {
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
      if (plan.unaligned) continue;
      for (const Tensor& tensor : tensors) {
        const auto access = static_cast<std::uint64_t>(std::min(16, plan.vector * size_of(tensor.dtype)));
        for (const std::uint64_t row : {0, 1, 2, 3, 1001})
          ASSERT_EQ((tensor.address + row * tensor.stride) % access, 0u) << to_text(plan);
      }
    }
  });
}

// So a prebuild for sm_90 serves every GPU of it, whatever its size.
TEST(Choose, DependsOnTheArchitectureNotOnTheSizeOfTheGpu) {
  for_random_specs(1'000, any_spec, expect_no_influence_of_size);
}

TEST(Choose, IgnoresWhatDoesNotShapeTheKernel) {
  for_random_specs(1'000, any_spec, [](const NormSpec& spec, const DeviceProfile& device, Random&) {
    NormSpec other = spec;
    other.epsilon = 0.25;
    other.scale = -3;
    if (spec.affine == Affine::none) other.weight = DType::f64;
    EXPECT_EQ(plans(canonical(other), device), plans(spec, device));
  });
}

// ---- The choices that matter most ----

TEST(Choose, GiganticRowsStreamThroughTheWholeDeviceWhereTheHardwareCan) {
  const NormSpec spec{.columns = 4194304, .affine = Affine::weight_bias};
  const Plan h200 = choose(spec, profile(90), regime_of(16, profile(90)), Alignment::eight);
  EXPECT_EQ(h200.strategy, Strategy::persistent_row) << to_text(h200);
  EXPECT_EQ(h200.exchange, Exchange::grid) << to_text(h200);
  EXPECT_GE(grid_blocks(h200, spec, profile(90), 16), profile(90).sm_count / 2) << to_text(h200);
  for (const int arch : {75, 80, 86, 87, 88, 89}) {
    const Plan older = choose(spec, profile(arch), regime_of(16, profile(arch)), Alignment::eight);
    EXPECT_NE(older.strategy, Strategy::persistent_row) << arch;
    EXPECT_TRUE(check(older, spec, profile(arch)).ok()) << arch;
  }
}

// Their sum takes no more room in the ring than x alone.
TEST(Choose, GiganticRowsAndTheirResidualAreReadOnce) {
  for (const Norm norm : {Norm::layer, Norm::rms})
    for (const DType residual : {DType::f32, DType::f16})
      for (const bool sum : {false, true}) {
        const NormSpec spec = canonical({.norm = norm,
                                         .columns = 4194304,
                                         .residual_type = residual,
                                         .residual = Residual::before,
                                         .sum = sum,
                                         .affine = Affine::weight});
        for (const int arch : {90, 100}) {
          const Plan plan = choose(spec, profile(arch), RowsRegime::few, Alignment::eight);
          EXPECT_EQ(plan.strategy, Strategy::persistent_row) << to_text(spec) << ": " << to_text(plan);
          EXPECT_EQ(plan.blocks_per_row, 128) << to_text(plan);
        }
      }
}

TEST(Choose, RowsThatFitNowhereOnTheChipAreReadTwice) {
  for (const DeviceProfile& device : DeviceProfile::known())
    for (const DType dtype : {DType::f16, DType::f32, DType::f64})
      for (const RowsRegime regime : kRowsRegimes)
        for (const Alignment alignment : kAlignments) {
          NormSpec spec{.columns = std::int64_t{1} << 30, .input = dtype};
          const auto expect_split = [&] {
            const Plan plan = choose(canonical(spec), device, regime, alignment);
            ASSERT_EQ(plan.strategy, Strategy::split_row) << to_text(plan) << " on " << device.text();
          };
          expect_split();
          if (dtype == DType::f64) continue;
          spec.output = DType::s8;
          spec.quantization = Quantization::row;
          expect_split();
        }
}

TEST(Choose, ShortRowsShareWarps) {
  const NormSpec spec{.columns = 64, .affine = Affine::weight_bias, .activation = Activation::gelu};
  for (const DeviceProfile& device : DeviceProfile::known())
    EXPECT_EQ(choose(spec, device, RowsRegime::many, Alignment::eight).strategy, Strategy::warp_rows)
        << device.text();
}

TEST(Choose, ALoneRowIsSharedByBlocksOnceThatIsFaster) {
  const auto blocks = [](std::int64_t columns) {
    const NormSpec spec = canonical({.columns = columns, .input = DType::f16, .affine = Affine::weight_bias});
    const Plan plan = choose(spec, profile(90), regime_of(1, profile(90)), Alignment::eight);
    return grid_blocks(plan, spec, profile(90), 1);
  };
  EXPECT_EQ(blocks(2048), 1);
  EXPECT_GT(blocks(16384), 1);
}

// A row that is far too long for a warp is never left to one.
TEST(Choose, LongRowsGetManyThreads) {
  for_random_uses(1'000, any_spec,
                  [](NormSpec spec, const DeviceProfile& device, RowsRegime regime, Alignment alignment) {
                    spec.columns = spec.columns % 100'000 + 65'536;
                    EXPECT_GT(choose(spec, device, regime, alignment).threads_per_row, 32);
                  });
}

}  // namespace
}  // namespace normjit
