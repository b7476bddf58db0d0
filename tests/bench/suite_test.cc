// SPDX-License-Identifier: Apache-2.0
// The cases of the suite and the speed that each should reach.
#include "bench/suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "cli/measure.h"

namespace normjit::bench {

using namespace cli;

namespace {

using testing::HasSubstr;

Regime regime_of(const char* spec, std::int64_t rows) { return suite_regime(parse_spec(spec).value(), rows); }

std::string target_text(const char* spec, std::int64_t rows) {
  return to_text(target_of(parse_spec(spec).value(), rows));
}

TEST(Suite, TheMostSpecificRegimeCounts) {
  EXPECT_EQ(regime_of("layernorm/cols=4194304/f32/wb", 16), Regime::reference);
  EXPECT_EQ(regime_of("layernorm/cols=4194304/f32/wb", 15), Regime::few);
  EXPECT_EQ(regime_of("layernorm/cols=4194304/f16/wb", 16), Regime::few);
  EXPECT_EQ(regime_of("layernorm/cols=64/f32/wb/gelu", 4194304), Regime::reference);
  EXPECT_EQ(regime_of("layernorm/cols=64/f32/wb/gelu", 4194303), Regime::activation);
  EXPECT_EQ(regime_of("layernorm/cols=4096/f16/scale=2", 1), Regime::activation);
  EXPECT_EQ(regime_of("rmsnorm/cols=4096/f16/w", 1), Regime::fused);
  EXPECT_EQ(regime_of("layernorm/cols=4194304/f32/add/wb", 16), Regime::fused);
  EXPECT_EQ(regime_of("layernorm/cols=64/f32/inb/wb/gelu", 100), Regime::fused);
  EXPECT_EQ(regime_of("layernorm/cols=64/f32/w1", 100), Regime::fused);
  EXPECT_EQ(regime_of("layernorm/cols=64/f32/wb:rows", 100), Regime::fused);
  EXPECT_EQ(regime_of("layernorm/cols=64/f32/wb/stats", 100), Regime::ordinary);
  EXPECT_EQ(regime_of("layernorm/cols=4097/f16", 256), Regime::decode);
  EXPECT_EQ(regime_of("layernorm/cols=4097/f16", 257), Regime::odd);
  EXPECT_EQ(regime_of("layernorm/cols=4096/f32", 1), Regime::ordinary);
  EXPECT_EQ(regime_of("layernorm/cols=100003/f32", 131), Regime::few);
  EXPECT_EQ(regime_of("layernorm/cols=100003/f32", 132), Regime::odd);
  EXPECT_EQ(regime_of("layernorm/cols=65532/f32", 1), Regime::longer);
  EXPECT_EQ(regime_of("layernorm/cols=16384/f32", 1000), Regime::ordinary);
  EXPECT_EQ(regime_of("layernorm/cols=16388/f32", 1000), Regime::longer);
  EXPECT_EQ(regime_of("layernorm/cols=16/f16", 1000), Regime::ordinary);
  EXPECT_EQ(regime_of("layernorm/cols=8/f16", 1000), Regime::narrow);
  EXPECT_EQ(regime_of("layernorm/cols=20/f32/out=f16", 1000), Regime::odd) << "a row of y has 40 bytes";
}

TEST(Suite, TargetsFollowRegimeAndBytes) {
  EXPECT_EQ(target_text("layernorm/cols=4194304/f32/wb", 16), "<= 150 us");
  EXPECT_EQ(target_text("layernorm/cols=4194304/bf16/wb", 16), "<= 80 us");
  EXPECT_EQ(target_text("layernorm/cols=64/f32/wb/gelu", 4194304), "<= 522 us");
  EXPECT_EQ(target_text("layernorm/cols=1000/f32", 8001), ">= 0.96 of copy");
  EXPECT_EQ(target_text("layernorm/cols=1000/f32", 8000), ">= 0.90 of copy")
      << "64 MB are not more than 64 MB";
  EXPECT_EQ(target_text("layernorm/cols=1000/f32", 1000), ">= 0.90 of copy");
  EXPECT_EQ(target_text("layernorm/cols=1000/f32", 999), "none");
  EXPECT_EQ(target_text("layernorm/cols=32000/f32", 1001), ">= 0.93 of copy");
  EXPECT_EQ(target_text("layernorm/cols=32000/f32", 1000), ">= 0.90 of copy");
  EXPECT_EQ(target_text("layernorm/cols=32000/f32", 250), "none");
  EXPECT_EQ(target_text("layernorm/cols=1048576/f32", 132), ">= 0.93 of copy");
  EXPECT_EQ(target_text("layernorm/cols=1048580/f32", 132), "none");
  EXPECT_EQ(target_text("layernorm/cols=1001/f32", 8000), ">= 0.90 of copy");
  EXPECT_EQ(target_text("layernorm/cols=1001/f32", 7000), "none");
  EXPECT_EQ(target_text("layernorm/cols=5900000/f32", 2), ">= 0.85 of copy");
  EXPECT_EQ(target_text("layernorm/cols=6000000/f32", 2), ">= 0.95 of two reads");
  EXPECT_EQ(target_text("layernorm/cols=11700000/bf16", 2), ">= 0.85 of copy");
  EXPECT_EQ(target_text("layernorm/cols=65536/f32", 100), "none");
  EXPECT_EQ(target_text("layernorm/cols=4096/f16/wb", 1), "<= 1.7 us");
  EXPECT_EQ(target_text("layernorm/cols=16384/f16/wb", 1), "<= 2.2 us");
  EXPECT_EQ(target_text("layernorm/cols=16384/bf16/wb", 1), "<= fastest peer");
  EXPECT_EQ(target_text("layernorm/cols=1000/f32/gelu", 10000), "<= 1.03 of plain");
  EXPECT_EQ(target_text("layernorm/cols=1000/f16/gelu", 20000), "<= 1.10 of plain");
  EXPECT_EQ(target_text("layernorm/cols=1000/f64/gelu", 10000), "none");
  EXPECT_EQ(target_text("layernorm/cols=1000/f32/gelu", 100), "none");
  EXPECT_EQ(target_text("rmsnorm/cols=4096/bf16/add/sum/w", 8192), ">= 0.96 of copy");
  EXPECT_EQ(target_text("rmsnorm/cols=4096/bf16/add/sum/w", 1), "<= fastest peer");
  EXPECT_EQ(target_text("rmsnorm/cols=4096/f16/w", 1), "<= fastest peer");
  EXPECT_EQ(target_text("rmsnorm/cols=4097/bf16/add/sum/w", 8192), ">= 0.90 of copy");
  EXPECT_EQ(target_text("layernorm/cols=65536/f32/add/wb", 2048), ">= 0.93 of copy");
  EXPECT_EQ(target_text("layernorm/cols=4194304/f32/add/wb", 16), ">= 0.85 of copy");
}

TEST(Suite, EveryRegimeHasFixedCasesWithATarget) {
  std::set<Regime> found;
  std::vector<SuiteCase> cases = fixed_cases();
  for (const SuiteCase& one : fused_cases(1))
    if (!one.drawn) cases.push_back(one);
  for (const SuiteCase& one : channels_first_cases()) cases.push_back(one);
  for (const SuiteCase& one : quantized_cases(1))
    if (!one.drawn) cases.push_back(one);
  for (const SuiteCase& one : cases) {
    EXPECT_FALSE(one.drawn);
    if (one.target().kind != Target::Kind::none) found.insert(one.regime());
  }
  std::set<Regime> all(std::begin(kRegimes), std::end(kRegimes));
  all.erase(Regime::narrow);
  EXPECT_EQ(found, all);
}

TEST(Suite, EveryDtypeHasFixedCasesOfTheGreatRegimes) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    std::set<Regime> found;
    for (const SuiteCase& one : fixed_cases())
      if (one.spec.input == dtype) found.insert(one.regime());
    for (const Regime regime :
         {Regime::ordinary, Regime::longer, Regime::odd, Regime::few, Regime::activation})
      EXPECT_TRUE(found.contains(regime)) << name(dtype) << " " << name(regime);
  }
}

TEST(Suite, NoFixedCaseIsThereTwice) {
  std::set<std::string> seen;
  for (const SuiteCase& one : fixed_cases())
    EXPECT_TRUE(seen.insert(to_text(one.spec) + " " + std::to_string(one.rows)).second) << to_text(one.spec);
}

TEST(Suite, CasesWithAnActivationHaveTheirPlainOnes) {
  const std::vector<SuiteCase> cases = fixed_cases();
  for (const SuiteCase& active : cases) {
    if (active.regime() != Regime::activation) continue;
    EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), [&](const SuiteCase& other) {
      return other.rows == active.rows && other.spec == plain(active.spec);
    })) << to_text(active.spec);
  }
}

TEST(Suite, OneRegimeBringsThePlainCasesThatItIsComparedWith) {
  std::set<Regime> found;
  for (const SuiteCase& one : only(Regime::activation, fixed_cases())) found.insert(one.regime());
  EXPECT_TRUE(found.contains(Regime::activation));
  EXPECT_TRUE(found.contains(Regime::ordinary));
  EXPECT_FALSE(found.contains(Regime::decode));
  for (const SuiteCase& one : only(Regime::decode, fixed_cases())) EXPECT_EQ(one.regime(), Regime::decode);
}

TEST(Suite, ASeedDrawsTheSameCasesAndAnotherOneOthers) {
  const auto texts = [](std::uint64_t seed, int count) {
    std::vector<std::string> found;
    for (const SuiteCase& one : random_cases(seed, count))
      found.push_back(to_text(one.spec) + " " + std::to_string(one.rows));
    return found;
  };
  EXPECT_EQ(texts(1, 40), texts(1, 40));
  EXPECT_NE(texts(1, 40), texts(2, 40));
  EXPECT_EQ(texts(1, 40).size(), 40u);
  // On every machine: a suite that is repeated elsewhere is the same suite.
  EXPECT_EQ(texts(1, 2), (std::vector<std::string>{"layernorm/cols=39/f32/eps=1e-05/wb 153419",
                                                   "layernorm/cols=936/bf16/eps=1e-05/wb 44647"}));
}

TEST(Suite, RandomCasesAreValidAndInRange) {
  std::set<DType> dtypes;
  int whole = 0;
  std::int64_t narrowest = 1 << 20, widest = 0;
  constexpr int kCount = 2000;
  for (const SuiteCase& one : random_cases(7, kCount)) {
    const std::string text = to_text(one.spec) + " " + std::to_string(one.rows);
    EXPECT_TRUE(validate(one.spec)) << text;
    EXPECT_TRUE(one.drawn);
    EXPECT_GE(one.spec.columns, 16) << text;
    EXPECT_LE(one.spec.columns, 1 << 20) << text;
    EXPECT_GE(one.rows, 1) << text;
    // A row more or less may miss the bounds, by a quarter where rows are as wide as the least that is moved.
    EXPECT_GE(bytes_moved(one.spec, one.rows), 6'000'000) << text;
    EXPECT_LE(bytes_moved(one.spec, one.rows), 525'000'000) << text;
    dtypes.insert(one.spec.input);
    whole += one.spec.columns * size_of(one.spec.input) % 16 == 0;
    narrowest = std::min(narrowest, one.spec.columns);
    widest = std::max(widest, one.spec.columns);
  }
  EXPECT_EQ(dtypes.size(), 4u);
  EXPECT_GT(whole, kCount * 2 / 5);
  EXPECT_LT(whole, kCount * 3 / 5);
  EXPECT_LT(narrowest, 32);
  EXPECT_GT(widest, 1 << 19);
}

TEST(Suite, FusedCasesAreLargeOrDecode) {
  std::set<std::string> seen;
  int drawn = 0, overlap = 0, odd = 0;
  const std::vector<SuiteCase> cases = fused_cases(3);
  for (const SuiteCase& one : cases) {
    const std::string text = to_text(one.spec) + " " + std::to_string(one.rows);
    EXPECT_TRUE(validate(one.spec)) << text;
    EXPECT_EQ(one.regime(), Regime::fused) << text;
    EXPECT_NE(one.target().kind, Target::Kind::none) << text;
    const std::string use =
        concat({text, one.use.overlap ? " overlap" : "", one.use.sample > 1 ? " samples of " : "",
                one.use.sample > 1 ? shortest(one.use.sample) : ""});
    EXPECT_TRUE(seen.insert(use).second) << use << " is there twice";
    EXPECT_EQ(one.rows % one.use.sample, 0) << use;
    if (one.target().kind != Target::Kind::of_peers) {
      EXPECT_GT(bytes_moved(one.spec, one.rows, one.use.sample), 50'000'000) << text;
    }
    if (one.use.overlap) {
      EXPECT_LE(one.rows, 256) << text;
      EXPECT_TRUE(seen.contains(text)) << text << " has no case without overlap";
    }
    if (one.drawn) {
      EXPECT_EQ(one.spec.columns % 8, 0) << text;
    }
    drawn += one.drawn;
    overlap += one.use.overlap;
    odd += one.spec.columns % 8 != 0;
  }
  EXPECT_EQ(drawn, 4 * 3 * 6) << "six widths of four norms in three types";
  EXPECT_EQ(overlap, 4 * 4);
  EXPECT_EQ(odd, 4 * 2 * 3);

  std::set<std::int64_t> widths, others;
  for (const SuiteCase& one : cases)
    if (one.drawn) widths.insert(one.spec.columns);
  for (const SuiteCase& one : fused_cases(4))
    if (one.drawn) others.insert(one.spec.columns);
  EXPECT_EQ(widths.size(), 6u);
  EXPECT_NE(widths, others);
}

TEST(Suite, QuantizedCasesAreLargeOrDecode) {
  std::set<std::string> seen;
  std::set<Quantization> quantizations;
  int decode = 0;
  for (const SuiteCase& one : quantized_cases(3)) {
    const std::string text = to_text(one.spec) + " " + std::to_string(one.rows);
    EXPECT_TRUE(validate(one.spec)) << text;
    EXPECT_EQ(one.regime(), Regime::quantized) << text;
    if (!one.drawn) {
      EXPECT_TRUE(seen.insert(text).second) << text << " is there twice";
    }
    EXPECT_EQ(one.target().kind == Target::Kind::none, one.rows <= 256) << text;
    decode += one.rows <= 256;
    quantizations.insert(one.spec.quantization);
  }
  EXPECT_EQ(decode % 4, 0);
  EXPECT_GE(quantizations.size(), 5u);
  EXPECT_EQ(target_text("rmsnorm/cols=4096/bf16/out=e4m3/w/q=row", 8192), ">= 0.95 of copy");
  EXPECT_EQ(target_text("rmsnorm/cols=4096/bf16/out=e4m3/w/q=32:e8m0", 8192), ">= 0.85 of copy");
}

TEST(Suite, ChannelsFirstHaveWholePlanes) {
  const std::vector<SuiteCase> cases = channels_first_cases();
  EXPECT_EQ(cases.size(), 10u);
  for (const SuiteCase& one : cases) {
    EXPECT_EQ(one.regime(), Regime::channels_first);
    ASSERT_GT(one.use.plane, 0);
    EXPECT_EQ(one.rows % one.use.plane, 0);
  }
}

TEST(Suite, RegimesReadBack) {
  for (const Regime regime : kRegimes) EXPECT_EQ(parse_regime(name(regime)).value(), regime);
  const auto wrong = parse_regime("wide");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, Code::BadArgument);
  EXPECT_THAT(wrong.error().message, HasSubstr("'wide'"));
  EXPECT_THAT(wrong.error().message, HasSubstr("decode"));
}

}  // namespace
}  // namespace normjit::bench
