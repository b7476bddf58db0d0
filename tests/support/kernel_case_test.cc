// SPDX-License-Identifier: Apache-2.0
#include "tests/support/kernel_case.h"

#include <gtest/gtest.h>

#include <set>

#include "normjit/spec/fields.h"
#include "normjit/spec/tables.h"

namespace normjit::testing {
namespace {

constexpr std::uint64_t kCases = 3000;

TEST(KernelCase, ALineHoldsAllOfIt) {
  for (std::uint64_t seed = 0; seed < kCases; ++seed) {
    const KernelCase c = random_case(seed);
    const std::string line = to_text(c);
    EXPECT_EQ(line.find_first_of("'\"\n"), line.npos) << line;  // can be pasted between quotes
    const auto back = case_from_text(line);
    ASSERT_TRUE(back) << line;
    EXPECT_EQ(*back, c) << line << "\n" << to_text(*back);
  }
}

TEST(KernelCase, FieldsOfALineHaveDefaultsAndAnyOrder) {
  const auto c = case_from_text(
      "layernorm/cols=64/f32 warp_rows sms=3 rows=7 arch=sm_80 threads=32 threads_per_row=8 vector=4 "
      "per_thread=2");
  ASSERT_TRUE(c);
  EXPECT_EQ(c->spec, (NormSpec{.columns = 64}));
  EXPECT_EQ(c->plan, (Plan{Strategy::warp_rows, 32, 8, 4, 2}));
  EXPECT_EQ(c->device.arch, Arch{80});
  EXPECT_EQ(c->device.sm_count, 3);
  EXPECT_EQ(c->rows, 7);
  EXPECT_EQ(c->runs, 1);
  EXPECT_TRUE(legal(*c));
}

TEST(KernelCase, WhatIsNoLineIsRefused) {
  for (const char* text :
       {"", "layernorm/cols=64/f32", "layernorm/cols=0/f32 warp_rows", "layernorm/cols=64/f32 other_rows",
        "layernorm/cols=64/f32 warp_rows rows", "layernorm/cols=64/f32 warp_rows rows=x",
        "layernorm/cols=64/f32 warp_rows arch=sm_1", "layernorm/cols=64/f32 warp_rows nothing=1",
        "layernorm/cols=64/f32 warp_rows inputs=odd", "layernorm/cols=64/f32 warp_rows guard=both",
        "layernorm/cols=64/f32 warp_rows in_place=2",
        "layernorm/cols=64/f32/add/sum warp_rows sum_in_place=2",
        "layernorm/cols=64/f32 warp_rows overlaps=2", "layernorm/cols=64/f32 warp_rows exchange=all"})
    EXPECT_FALSE(case_from_text(text)) << text;
}

TEST(KernelCase, RandomCasesAreLegalAndRepeat) {
  for (std::uint64_t seed = 0; seed < kCases; ++seed) {
    EXPECT_TRUE(legal(random_case(seed))) << to_text(random_case(seed));
    EXPECT_EQ(random_case(seed), random_case(seed)) << seed;
  }
}

TEST(KernelCase, AStrategyCanBeForced) {
  for (std::uint64_t seed = 0; seed < 300; ++seed)
    for (const Strategy strategy : kAllStrategies)
      EXPECT_EQ(random_case(seed, strategy).plan.strategy, strategy) << seed;
}

// What the kernels have branches for comes up, and not only once in a while.
TEST(KernelCase, RandomCasesReachEverything) {
  int clusters = 0, teams = 0, unaligned = 0, overlaps = 0, by_choice = 0, wraps = 0, short_last_group = 0,
      partial_chunk = 0, repeated_rows = 0, fewer_blocks = 0, in_place = 0, one_row = 0, huge = 0, rms = 0,
      residuals = 0, one_residual = 0, rounded_results = 0;
  std::set<std::pair<Strategy, InputKind>> inputs;
  std::set<std::pair<Strategy, Activation>> activations;
  std::set<std::tuple<Strategy, DType, DType>> dtypes;
  std::set<std::pair<Strategy, Quantization>> quantizations;
  for (std::uint64_t seed = 0; seed < kCases; ++seed) {
    const KernelCase c = random_case(seed);
    const bool cut = c.plan.strategy == Strategy::split_row;
    inputs.emplace(c.plan.strategy, c.inputs);
    if (!c.spec.backward) activations.emplace(c.plan.strategy, c.spec.activation);
    dtypes.emplace(c.plan.strategy, c.spec.input, c.spec.output);
    for (const Plan& plan : plans(c.spec, c.device))
      if (plan == c.plan) {
        ++by_choice;
        break;
      }
    wraps += cut && c.rows > 64;
    short_last_group += cut && c.plan.group_rows > 4 && c.rows % c.plan.group_rows != 0;
    partial_chunk +=
        cut && c.spec.columns > columns_per_block(c.plan) && c.spec.columns % columns_per_block(c.plan) != 0;
    repeated_rows += c.rows % rows_per_block(c.plan) != 0;
    fewer_blocks += c.blocks > 0 && c.blocks < grid_blocks(c.plan, c.spec, c.device, c.rows);
    in_place += c.in_place;
    quantizations.emplace(c.plan.strategy, c.spec.quantization);
    rounded_results += rounds_y(c.spec);
    rms += c.spec.norm == Norm::rms;
    residuals += c.spec.residual != Residual::none;
    one_residual += c.stride_of(Operand::residual) == 0;
    clusters += c.plan.exchange == Exchange::cluster;
    teams += c.plan.exchange == Exchange::grid;
    unaligned += c.plan.unaligned;
    overlaps += c.overlaps;
    one_row += c.stride_of(Operand::x) == 0;
    huge += c.spec.columns > 16'000;
  }
  const int all = static_cast<int>(kCases);
  EXPECT_GT(by_choice, all / 4);
  EXPECT_GT(wraps, all / 100);
  EXPECT_GT(short_last_group, all / 100);
  EXPECT_GT(partial_chunk, all / 100);
  EXPECT_GT(repeated_rows, all / 10);
  EXPECT_GT(fewer_blocks, all / 20);
  EXPECT_GT(in_place, all / 50);
  EXPECT_GT(clusters, all / 100);
  EXPECT_GT(teams, all / 50);
  EXPECT_GT(unaligned, all / 30);
  EXPECT_GT(overlaps, all / 50);
  EXPECT_GT(one_row, 5);
  EXPECT_GT(huge, all / 100);
  EXPECT_GT(rms, all / 10);
  EXPECT_GT(residuals, all / 10);
  EXPECT_GT(one_residual, 5);
  constexpr std::size_t kStrategies = std::size(kAllStrategies), kOfGradients = 3,
                        kForward = kStrategies - kOfGradients;
  EXPECT_EQ(inputs.size(), kStrategies * std::size(kInputKinds));
  EXPECT_EQ(activations.size(), kForward * 5) << "and those of gradients, below";
  // Of 8 bits are outputs alone, none from f64 and none of gradients.
  EXPECT_GT(dtypes.size(), (kForward * (4 * 4 + 3 * 3) + kOfGradients * 4 * 4) * 7 / 8);
  EXPECT_GE(quantizations.size(), kForward * 2 + 4 + kOfGradients)
      << "not every strategy finds the scale of a row";
  EXPECT_GT(rounded_results, all / 100);
}

// Scales of blocks, second results, the largest result and bounds, on the strategies that have them.
TEST(KernelCase, RandomCasesReachEveryResult) {
  constexpr Strategy kWithMore[] = {Strategy::warp_rows, Strategy::block_row, Strategy::generic};
  std::set<std::tuple<Strategy, Quantization, ScaleFormat, ScaleLayout>> blocks;
  std::set<std::pair<Strategy, Quantization>> sizes;
  std::set<std::pair<Strategy, ScaleFormat>> formats;
  std::set<std::pair<Strategy, ScaleLayout>> layouts;
  std::set<std::pair<Strategy, Also>> alsos;
  std::set<std::tuple<Strategy, Exchange, bool>> largest;
  std::set<std::pair<Strategy, Exchange>> shared_blocks, bounds;
  for (std::uint64_t seed = 0; seed < 4 * kCases; ++seed)
    for (const Strategy strategy : kWithMore) {
      const KernelCase c = random_case(seed, strategy);
      const NormSpec& spec = c.spec;
      alsos.emplace(strategy, spec.also);
      if (spec.amax) largest.emplace(strategy, c.plan.exchange, is_narrow(spec.output));
      if (spec.upper_bound) bounds.emplace(strategy, c.plan.exchange);
      if (!scales_blocks(spec)) continue;
      shared_blocks.emplace(strategy, c.plan.exchange);
      blocks.emplace(strategy, spec.quantization, spec.scale_format, spec.scale_layout);
      sizes.emplace(strategy, spec.quantization);
      formats.emplace(strategy, spec.scale_format);
      layouts.emplace(strategy, spec.scale_layout);
    }
  constexpr std::size_t kStrategies = std::size(kWithMore), kExchanges = kStrategies + 2;
  // Of 16 columns 7 formats and layouts go together, of 32 only 4, of 64 and 128 8 each.
  EXPECT_GT(blocks.size(), kStrategies * (7 + 4 + 8 + 8) * 2 / 3);
  EXPECT_EQ(sizes.size(), kStrategies * 4);
  EXPECT_EQ(formats.size(), kStrategies * std::size(kScaleFormats));
  EXPECT_EQ(layouts.size(), kStrategies * std::size(kScaleLayouts));
  EXPECT_EQ(alsos.size(), kStrategies * std::size(kAlsos));
  EXPECT_EQ(shared_blocks.size(), kExchanges);
  EXPECT_EQ(largest.size(), kExchanges * 2);
  EXPECT_EQ(bounds.size(), kExchanges);
}

// Gradients of every kind, on each strategy: with and without blocks that meet, rows that begin anywhere in
// memory, rows that not all blocks or batches are full of.
TEST(KernelCase, RandomCasesReachEveryGradient) {
  std::set<std::tuple<Strategy, Norm, Affine, bool>> specs;
  std::set<std::tuple<Strategy, Exchange, Affine>> exchanges;
  std::set<std::pair<Strategy, Activation>> activations;
  std::set<std::tuple<Strategy, Gate, GateFunction>> gates;
  std::set<std::pair<Strategy, Need>> needs;
  std::set<std::pair<Strategy, bool>> gates_in_place, offsets, in_place, grouped, dy_gaps, other_gradients,
      part_of_a_round, rounds, several_chunks;
  std::set<std::pair<Strategy, Norm>> chosen;
  int in_warps = 0, whole_blocks = 0, all = 0;
  for (std::uint64_t seed = 0; seed < kCases; ++seed) {
    if (const KernelCase c = random_case(seed); c.spec.backward) {
      ++all;
      for (const Plan& plan : plans(c.spec, c.device))
        if (plan == c.plan) chosen.emplace(c.plan.strategy, c.spec.norm);
    }
    for (const Strategy strategy :
         {Strategy::gradient_rows, Strategy::gradient_ring, Strategy::gradient_columns}) {
      const KernelCase c = random_case(seed, strategy);
      ASSERT_TRUE(c.spec.backward) << to_text(c);
      const bool by_rows = strategy == Strategy::gradient_rows;
      const std::int64_t round = strategy == Strategy::gradient_columns
                                     ? c.plan.group_rows
                                     : blocks_of(c) / c.plan.blocks_per_row * rows_per_block(c.plan);
      specs.emplace(strategy, c.spec.norm, c.spec.affine, c.spec.dsum);
      exchanges.emplace(strategy, c.plan.exchange, c.spec.affine);
      activations.emplace(strategy, c.spec.activation);
      gates.emplace(strategy, c.spec.gate, c.spec.gate_function);
      needs.emplace(strategy, c.spec.need);
      if (row_of(Operand::dgate).present(c.spec)) gates_in_place.emplace(strategy, c.sum_in_place);
      offsets.emplace(strategy, c.spec.weight_offset);
      in_place.emplace(strategy, c.in_place);
      grouped.emplace(strategy, c.group > 1);
      dy_gaps.emplace(strategy, c.stride_of(Operand::dy) != c.spec.columns);
      other_gradients.emplace(strategy, c.spec.gradient_type != c.spec.input);
      part_of_a_round.emplace(strategy, c.rows % round != 0);
      rounds.emplace(strategy, c.rows > round);
      several_chunks.emplace(strategy, c.spec.columns > columns_per_block(c.plan));
      if (by_rows) ++(c.plan.threads_per_row < c.plan.threads ? in_warps : whole_blocks);
    }
  }
  const int cases = static_cast<int>(kCases);
  EXPECT_EQ(specs.size(), 3u * 2 * 3 * 2);
  EXPECT_EQ(exchanges.size(), (3u * 2 + 1) * 3) << "and clusters of gradient_ring";
  for (const auto* pairs : {&gates_in_place, &offsets, &in_place, &grouped, &dy_gaps, &other_gradients,
                            &part_of_a_round, &rounds})
    EXPECT_EQ(pairs->size(), 3u * 2);
  EXPECT_EQ(activations.size(), 3u * 5);
  EXPECT_EQ(gates.size(), 3u * (1 + 2 * 4));
  EXPECT_EQ(needs.size(), 3u * 7);
  EXPECT_EQ(several_chunks.size(), 5u) << "gradient_rows has whole rows";
  EXPECT_GE(chosen.size(), 2u * 2) << "what choose() says, too; gradient_ring for long rows alone";
  EXPECT_GT(in_warps, cases / 5);
  EXPECT_GT(whole_blocks, cases / 5);
  EXPECT_GT(all, cases / 10);
}

// Gradients have a row at least, and gaps only of the operands that there are.
TEST(KernelCase, WhatGradientsDoNotHaveIsIllegal) {
  const auto c = case_from_text(
      "layernorm_bwd/cols=64/f32/eps=1e-05/w gradient_rows sms=3 rows=7 arch=sm_80 threads=32 "
      "threads_per_row=8 vector=4 per_thread=2");
  ASSERT_TRUE(c);
  ASSERT_TRUE(legal(*c));
  const auto legal_with = [&](auto change) {
    KernelCase other = *c;
    change(other);
    return legal(other);
  };
  EXPECT_FALSE(legal_with([](KernelCase& to) { to.rows = 0; }));
  EXPECT_TRUE(legal_with([](KernelCase& to) { to.scale_gap = 4; })) << "of dy";
  EXPECT_FALSE(legal_with([](KernelCase& to) { to.scale_gap = 2; })) << "no whole vector";
  EXPECT_FALSE(legal_with([](KernelCase& to) { to.residual_gap = 4; })) << "of dsum";
  EXPECT_TRUE(legal_with([](KernelCase& to) {
    to.residual_gap = 4;
    to.spec.dsum = true;
  }));
  EXPECT_TRUE(legal_with([](KernelCase& to) { to.scale_gap = -64; })) << "all rows of dy are one";
  EXPECT_FALSE(legal_with([](KernelCase& to) {
    to.scale_gap = -64;
    to.inputs = InputKind::nan_row;
  })) << "that would be every row";
  EXPECT_TRUE(legal_with([](KernelCase& to) { to.in_place = true; }));
  EXPECT_FALSE(legal_with([](KernelCase& to) {
    to.in_place = true;
    to.scale_gap = -64;
  })) << "dx would be one row";
  EXPECT_FALSE(legal_with([](KernelCase& to) {
    to.in_place = true;
    to.spec.output = DType::bf16;
  }));
  EXPECT_FALSE(legal_with([](KernelCase& to) {
    to.in_place = true;
    to.spec.need = Need::dweight;
  })) << "there is no dx";
  EXPECT_FALSE(legal_with([](KernelCase& to) { to.shift_gap = 4; })) << "of dgate";
  EXPECT_FALSE(legal_with([](KernelCase& to) { to.sum_in_place = true; })) << "there is no dgate";
  const auto gated_with = [&](auto change) {
    return legal_with([&](KernelCase& to) {
      to.spec.gate = Gate::before;
      change(to);
    });
  };
  EXPECT_TRUE(gated_with([](KernelCase& to) { to.gate_gap = to.shift_gap = 4; }));
  EXPECT_TRUE(gated_with([](KernelCase& to) { to.gate_gap = -64; })) << "all rows of the gate are one";
  EXPECT_TRUE(gated_with([](KernelCase& to) { to.sum_in_place = true; }));
  EXPECT_FALSE(gated_with([](KernelCase& to) {
    to.sum_in_place = true;
    to.gate_gap = -64;
  })) << "dgate would be one row";
  EXPECT_FALSE(gated_with([](KernelCase& to) {
    to.sum_in_place = true;
    to.shift_gap = 4;
  })) << "its rows are the gate's";
}

// Of warp_rows, and of block_row with each exchange: y and the sum in place, each alone, both and none.
TEST(KernelCase, RandomSumsAreInPlaceOrNot) {
  std::set<std::tuple<Strategy, Exchange, bool, bool>> sums;
  for (std::uint64_t seed = 0; seed < kCases; ++seed)
    for (const Strategy strategy : {Strategy::warp_rows, Strategy::block_row})
      if (const KernelCase c = random_case(seed, strategy); c.spec.sum)
        sums.emplace(c.plan.strategy, c.plan.exchange, c.in_place, c.sum_in_place);
  EXPECT_EQ(sums.size(), (1 + 3) * 2 * 2);
}

}  // namespace
}  // namespace normjit::testing
