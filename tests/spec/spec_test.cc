// SPDX-License-Identifier: Apache-2.0
#include "normjit/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/spec/fields.h"
#include "normjit/spec/operands.h"
#include "normjit/spec/valid.h"
#include "tests/support/random_spec.h"

namespace normjit {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kMost = 2147483647;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Result<std::int64_t> columns(const std::vector<std::int64_t>& shape) { return columns_of(shape); }

// ---- columns_of ----

TEST(ColumnsOf, IsTheProductOfTheDimensions) {
  EXPECT_EQ(columns({1}).value(), 1);
  EXPECT_EQ(columns({768}).value(), 768);
  EXPECT_EQ(columns({64, 256, 256}).value(), 4194304);
  EXPECT_EQ(columns({1, 1, 1, 1, 1, 1, 1, 7}).value(), 7);
  EXPECT_EQ(columns({2, 3, 5, 7, 11, 13, 17, 19}).value(), 9699690);
}

TEST(ColumnsOf, TakesOneToEightDimensions) {
  EXPECT_EQ(columns({}).code(), Code::BadRank);
  EXPECT_THAT(columns({}).error().message, HasSubstr("0 dimensions"));
  EXPECT_EQ(columns(std::vector<std::int64_t>(8, 1)).value(), 1);
  const auto nine = columns(std::vector<std::int64_t>(9, 1));
  EXPECT_EQ(nine.code(), Code::BadRank);
  EXPECT_THAT(nine.error().message, HasSubstr("9 dimensions; 1 to 8"));
}

TEST(ColumnsOf, RefusesDimensionsBelowOneAndNamesThem) {
  for (const std::int64_t size :
       {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    for (const auto& shape :
         {std::vector<std::int64_t>{size}, {size, 4}, {4, size}, {kMost, kMost, size}, {-5, size, 3}}) {
      const auto refused = columns(shape);
      ASSERT_EQ(refused.code(), Code::BadDimension);
      EXPECT_THAT(refused.error().message, HasSubstr(std::to_string(shape[0] < 1 ? shape[0] : size)));
    }
  }
}

TEST(ColumnsOf, ReachesExactlyTwoToThe31MinusOne) {
  EXPECT_EQ(columns({kMost}).value(), kMost);
  EXPECT_EQ(columns({1, kMost, 1}).value(), kMost);  // a prime: no other factors
  EXPECT_EQ(columns({2, 1073741823}).value(), kMost - 1);
  EXPECT_EQ(columns({2, 3, 357913941}).value(), kMost - 1);
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{
           {kMost + 1}, {2, 1073741824}, {1073741824, 2}, {65536, 32768}, {46341, 46341}, {kMost, 2}})
    EXPECT_EQ(columns(shape).code(), Code::TooManyColumns);
}

TEST(ColumnsOf, SeesThroughOverflowOf64Bits) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{
           {std::int64_t{1} << 40, std::int64_t{1} << 40},  // 2^80, which is 0 in 64 bits
           {std::int64_t{1} << 32, std::int64_t{1} << 32},  // 2^64, likewise
           {4294967296, 4294967297},                        // 2^32 in 64 bits
           {6700417, 641, 4294967297},                      // 2^64 + ..., small in 64 bits
           {kMax, kMax},                                    // 1 in 64 bits
           {kMax},
           {2, kMax},
           std::vector<std::int64_t>(8, kMax),
           std::vector<std::int64_t>(8, 256)})  // 2^64
    EXPECT_EQ(columns(shape).code(), Code::TooManyColumns);
}

TEST(ColumnsOf, TheMessageRepeatsTheShape) {
  EXPECT_THAT(columns({65536, 4, 65536}).error().message, HasSubstr("65536x4x65536"));
}

// ---- validate ----

TEST(Validate, AcceptsWhatTheHeaderAllows) {
  for (const NormSpec& spec :
       {NormSpec{.columns = 1}, NormSpec{.columns = kMost}, NormSpec{.columns = 64, .epsilon = 0},
        NormSpec{.columns = 64, .epsilon = -0.0},
        NormSpec{.columns = 64, .input = DType::f64, .epsilon = std::numeric_limits<double>::max()},
        NormSpec{.columns = 64, .epsilon = std::numeric_limits<double>::denorm_min()},
        NormSpec{.norm = Norm::rms, .columns = 16384},
        NormSpec{.columns = 16384, .residual = Residual::before, .sum = true},
        NormSpec{.columns = 64, .residual = Residual::before}, NormSpec{.columns = 64, .scale = 0},
        NormSpec{.columns = 64, .scale = -0.0},
        NormSpec{.columns = 64, .input = DType::f64, .scale = -std::numeric_limits<double>::max()}})
    EXPECT_TRUE(validate(spec).ok()) << validate(spec).error().message;
}

struct Mistake {
  Code code;
  std::string says;
  NormSpec spec;
};

// In the order in which validate() looks.
std::vector<Mistake> mistakes() {
  const auto broken = [](auto breaking) {
    NormSpec spec{.columns = 64};
    breaking(spec);
    return spec;
  };
  const auto quantized = [](Quantization quantization, ScaleFormat format, DType output = DType::e4m3) {
    return NormSpec{.columns = 128, .output = output, .quantization = quantization, .scale_format = format};
  };
  const auto laid = [](ScaleFormat format, ScaleLayout layout) {
    return NormSpec{.columns = 128,
                    .output = DType::e4m3,
                    .quantization = Quantization::block_128,
                    .scale_format = format,
                    .scale_layout = layout};
  };
  const auto channels_first = [](Quantization quantization, Also also, bool amax) {
    return NormSpec{.columns = 128,
                    .output = DType::e4m3,
                    .quantization = quantization,
                    .also = also,
                    .amax = amax,
                    .channels_first = true};
  };
  constexpr DType kNoDType{9};
  return {
      {Code::BadArgument, "norm is 2; it must be one of layernorm, rmsnorm",
       broken([](auto& s) { s.norm = Norm{2}; })},
      {Code::BadDimension, "0 columns", broken([](auto& s) { s.columns = 0; })},
      {Code::BadDimension, "-3 columns", broken([](auto& s) { s.columns = -3; })},
      {Code::TooManyColumns, "2147483648", broken([](auto& s) { s.columns = kMost + 1; })},
      {Code::BadDType, "input is 9; it must be one of f16, bf16, f32, f64",
       broken([](auto& s) { s.input = kNoDType; })},
      {Code::BadDType, "input is e4m3; it must be one of f16, bf16, f32, f64",
       broken([](auto& s) { s.input = s.output = DType::e4m3; })},
      {Code::BadDType, "input is e8m0; it must be one of f16, bf16, f32, f64",
       broken([](auto& s) { s.input = DType::e8m0; })},
      {Code::BadDType, "output is e8m0; it must be one of f16, bf16, f32, f64, e4m3, e5m2, s8, e2m1",
       broken([](auto& s) { s.output = DType::e8m0; })},
      {Code::BadDType, "output is 255; it must be one of f16, bf16, f32, f64, e4m3, e5m2, s8, e2m1",
       broken([](auto& s) { s.output = DType{255}; })},
      {Code::BadDType, "weight is s8; it must be one of f16, bf16, f32, f64",
       broken([](auto& s) { s.weight = DType::s8; })},
      {Code::BadDType, "weight is 9", broken([](auto& s) { s.weight = kNoDType; })},
      {Code::BadEpsilon, "-1e-05", broken([](auto& s) { s.epsilon = -1e-5; })},
      {Code::BadEpsilon, "inf", broken([](auto& s) { s.epsilon = kInfinity; })},
      {Code::BadEpsilon, "-inf", broken([](auto& s) { s.epsilon = -kInfinity; })},
      {Code::BadEpsilon, "nan", broken([](auto& s) { s.epsilon = kNan; })},
      {Code::BadArgument, "residual is 255; it must be one of none, add, addafter",
       broken([](auto& s) { s.residual = Residual{255}; })},
      {Code::BadAffine, "affine is 3; it must be one of none, w, wb",
       broken([](auto& s) { s.affine = Affine{3}; })},
      {Code::BadActivation, "activation is 5", broken([](auto& s) { s.activation = Activation{5}; })},
      {Code::BadScale, "inf", broken([](auto& s) { s.scale = kInfinity; })},
      {Code::BadScale, "-inf", broken([](auto& s) { s.scale = -kInfinity; })},
      {Code::BadScale, "nan", broken([](auto& s) { s.scale = kNan; })},
      {Code::BadArgument, "residual is 3; it must be one of none, add, addafter",
       broken([](auto& s) { s.residual = Residual{3}; })},
      {Code::BadArgument,
       "rounding is 8; it must be one of none, sum, norm, sum+norm, y, sum+y, norm+y, sum+norm+y",
       broken([](auto& s) { s.rounding = Rounding{8}; })},
      {Code::BadDType, "residual_type is e5m2", broken([](auto& s) { s.residual_type = DType::e5m2; })},
      {Code::BadDType, "modulation_type is e4m3", broken([](auto& s) { s.modulation_type = DType::e4m3; })},
      {Code::BadArgument, "quantization is 7; it must be one of none, tensor, row, 16, 32, 64, 128",
       broken([](auto& s) { s.quantization = Quantization{7}; })},
      {Code::BadArgument, "scale_format is 4; it must be one of f32, p2, e8m0, e4m3",
       broken([](auto& s) { s.scale_format = ScaleFormat{4}; })},
      {Code::BadArgument, "scale_layout is 4; it must be one of rows, cols, cols4, sw",
       broken([](auto& s) { s.scale_layout = ScaleLayout{4}; })},
      {Code::BadArgument, "also is 4; it must be one of none, f16, bf16, f32",
       broken([](auto& s) { s.also = Also{4}; })},
      {Code::BadArgument, "gate is 3; it must be one of none, gate, gateafter",
       broken([](auto& s) { s.gate = Gate{3}; })},
      {Code::BadArgument, "gate_function is 4; it must be one of none, silu, sigmoid, tanh",
       broken([](auto& s) { s.gate_function = GateFunction{4}; })},
      {Code::BadArgument, "modulation is 3; it must be one of none, mods, mod",
       broken([](auto& s) { s.modulation = Modulation{3}; })},
      {Code::BadCombination, "an output of e4m3 is rounded from f32, and this spec is computed in f64",
       broken([](auto& s) {
         s.input = DType::f64;
         s.output = DType::e4m3;
       })},
      {Code::BadCombination, "an output of s8 needs a scale", broken([](auto& s) { s.output = DType::s8; })},
      {Code::BadCombination, "an output of e2m1 needs a scale for each block of 16 or 32 columns",
       broken([](auto& s) { s.output = DType::e2m1; })},
      {Code::BadCombination, "an output of e2m1 needs a scale for each block of 16 or 32 columns",
       quantized(Quantization::block_64, ScaleFormat::e8m0, DType::e2m1)},
      {Code::BadCombination,
       "an output of e2m1 needs a scale for each block",
       {.columns = 64, .output = DType::e2m1, .quantization = Quantization::row}},
      {Code::BadCombination,
       "quantization needs an output of 8 or 4 bits, and it is f32: add one (/out=e4m3, /out=e5m2, /out=s8 "
       "or "
       "/out=e2m1), or leave the quantization out (/q=row)",
       broken([](auto& s) { s.quantization = Quantization::row; })},
      {Code::BadCombination, "rounding of y needs a quantization that follows", broken([](auto& s) {
         s.input = DType::bf16;
         s.output = DType::e5m2;
         s.rounding = Rounding::y;
       })},
      {Code::BadCombination, "channels first exclude a scale for each row", broken([](auto& s) {
         s.output = DType::s8;
         s.quantization = Quantization::row;
         s.channels_first = true;
       })},
      {Code::BadCombination,
       "quantization needs an output of 8 or 4 bits, and it is f32: add one (/out=e4m3, /out=e5m2, /out=s8 "
       "or "
       "/out=e2m1), or leave the quantization out (/q=32)",
       quantized(Quantization::block_32, ScaleFormat::e8m0, DType::f32)},
      {Code::BadCombination,
       "blocks of 64 columns do not divide rows of 96: give a scale for each row (/q=row)",
       {.columns = 96, .output = DType::e4m3, .quantization = Quantization::block_64}},
      {Code::BadCombination, "blocks of 16 columns have no scales in f32: of 16 they are e8m0 or e4m3",
       quantized(Quantization::block_16, ScaleFormat::f32)},
      {Code::BadCombination, "blocks of 16 columns have no scales in p2",
       quantized(Quantization::block_16, ScaleFormat::power_of_two)},
      {Code::BadCombination, "blocks of 32 columns have no scales in f32",
       quantized(Quantization::block_32, ScaleFormat::f32)},
      {Code::BadCombination, "blocks of 32 columns have no scales in e4m3",
       quantized(Quantization::block_32, ScaleFormat::e4m3)},
      {Code::BadCombination, "blocks of 64 columns have no scales in e4m3",
       quantized(Quantization::block_64, ScaleFormat::e4m3)},
      {Code::BadCombination, "blocks of 128 columns have no scales in e4m3",
       quantized(Quantization::block_128, ScaleFormat::e4m3)},
      {Code::BadCombination, "scales in f32 cannot be laid out as cols4: cols4 needs e8m0",
       laid(ScaleFormat::f32, ScaleLayout::packed_columns)},
      {Code::BadCombination, "scales in p2 cannot be laid out as sw",
       laid(ScaleFormat::power_of_two, ScaleLayout::swizzled)},
      {Code::BadCombination,
       "scales in e4m3 cannot be laid out as cols4",
       {.columns = 128,
        .output = DType::e4m3,
        .quantization = Quantization::block_16,
        .scale_format = ScaleFormat::e4m3,
        .scale_layout = ScaleLayout::packed_columns}},
      {Code::BadCombination,
       "an upper bound needs an output of e4m3, and it is s8: leave out the bound (:ub)",
       {.columns = 64, .output = DType::s8, .quantization = Quantization::row, .upper_bound = true}},
      {Code::BadCombination,
       "an upper bound needs an output of e4m3, and it is e5m2",
       {.columns = 64, .output = DType::e5m2, .quantization = Quantization::row, .upper_bound = true}},
      {Code::BadCombination,
       "a second result in bf16 needs a quantization of the first",
       {.columns = 64, .output = DType::e4m3, .also = Also::bf16}},
      {Code::BadCombination,
       "amax excludes a scale for each row or block",
       {.columns = 64, .output = DType::e4m3, .quantization = Quantization::row, .amax = true}},
      {Code::BadCombination,
       "amax excludes a scale for each row or block",
       {.columns = 128, .output = DType::e4m3, .quantization = Quantization::block_128, .amax = true}},
      {Code::BadCombination,
       "amax is of f32, and this spec is computed in f64",
       {.columns = 64, .input = DType::f64, .amax = true}},
      {Code::BadCombination, "channels first exclude a scale for each block: give one (/q=tensor)",
       channels_first(Quantization::block_128, Also::none, false)},
      {Code::BadCombination, "channels first exclude a second result: leave it out (/also=f16), or the order",
       channels_first(Quantization::tensor, Also::f16, false)},
      {Code::BadCombination, "channels first exclude amax: leave out amax (/amax), or the order (/cf)",
       channels_first(Quantization::tensor, Also::none, true)},
      {Code::BadCombination, "a gate behind the norm excludes an activation", broken([](auto& s) {
         s.gate = Gate::after;
         s.activation = Activation::gelu;
       })},
      {Code::BadCombination, "sum needs something that happens to x before the norm",
       broken([](auto& s) { s.sum = true; })},
      {Code::BadCombination, "sum needs something that happens to x before the norm", broken([](auto& s) {
         s.sum = true;
         s.residual = Residual::after;
       })},
      {Code::BadCombination, "rounding of the sum needs something that happens to x", broken([](auto& s) {
         s.rounding = Rounding::sum;
         s.residual = Residual::after;
       })},
      {Code::BadCombination, "rounding of the sum needs a residual type of 16 bits, and it is f32",
       broken([](auto& s) {
         s.rounding = Rounding::sum;
         s.residual = Residual::before;
         s.output = DType::f64;
       })},
      {Code::BadCombination, "rounding of the norm needs a weight or a modulation that follows",
       broken([](auto& s) { s.rounding = Rounding::norm; })},
      {Code::BadCombination, "rounding of the norm needs an input of 16 bits, and it is f32",
       broken([](auto& s) {
         s.rounding = Rounding::norm;
         s.affine = Affine::weight;
         s.output = DType::f64;
       })},
      {Code::BadCombination, "channels first exclude a weight for each row: leave out the rows (:rows)",
       broken([](auto& s) {
         s.channels_first = s.affine_rows = true;
         s.affine = Affine::weight;
       })},
      {Code::BadCombination, "channels first exclude a gate: leave out the gate (/gateafter)",
       broken([](auto& s) {
         s.channels_first = true;
         s.gate = Gate::after;
       })},
      {Code::BadCombination, "channels first exclude modulation: leave out the modulation (/mods)",
       broken([](auto& s) {
         s.channels_first = true;
         s.modulation = Modulation::scale;
       })},
  };
}

TEST(Validate, NamesEachMistake) {
  for (const Mistake& mistake : mistakes()) {
    const auto result = validate(mistake.spec);
    ASSERT_EQ(result.code(), mistake.code) << mistake.says;
    EXPECT_THAT(result.error().message, HasSubstr(mistake.says));
  }
}

// Each combination of what says how results are quantized.
template <class Visit>
void each_quantization(Visit visit) {
  for (const std::int64_t columns : {16, 64, 384})
    for (const DType input : {DType::f32, DType::f64})
      for (const DType output : {DType::bf16, DType::e4m3, DType::s8, DType::e2m1})
        for (const auto& quantization : kQuantizations)
          for (const auto& format : kScaleFormats)
            for (const auto& layout : kScaleLayouts)
              for (const auto& also : {Also::none, Also::bf16})
                for (int flags = 0; flags < 8; ++flags)
                  visit(NormSpec{.columns = columns,
                                 .input = input,
                                 .output = output,
                                 .quantization = quantization.value,
                                 .upper_bound = (flags & 1) != 0,
                                 .scale_format = format.value,
                                 .scale_layout = layout.value,
                                 .also = also,
                                 .amax = (flags & 2) != 0,
                                 .channels_first = (flags & 4) != 0});
}

TEST(Validate, EveryQuantizationIsValidOrHasAMessage) {
  int valid = 0;
  each_quantization([&](const NormSpec& spec) {
    valid += is_valid(spec);
    ASSERT_EQ(is_valid(spec), validate(spec).ok()) << to_text(spec);
    ASSERT_TRUE(validate(spec).ok() || validate(spec).code() == Code::BadCombination) << to_text(spec);
    ASSERT_EQ(is_valid(canonical(spec)), is_valid(spec)) << to_text(spec);
  });
  EXPECT_GT(valid, 1000);
}

TEST(Validate, AcceptsTheScalesOfBlocks) {
  using enum ScaleFormat;
  using enum ScaleLayout;
  const struct {
    Quantization quantization;
    ScaleFormat format;
    std::vector<ScaleLayout> layouts;
  } scales[] = {{Quantization::block_16, ScaleFormat::e8m0, {rows, columns, packed_columns, swizzled}},
                {Quantization::block_16, ScaleFormat::e4m3, {rows, columns, swizzled}},
                {Quantization::block_32, ScaleFormat::e8m0, {rows, columns, packed_columns, swizzled}},
                {Quantization::block_64, ScaleFormat::f32, {rows, columns}},
                {Quantization::block_64, ScaleFormat::power_of_two, {rows, columns}},
                {Quantization::block_64, ScaleFormat::e8m0, {rows, columns, packed_columns, swizzled}},
                {Quantization::block_128, ScaleFormat::f32, {rows, columns}},
                {Quantization::block_128, ScaleFormat::power_of_two, {rows, columns}},
                {Quantization::block_128, ScaleFormat::e8m0, {rows, columns, packed_columns, swizzled}}};
  int valid = 0, accepted = 0;
  for (const auto& each : scales)
    for (const ScaleLayout layout : each.layouts)
      for (const DType output : {DType::e4m3, DType::e5m2, DType::s8, DType::e2m1}) {
        if (output == DType::e2m1 && each.quantization > Quantization::block_32) continue;
        const NormSpec spec{.columns = 256,
                            .output = output,
                            .quantization = each.quantization,
                            .scale_format = each.format,
                            .scale_layout = layout,
                            .also = Also::f32};
        EXPECT_TRUE(validate(spec).ok()) << to_text(spec);
        EXPECT_EQ(canonical(spec), spec);
        ++accepted;
      }
  for (const auto& quantization : kQuantizations)
    for (const auto& format : kScaleFormats)
      for (const auto& layout : kScaleLayouts)
        for (const DType output : {DType::e4m3, DType::e5m2, DType::s8, DType::e2m1})
          if (quantization.value >= Quantization::block_16)
            valid += validate({.columns = 256,
                               .output = output,
                               .quantization = quantization.value,
                               .scale_format = format.value,
                               .scale_layout = layout.value})
                         .ok();
  EXPECT_EQ(valid, accepted) << "no others";
}

TEST(Validate, ReportsTheFirstOfSeveralMistakes) {
  NormSpec spec{.norm = Norm{9}, .columns = 0, .input = DType{9}, .epsilon = -1, .affine = Affine{9}};
  spec.residual = Residual{9};
  spec.sum = true;
  spec.activation = Activation{9};
  spec.scale = kNan;
  EXPECT_EQ(validate(spec).code(), Code::BadArgument);
  spec.norm = Norm::layer;
  EXPECT_EQ(validate(spec).code(), Code::BadDimension);
  spec.columns = 1;
  EXPECT_EQ(validate(spec).code(), Code::BadDType);
  spec.input = spec.output = spec.weight = spec.residual_type = spec.modulation_type = DType::f16;
  spec.gradient_type = DType::f16;
  EXPECT_EQ(validate(spec).code(), Code::BadEpsilon);
  spec.epsilon = 0;
  EXPECT_EQ(validate(spec).code(), Code::BadArgument);
  spec.residual = Residual::none;
  EXPECT_EQ(validate(spec).code(), Code::BadAffine);
  spec.affine = Affine::weight;
  EXPECT_EQ(validate(spec).code(), Code::BadActivation);
  spec.activation = Activation::relu;
  EXPECT_EQ(validate(spec).code(), Code::BadScale);
  spec.scale = 1;
  EXPECT_EQ(validate(spec).code(), Code::BadCombination);
  spec.sum = false;
  EXPECT_TRUE(validate(spec).ok());
}

TEST(Validate, RandomSpecsAreLegal) {
  for (std::uint64_t seed = 0; seed < 10'000; ++seed) {
    Random random(seed);
    const auto valid =
        validate(random_spec(random, {.channels_first = true, .every_norm = true, .backward = true}));
    ASSERT_TRUE(valid.ok()) << "seed " << seed << ": " << valid.error().message;
  }
}

// ---- Backward specs ----

constexpr NormSpec kGradients{.backward = true, .columns = 64};

// Everything that a norm may have besides, by the name in the message.
TEST(Validate, ABackwardSpecExcludesWhatHappensBesideTheNorm) {
  const struct {
    std::string_view name;
    void (*add)(NormSpec&);
  } excluded[] = {
      {"in_bias", [](NormSpec& s) { s.in_bias = true; }},
      {"gate_table", [](NormSpec& s) { s.gate = Gate::before, s.gate_table = true; }},
      {"residual", [](NormSpec& s) { s.residual = Residual::before; }},
      {"residual", [](NormSpec& s) { s.residual = Residual::after; }},
      {"sum", [](NormSpec& s) { s.sum = true; }},
      {"rounding", [](NormSpec& s) { s.rounding = Rounding::norm, s.input = s.output = DType::bf16; }},
      {"affine_rows", [](NormSpec& s) { s.affine_rows = true; }},
      {"quantization", [](NormSpec& s) { s.quantization = Quantization::tensor; }},
      {"also", [](NormSpec& s) { s.also = Also::bf16; }},
      {"amax", [](NormSpec& s) { s.amax = true; }},
      {"channels_first", [](NormSpec& s) { s.channels_first = true; }},
  };
  for (const auto& [name, add] : excluded) {
    NormSpec spec = kGradients;
    spec.affine = Affine::weight_bias;
    ASSERT_TRUE(validate(spec).ok());
    add(spec);
    const auto refused = validate(spec);
    ASSERT_EQ(refused.code(), Code::BadCombination) << name;
    EXPECT_THAT(refused.error().message,
                HasSubstr(concat({"a backward spec excludes ", name, ": leave it"})));
    EXPECT_FALSE(is_valid(spec)) << name;
  }
  for (const DType narrow : {DType::e4m3, DType::e5m2, DType::s8, DType::e2m1}) {
    NormSpec spec = kGradients;
    spec.output = narrow;
    const auto refused = validate(spec);
    ASSERT_EQ(refused.code(), Code::BadCombination);
    EXPECT_THAT(refused.error().message,
                HasSubstr(concat({"a backward spec has no output of ", name(narrow)})));
    EXPECT_FALSE(is_valid(spec));
  }
}

TEST(Validate, ABackwardSpecHasAnActivationAndAScale) {
  for (const auto& activation : kActivations) {
    NormSpec spec = kGradients;
    spec.affine = Affine::weight_bias;
    spec.activation = activation.value;
    spec.scale = -0.5;
    EXPECT_TRUE(validate(spec).ok() && is_valid(spec)) << to_text(spec);
    EXPECT_EQ(canonical(spec), spec);
    EXPECT_EQ(row_of(Operand::bias).present(spec), activation.value != Activation::none)
        << "the argument of an activation depends on the bias, and no other gradient does";
  }
}

TEST(Validate, ABackwardSpecMayHaveAGate) {
  for (const auto& gate : kGates)
    for (const auto& function : kGateFunctions)
      for (const auto& activation : kActivations) {
        NormSpec spec = kGradients;
        spec.gate = gate.value;
        spec.gate_function = function.value;
        spec.activation = activation.value;
        const bool valid = gate.value != Gate::after || activation.value == Activation::none;
        EXPECT_EQ(validate(spec).ok(), valid) << to_text(spec);
        EXPECT_EQ(is_valid(spec), valid) << to_text(spec);
      }
}

TEST(Validate, ABackwardSpecMayHaveAModulation) {
  for (const auto& modulation : kModulations)
    for (const bool plain : {false, true})
      for (const bool table : {false, true})
        for (const auto& activation : kActivations) {
          NormSpec spec = kGradients;
          spec.modulation = modulation.value;
          spec.plain_modulation = plain;
          spec.modulation_table = table;
          spec.activation = activation.value;
          EXPECT_TRUE(validate(spec).ok() && is_valid(spec)) << to_text(spec);
          spec.gate = Gate::before;
          const bool both = modulation.value != Modulation::none;
          EXPECT_EQ(validate(spec).code(), both ? Code::BadCombination : Code::Ok) << to_text(spec);
          EXPECT_EQ(is_valid(spec), !both) << to_text(spec);
          if (both)
            EXPECT_THAT(validate(spec).error().message,
                        HasSubstr(concat({"not both: leave out gate or ", name(modulation.value)})));
        }
}

TEST(Validate, SomeGradientRemains) {
  NormSpec spec = kGradients;
  for (const Need need : {Need::dweight_dbias, Need::dweight, Need::dbias}) {
    spec.need = need;
    EXPECT_EQ(validate(spec).code(), Code::BadCombination) << name(need);
    EXPECT_FALSE(is_valid(spec)) << name(need);
    EXPECT_EQ(canonical(spec).need, need) << "which is a mistake, too";
  }
  EXPECT_THAT(validate(spec).error().message,
              HasSubstr("no gradient remains: need is db, and there is no weight"));
  spec.affine = Affine::weight;
  EXPECT_THAT(validate(spec).error().message,
              HasSubstr("no gradient remains: need is db, and there is no bias"));
  for (const auto& need : kNeeds) {
    spec.need = need.value;
    EXPECT_EQ(validate(spec).ok(), need.value != Need::dbias) << need.name;
  }
  spec.affine = Affine::weight_bias;
  for (const auto& need : kNeeds) {
    spec.need = need.value;
    EXPECT_TRUE(validate(spec).ok()) << need.name;
  }
  spec.need = Need{9};
  EXPECT_EQ(validate(spec).code(), Code::BadArgument);
  EXPECT_THAT(validate(spec).error().message, HasSubstr("need is 9; it must be one of all, dx, dx+dw"));
  EXPECT_FALSE(is_valid(spec));
  spec.backward = false;
  EXPECT_EQ(validate(spec).code(), Code::BadArgument) << "also of a forward";
}

TEST(Validate, DsumNeedsDx) {
  NormSpec spec = kGradients;
  spec.affine = Affine::weight_bias;
  spec.dsum = true;
  for (const auto& need : kNeeds) {
    spec.need = need.value;
    EXPECT_EQ(validate(spec).ok(), writes_dx(spec)) << need.name;
    EXPECT_EQ(is_valid(spec), writes_dx(spec)) << need.name;
  }
  EXPECT_THAT(validate(spec).error().message, HasSubstr("dsum is added to dx, which need=db leaves out"));
}

TEST(Validate, ABackwardSpecHasTypesOf16BitsOrMore) {
  for (const DType type : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    NormSpec spec = kGradients;
    spec.dsum = true;
    spec.affine = Affine::weight_bias;
    for (const auto member : {&NormSpec::input, &NormSpec::output, &NormSpec::weight,
                              &NormSpec::gradient_type, &NormSpec::residual_type}) {
      NormSpec one = spec;
      one.*member = type;
      EXPECT_TRUE(validate(one).ok() && is_valid(one)) << to_text(one);
      EXPECT_EQ(compute_type(one), type == DType::f64 ? DType::f64 : DType::f32) << to_text(one);
    }
  }
  NormSpec spec = kGradients;
  spec.affine = Affine::weight;
  spec.gradient_type = DType::e4m3;
  EXPECT_EQ(validate(spec).code(), Code::BadDType);
  EXPECT_THAT(validate(spec).error().message,
              HasSubstr("gradient_type is e4m3; it must be one of f16, bf16"));
  EXPECT_FALSE(is_valid(spec));
}

TEST(Canonical, DropsOfGradientsWhatIsNotThere) {
  NormSpec spec = kGradients;
  spec.gradient_type = spec.weight = spec.residual_type = DType::f64;
  EXPECT_EQ(canonical(spec), kGradients) << "neither a weight nor dsum";
  EXPECT_EQ(compute_type(spec), DType::f32);
  spec.affine = Affine::weight;
  EXPECT_EQ(canonical(spec).gradient_type, DType::f64);
  EXPECT_EQ(canonical(spec).residual_type, DType::f32);
  spec.dsum = true;
  EXPECT_EQ(canonical(spec), spec);
  // A forward spec has neither.
  const NormSpec forward{.columns = 64, .gradient_type = DType::f64, .dsum = true, .affine = Affine::weight};
  EXPECT_EQ(canonical(forward), (NormSpec{.columns = 64, .affine = Affine::weight}));
  EXPECT_EQ(compute_type(forward), DType::f32);
}

// The need that says no less than what the affine has is `all`; of the others each has one value.
TEST(Canonical, TheNeedIsOfWhatTheAffineHas) {
  const auto need = [](Affine affine, Need given) {
    NormSpec spec = kGradients;
    spec.affine = affine;
    spec.need = given;
    return canonical(spec).need;
  };
  for (const auto& given : kNeeds)
    EXPECT_EQ(need(Affine::weight_bias, given.value), given.value) << given.name;
  for (const Need given : {Need::all, Need::dx, Need::dx_dweight, Need::dx_dbias})
    EXPECT_EQ(need(Affine::none, given), Need::all) << name(given);
  EXPECT_EQ(need(Affine::weight, Need::dx_dweight), Need::all);
  EXPECT_EQ(need(Affine::weight, Need::dx), Need::dx);
  EXPECT_EQ(need(Affine::weight, Need::dx_dbias), Need::dx);
  EXPECT_EQ(need(Affine::weight, Need::dweight_dbias), Need::dweight);
  EXPECT_EQ(need(Affine::weight, Need::dweight), Need::dweight);
  EXPECT_EQ(canonical({.columns = 64, .need = Need::dx}), (NormSpec{.columns = 64})) << "a forward has none";
  NormSpec spec = kGradients;
  spec.affine = Affine::weight;
  spec.gradient_type = DType::f64;
  spec.need = Need::dx;
  EXPECT_EQ(canonical(spec).gradient_type, DType::f32) << "nothing has this type";
  EXPECT_EQ(compute_type(spec), DType::f32);
}

// ---- Operands ----

std::vector<std::string_view> operands(const NormSpec& spec) {
  std::vector<std::string_view> all;
  for (const OperandRow& row : kOperands)
    if (row.present(spec)) all.push_back(row.name);
  return all;
}

TEST(Operands, OfABackwardSpec) {
  NormSpec spec = kGradients;
  EXPECT_THAT(operands(spec), ElementsAre("x", "dy", "dx"));
  spec.dsum = true;
  EXPECT_THAT(operands(spec), ElementsAre("x", "dy", "dsum", "dx"));
  spec.affine = Affine::weight;
  EXPECT_THAT(operands(spec), ElementsAre("x", "weight", "dy", "dsum", "dx", "dweight"));
  spec.affine = Affine::weight_bias;
  EXPECT_THAT(operands(spec), ElementsAre("x", "weight", "dy", "dsum", "dx", "dweight", "dbias"))
      << "the bias itself is not needed";
  spec.norm = Norm::rms;
  EXPECT_THAT(operands(spec), ElementsAre("x", "weight", "dy", "dsum", "dx", "dweight", "dbias"));
  spec.backward = false;
  EXPECT_THAT(operands(canonical(spec)), ElementsAre("x", "weight", "bias", "y"));
}

TEST(Operands, OfABackwardSpecAreWhatIsNeeded) {
  NormSpec spec = kGradients;
  spec.affine = Affine::weight_bias;
  const auto of = [&](Need need) {
    spec.need = need;
    return operands(spec);
  };
  EXPECT_THAT(of(Need::dx), ElementsAre("x", "weight", "dy", "dx"));
  EXPECT_THAT(of(Need::dx_dweight), ElementsAre("x", "weight", "dy", "dx", "dweight"));
  EXPECT_THAT(of(Need::dx_dbias), ElementsAre("x", "weight", "dy", "dx", "dbias"));
  EXPECT_THAT(of(Need::dweight_dbias), ElementsAre("x", "weight", "dy", "dweight", "dbias"));
  EXPECT_THAT(of(Need::dweight), ElementsAre("x", "weight", "dy", "dweight"));
  EXPECT_THAT(of(Need::dbias), ElementsAre("x", "weight", "dy", "dbias"));
  spec.gate = Gate::after;
  EXPECT_THAT(of(Need::all),
              ElementsAre("x", "gate", "weight", "bias", "dy", "dx", "dweight", "dbias", "dgate"))
      << "dgate is of what the bias is added to";
  EXPECT_THAT(of(Need::dx), ElementsAre("x", "gate", "weight", "bias", "dy", "dx", "dgate"));
  EXPECT_THAT(of(Need::dweight), ElementsAre("x", "gate", "weight", "dy", "dweight"));
  spec.gate = Gate::before;
  EXPECT_THAT(of(Need::all), ElementsAre("x", "gate", "weight", "dy", "dx", "dweight", "dbias", "dgate"));
  spec.activation = Activation::silu;
  EXPECT_THAT(of(Need::dbias), ElementsAre("x", "gate", "weight", "bias", "dy", "dbias"));
  EXPECT_EQ(row_of(Operand::dgate).in_place, Operand::gate);
  spec.modulation_type = DType::f16;
  EXPECT_EQ(row_of(Operand::dgate).dtype(spec), DType::f16);
}

TEST(Operands, OfABackwardSpecWithAModulation) {
  NormSpec spec = kGradients;
  spec.affine = Affine::weight_bias;
  spec.modulation = Modulation::scale_shift;
  spec.modulation_type = DType::f16;
  EXPECT_THAT(operands(spec), ElementsAre("x", "weight", "bias", "mod_scale", "dy", "dx", "dweight", "dbias",
                                          "dmod_scale", "dmod_shift"))
      << "dmod_scale is of what the bias is added to, and no gradient of the shift";
  EXPECT_EQ(row_of(Operand::dmod_scale).dtype(spec), DType::f16);
  EXPECT_EQ(row_of(Operand::dmod_shift).dtype(spec), DType::f16);
  spec.need = Need::dweight_dbias;
  EXPECT_THAT(operands(spec), ElementsAre("x", "weight", "mod_scale", "dy", "dweight", "dbias"));
  spec.need = Need::dx;
  spec.modulation = Modulation::scale;
  spec.modulation_table = true;
  EXPECT_THAT(operands(spec),
              ElementsAre("x", "weight", "bias", "mod_scale", "mod_scale_table", "dy", "dx", "dmod_scale"));
  spec.modulation = Modulation::scale_shift;
  spec.affine = Affine::none;
  EXPECT_THAT(operands(spec),
              ElementsAre("x", "mod_scale", "mod_scale_table", "dy", "dx", "dmod_scale", "dmod_shift"));
  spec.activation = Activation::gelu;
  EXPECT_THAT(operands(spec), ElementsAre("x", "mod_scale", "mod_scale_table", "mod_shift", "mod_shift_table",
                                          "dy", "dx", "dmod_scale", "dmod_shift"));
}

TEST(Operands, OfABackwardSpecWithStatistics) {
  NormSpec spec = kGradients;
  spec.statistics = true;
  EXPECT_EQ(to_text(spec).substr(to_text(spec).size() - 6), "/stats");
  EXPECT_TRUE(validate(spec));
  EXPECT_THAT(operands(spec), ElementsAre("x", "dy", "dx", "saved_mean", "saved_rstd"));
  EXPECT_EQ(row_of(Operand::saved_mean).dtype(spec), compute_type(spec));
  spec.norm = Norm::rms;
  EXPECT_THAT(operands(spec), ElementsAre("x", "dy", "dx", "saved_rstd"));
  spec.backward = false;
  EXPECT_THAT(operands(canonical(spec)), ElementsAre("x", "y", "rstd"));
}

TEST(Operands, OfABackwardSpecHaveTheirTypes) {
  const NormSpec spec{.backward = true,
                      .columns = 64,
                      .input = DType::f16,
                      .output = DType::bf16,
                      .weight = DType::f64,
                      .gradient_type = DType::f32,
                      .residual_type = DType::f64,
                      .dsum = true,
                      .affine = Affine::weight_bias};
  const auto type = [&](Operand operand) { return row_of(operand).dtype(spec); };
  EXPECT_EQ(type(Operand::x), DType::f16);
  EXPECT_EQ(type(Operand::dy), DType::bf16);
  EXPECT_EQ(type(Operand::dsum), DType::f64);
  EXPECT_EQ(type(Operand::dx), DType::f16);
  EXPECT_EQ(type(Operand::weight), DType::f64);
  EXPECT_EQ(type(Operand::dweight), DType::f32);
  EXPECT_EQ(type(Operand::dbias), DType::f32);
  EXPECT_EQ(row_of(Operand::dx).in_place, Operand::dy);
  for (const Operand own : {Operand::dweight, Operand::dbias}) EXPECT_EQ(row_of(own).in_place, own);
  for (const Operand matrix : {Operand::x, Operand::dy, Operand::dsum, Operand::dx})
    EXPECT_TRUE(is_matrix(row_of(matrix), spec)) << name(matrix);
  for (const Operand vector : {Operand::dweight, Operand::dbias})
    EXPECT_TRUE(!is_matrix(row_of(vector), spec) && is_columns(row_of(vector), spec)) << name(vector);
}

// ---- The value ----

TEST(Spec, IsAPlainValue) {
  static_assert(std::is_trivially_copyable_v<NormSpec>);
  static_assert(std::is_aggregate_v<NormSpec>);
  const NormSpec spec{};
  EXPECT_EQ(spec.norm, Norm::layer);
  EXPECT_EQ(spec.columns, 0);
  EXPECT_EQ(spec.input, DType::f32);
  EXPECT_EQ(spec.epsilon, 1e-5);
  EXPECT_EQ(spec.residual, Residual::none);
  EXPECT_FALSE(spec.sum);
  EXPECT_EQ(spec.affine, Affine::none);
  EXPECT_EQ(spec.activation, Activation::none);
  EXPECT_EQ(spec.scale, 1.0);
  EXPECT_FALSE(spec.statistics);
  EXPECT_FALSE(spec.backward);
  EXPECT_FALSE(spec.dsum);
}

TEST(Spec, OutputAndWeightFollowTheInput) {
  for (const DType type : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    const NormSpec spec{.columns = 64, .input = type};
    EXPECT_EQ(spec.output, type);
    EXPECT_EQ(spec.weight, type);
    EXPECT_EQ(spec.gradient_type, type);
  }
  const NormSpec mixed{.columns = 64, .input = DType::bf16, .weight = DType::f32};
  EXPECT_EQ(mixed.output, DType::bf16);
  EXPECT_EQ(mixed.weight, DType::f32);
}

TEST(Spec, EveryFieldCountsInAComparison) {
  const NormSpec spec{.columns = 64};
  const auto differs = [&](auto change) {
    NormSpec other = spec;
    change(other);
    return !(other == spec) && other != spec;
  };
  EXPECT_EQ(spec, (NormSpec{.columns = 64}));
  EXPECT_TRUE(differs([](auto& s) { s.norm = Norm::rms; }));
  EXPECT_TRUE(differs([](auto& s) { s.backward = true; }));
  EXPECT_TRUE(differs([](auto& s) { s.columns = 65; }));
  EXPECT_TRUE(differs([](auto& s) { s.input = DType::f16; }));
  EXPECT_TRUE(differs([](auto& s) { s.output = DType::f16; }));
  EXPECT_TRUE(differs([](auto& s) { s.weight = DType::f16; }));
  EXPECT_TRUE(differs([](auto& s) { s.gradient_type = DType::f16; }));
  EXPECT_TRUE(differs([](auto& s) { s.epsilon = 1e-6; }));
  EXPECT_TRUE(differs([](auto& s) { s.modulation_type = DType::f16; }));
  EXPECT_TRUE(differs([](auto& s) { s.gate = Gate::before; }));
  EXPECT_TRUE(differs([](auto& s) { s.gate_function = GateFunction::silu; }));
  EXPECT_TRUE(differs([](auto& s) { s.gate_table = true; }));
  EXPECT_TRUE(differs([](auto& s) { s.modulation = Modulation::scale; }));
  EXPECT_TRUE(differs([](auto& s) { s.plain_modulation = true; }));
  EXPECT_TRUE(differs([](auto& s) { s.modulation_table = true; }));
  EXPECT_TRUE(differs([](auto& s) { s.residual = Residual::before; }));
  EXPECT_TRUE(differs([](auto& s) { s.sum = true; }));
  EXPECT_TRUE(differs([](auto& s) { s.dsum = true; }));
  EXPECT_TRUE(differs([](auto& s) { s.need = Need::dx; }));
  EXPECT_TRUE(differs([](auto& s) { s.affine = Affine::weight; }));
  EXPECT_TRUE(differs([](auto& s) { s.activation = Activation::relu; }));
  EXPECT_TRUE(differs([](auto& s) { s.scale = 2; }));
  EXPECT_TRUE(differs([](auto& s) { s.rounding = Rounding::y; }));
  EXPECT_TRUE(differs([](auto& s) { s.quantization = Quantization::row; }));
  EXPECT_TRUE(differs([](auto& s) { s.inverse_scale = true; }));
  EXPECT_TRUE(differs([](auto& s) { s.upper_bound = true; }));
  EXPECT_TRUE(differs([](auto& s) { s.scale_format = ScaleFormat::e8m0; }));
  EXPECT_TRUE(differs([](auto& s) { s.scale_layout = ScaleLayout::swizzled; }));
  EXPECT_TRUE(differs([](auto& s) { s.also = Also::bf16; }));
  EXPECT_TRUE(differs([](auto& s) { s.amax = true; }));
  EXPECT_TRUE(differs([](auto& s) { s.statistics = true; }));
}

TEST(Spec, NumbersCompareToTheBit) {
  const NormSpec spec{.columns = 64, .epsilon = 1e-5};
  EXPECT_NE(spec, (NormSpec{.columns = 64, .epsilon = std::nextafter(1e-5, 1.0)}));
  EXPECT_NE(spec, (NormSpec{.columns = 64, .epsilon = std::nextafter(1e-5, 0.0)}));
  EXPECT_NE(spec, (NormSpec{.columns = 64, .epsilon = 1e-5f}));
  EXPECT_NE((NormSpec{.columns = 64, .scale = 0.0}), (NormSpec{.columns = 64, .scale = -0.0}));
  EXPECT_EQ((NormSpec{.columns = 64, .scale = kNan}), (NormSpec{.columns = 64, .scale = kNan}));
}

// ---- The table of fields ----

// Each member of a spec by another value than its default has: a row of kFields that names another member, or
// a member without a row, leaves one of them unchanged.
TEST(Fields, AreTheMembersOfASpec) {
  NormSpec changed;
  std::set<std::string_view> names;
  each_field([&](const auto& field) {
    names.insert(field.name);
    auto& member = changed.*field.member;
    using Value = std::decay_t<decltype(member)>;
    member = static_cast<Value>(static_cast<int>(member) == 0 ? 1 : 0);
  });
  EXPECT_EQ(names.size(), kFieldCount);
  EXPECT_EQ(changed.norm, Norm::rms);
  EXPECT_TRUE(changed.backward);
  EXPECT_EQ(changed.columns, 1);
  EXPECT_EQ(changed.input, DType::f16);
  EXPECT_EQ(changed.output, DType::f16);
  EXPECT_EQ(changed.weight, DType::f16);
  EXPECT_EQ(changed.gradient_type, DType::f16);
  EXPECT_EQ(changed.residual_type, DType::f16);
  EXPECT_EQ(changed.epsilon, 1);
  EXPECT_EQ(changed.modulation_type, DType::f16);
  EXPECT_EQ(changed.gate, Gate::before);
  EXPECT_EQ(changed.gate_function, GateFunction::silu);
  EXPECT_TRUE(changed.gate_table);
  EXPECT_EQ(changed.residual, Residual::before);
  EXPECT_TRUE(changed.sum);
  EXPECT_TRUE(changed.dsum);
  EXPECT_EQ(changed.affine, Affine::weight);
  EXPECT_EQ(changed.modulation, Modulation::scale);
  EXPECT_TRUE(changed.plain_modulation);
  EXPECT_TRUE(changed.modulation_table);
  EXPECT_EQ(changed.activation, Activation::relu);
  EXPECT_EQ(changed.scale, 0);
  EXPECT_EQ(changed.quantization, Quantization::tensor);
  EXPECT_TRUE(changed.inverse_scale);
  EXPECT_TRUE(changed.upper_bound);
  EXPECT_EQ(changed.scale_format, ScaleFormat::power_of_two);
  EXPECT_EQ(changed.scale_layout, ScaleLayout::columns);
  EXPECT_EQ(changed.also, Also::f16);
  EXPECT_TRUE(changed.amax);
  EXPECT_TRUE(changed.statistics);
}

TEST(Fields, HaveTheBitsOfTheirValues) {
  EXPECT_EQ(std::get<0>(kFields).bits(), 1);   // two norms
  EXPECT_EQ(std::get<1>(kFields).bits(), 1);   // backward
  EXPECT_EQ(std::get<2>(kFields).bits(), 31);  // columns
  EXPECT_EQ(std::get<3>(kFields).bits(), 2);   // four dtypes of inputs
  EXPECT_EQ(std::get<4>(kFields).bits(), 3);   // seven of results
  EXPECT_EQ(std::get<9>(kFields).bits(), 64);  // epsilon
  EXPECT_EQ(std::get<11>(kFields).bits(), 2);  // three places of a gate
  EXPECT_EQ(std::get<24>(kFields).bits(), 3);  // five activations
  EXPECT_EQ(std::get<26>(kFields).bits(), 3);  // seven quantizations
  EXPECT_EQ(std::get<29>(kFields).bits(), 2);  // four formats of scales
}

// ---- canonical ----

TEST(Canonical, DropsTheDTypeOfAbsentWeights) {
  const NormSpec spec{.columns = 64, .input = DType::f16, .output = DType::f32, .weight = DType::f64};
  EXPECT_EQ(canonical(spec), (NormSpec{.columns = 64, .input = DType::f16, .output = DType::f32}));
  for (const Affine affine : {Affine::weight, Affine::weight_bias}) {
    NormSpec with = spec;
    with.affine = affine;
    EXPECT_EQ(canonical(with), with);
  }
}

TEST(Canonical, DropsTheSignOfAZeroEpsilonOnly) {
  const NormSpec zero = canonical({.columns = 64, .epsilon = -0.0, .scale = -0.0});
  EXPECT_FALSE(std::signbit(zero.epsilon));
  EXPECT_TRUE(std::signbit(zero.scale)) << "-0 times the result is another result";
}

TEST(Canonical, ChangesNoMeaning) {
  for (std::uint64_t seed = 0; seed < 10'000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const NormSpec spec = random_spec(random, {.channels_first = true, .every_norm = true, .backward = true}),
                   same = canonical(spec);
    ASSERT_EQ(canonical(same), same);
    ASSERT_EQ(compute_type(same), compute_type(spec));
    ASSERT_EQ(same.epsilon, spec.epsilon);
    NormSpec back = same;  // only these may change
    back.weight = spec.weight;
    back.epsilon = spec.epsilon;
    back.residual_type = spec.residual_type;
    back.gradient_type = spec.gradient_type;
    back.dsum = spec.dsum;
    back.need = spec.need;
    back.rounding = spec.rounding;
    back.weight_offset = spec.weight_offset;
    back.affine_rows = spec.affine_rows;
    back.modulation_type = spec.modulation_type;
    back.gate_function = spec.gate_function;
    back.gate_table = spec.gate_table;
    back.plain_modulation = spec.plain_modulation;
    back.modulation_table = spec.modulation_table;
    back.inverse_scale = spec.inverse_scale;
    back.upper_bound = spec.upper_bound;
    back.scale_format = spec.scale_format;
    back.scale_layout = spec.scale_layout;
    ASSERT_EQ(back, spec);
  }
}

// A value that is rounded to the type in which it is computed stays what it is.
TEST(Canonical, DropsRoundingsToTheComputeType) {
  NormSpec spec{.columns = 64,
                .input = DType::bf16,
                .residual_type = DType::f32,
                .residual = Residual::before,
                .rounding = Rounding::sum_norm,
                .affine = Affine::weight};
  EXPECT_EQ(canonical(spec).rounding, Rounding::norm);
  spec.residual_type = DType::bf16;
  EXPECT_EQ(canonical(spec).rounding, Rounding::sum_norm);
  spec.input = spec.residual_type = DType::f32;
  EXPECT_EQ(canonical(spec).rounding, Rounding::none);
  spec.residual = Residual::none;
  spec.in_bias = true;
  EXPECT_EQ(canonical(spec).residual_type, DType::f32) << "there is neither a residual nor a sum";
  spec = {.columns = 64, .input = DType::bf16, .rounding = Rounding::norm, .modulation = Modulation::scale};
  EXPECT_EQ(canonical(spec).rounding, Rounding::norm) << "a modulation follows";
  spec = {.columns = 64, .weight_offset = true, .affine_rows = true};
  EXPECT_EQ(canonical(spec), NormSpec{.columns = 64});
}

TEST(Canonical, KeepsOfAQuantizationWhatCounts) {
  NormSpec spec{.columns = 64,
                .input = DType::bf16,
                .output = DType::e4m3,
                .rounding = Rounding::y,
                .quantization = Quantization::tensor,
                .inverse_scale = true};
  EXPECT_EQ(canonical(spec), spec);
  spec.input = spec.weight = spec.residual_type = spec.modulation_type = DType::f32;
  EXPECT_TRUE(validate(spec).ok());
  EXPECT_EQ(canonical(spec).rounding, Rounding::none) << "a result in f32 is one already";
  spec.quantization = Quantization::row;
  EXPECT_FALSE(canonical(spec).inverse_scale) << "a row's scale is never its inverse";
  spec.inverse_scale = false;
  spec.upper_bound = true;
  spec.scale_format = ScaleFormat::e8m0;
  spec.scale_layout = ScaleLayout::swizzled;
  EXPECT_TRUE(canonical(spec).upper_bound);
  EXPECT_EQ(canonical(spec).scale_format, ScaleFormat::f32) << "there are no blocks";
  EXPECT_EQ(canonical(spec).scale_layout, ScaleLayout::rows);
  spec.quantization = Quantization::block_32;
  EXPECT_FALSE(canonical(spec).upper_bound) << "of rows alone";
  EXPECT_EQ(canonical(spec).scale_format, ScaleFormat::e8m0);
  EXPECT_EQ(canonical(spec).scale_layout, ScaleLayout::swizzled);
  spec = {.columns = 64, .output = DType::e5m2};
  EXPECT_TRUE(validate(spec).ok()) << "rounded as it is";
  EXPECT_EQ(compute_type(spec), DType::f32);
}

// ---- The closed sets ----

TEST(ComputeType, IsF64AsSoonAsOneTensorIs) {
  for (const auto& in : kDTypes)
    for (const auto& out : kDTypes)
      for (const auto& w : kDTypes)
        for (const Choice<Affine>& affine : kAffines) {
          const NormSpec spec{.columns = 64,
                              .input = in.value,
                              .output = out.value,
                              .weight = w.value,
                              .affine = affine.value};
          const bool weights = affine.value != Affine::none;
          const bool wide =
              size_of(in.value) == 8 || size_of(out.value) == 8 || (weights && size_of(w.value) == 8);
          EXPECT_EQ(compute_type(spec), wide ? DType::f64 : DType::f32);
        }
}

TEST(Names, AreThoseOfTheHeader) {
  EXPECT_EQ(name(DType::f16), "f16");
  EXPECT_EQ(name(DType::bf16), "bf16");
  EXPECT_EQ(name(DType::f32), "f32");
  EXPECT_EQ(name(DType::f64), "f64");
  EXPECT_EQ(name(Norm::layer), "layernorm");
  EXPECT_EQ(name(Norm::rms), "rmsnorm");
  EXPECT_EQ(name(Residual::none), "none");
  EXPECT_EQ(name(Residual::before), "add");
  EXPECT_EQ(name(Gate::after), "gateafter");
  EXPECT_EQ(name(GateFunction::sigmoid), "sigmoid");
  EXPECT_EQ(name(Modulation::scale), "mods");
  EXPECT_EQ(name(Modulation::scale_shift), "mod");
  EXPECT_EQ(name(DType::e4m3), "e4m3");
  EXPECT_EQ(name(DType::e5m2), "e5m2");
  EXPECT_EQ(name(DType::s8), "s8");
  EXPECT_EQ(name(DType::e2m1), "e2m1");
  EXPECT_EQ(name(Rounding::sum_norm_y), "sum+norm+y");
  EXPECT_EQ(name(Quantization::none), "none");
  EXPECT_EQ(name(Quantization::tensor), "tensor");
  EXPECT_EQ(name(Quantization::row), "row");
  EXPECT_EQ(name(Quantization::block_16), "16");
  EXPECT_EQ(name(Quantization::block_32), "32");
  EXPECT_EQ(name(Quantization::block_64), "64");
  EXPECT_EQ(name(Quantization::block_128), "128");
  EXPECT_EQ(name(DType::e8m0), "e8m0");
  EXPECT_EQ(name(ScaleFormat::f32), "f32");
  EXPECT_EQ(name(ScaleFormat::power_of_two), "p2");
  EXPECT_EQ(name(ScaleFormat::e8m0), "e8m0");
  EXPECT_EQ(name(ScaleFormat::e4m3), "e4m3");
  EXPECT_EQ(name(ScaleLayout::rows), "rows");
  EXPECT_EQ(name(ScaleLayout::columns), "cols");
  EXPECT_EQ(name(ScaleLayout::packed_columns), "cols4");
  EXPECT_EQ(name(ScaleLayout::swizzled), "sw");
  EXPECT_EQ(name(Also::none), "none");
  EXPECT_EQ(name(Also::bf16), "bf16");
  EXPECT_EQ(name(Affine::none), "none");
  EXPECT_EQ(name(Affine::weight), "w");
  EXPECT_EQ(name(Affine::weight_bias), "wb");
  EXPECT_EQ(name(Activation::none), "none");
  EXPECT_EQ(name(Activation::relu), "relu");
  EXPECT_EQ(name(Activation::gelu), "gelu");
  EXPECT_EQ(name(Activation::gelu_tanh), "gelu_tanh");
  EXPECT_EQ(name(Activation::silu), "silu");
}

TEST(Names, AValueOutsideItsSetIsHarmless) {
  EXPECT_EQ(name(DType{99}), "?");
  EXPECT_EQ(name(Norm{99}), "?");
  EXPECT_EQ(name(Residual{99}), "?");
  EXPECT_EQ(name(Gate{99}), "?");
  EXPECT_EQ(name(GateFunction{99}), "?");
  EXPECT_EQ(name(Modulation{99}), "?");
  EXPECT_EQ(name(Rounding{99}), "?");
  EXPECT_EQ(name(Quantization{99}), "?");
  EXPECT_EQ(name(ScaleFormat{99}), "?");
  EXPECT_EQ(name(ScaleLayout{99}), "?");
  EXPECT_EQ(name(Also{99}), "?");
  EXPECT_EQ(name(Affine{99}), "?");
  EXPECT_EQ(name(Activation{99}), "?");
  EXPECT_EQ(size_of(DType{99}), 0);
}

TEST(SizeOf, IsBytesAnElement) {
  EXPECT_EQ(size_of(DType::f16), 2);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(size_of(DType::f32), 4);
  EXPECT_EQ(size_of(DType::f64), 8);
  EXPECT_EQ(size_of(DType::e4m3), 1);
  EXPECT_EQ(size_of(DType::e5m2), 1);
  EXPECT_EQ(size_of(DType::s8), 1);
  EXPECT_EQ(size_of(DType::e2m1), 1) << "of two columns";
  EXPECT_EQ(size_of(DType::e8m0), 1);
}

}  // namespace
TEST(Validate, ConstantsMustFitTheComputeType) {
  EXPECT_EQ(validate({.columns = 8, .epsilon = 1e39}).code(), Code::BadEpsilon);
  EXPECT_EQ(validate({.columns = 8, .scale = -1e39}).code(), Code::BadScale);
  EXPECT_TRUE(validate({.columns = 8, .input = DType::f64, .epsilon = 1e39, .scale = -1e39}).ok());
  EXPECT_TRUE(validate({.columns = 8, .epsilon = 1e-300, .scale = 1e-300}).ok()) << "rounds to zero";
}

}  // namespace normjit
