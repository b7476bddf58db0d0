// SPDX-License-Identifier: Apache-2.0
// The canonical text of a spec and its parser.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/spec.h"
#include "normjit/spec/tables.h"
#include "tests/support/random_spec.h"

namespace normjit {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::string_view kShellSafe =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789=/._+:-";

NormSpec parsed(std::string_view text) {
  const auto spec = parse_spec(text);
  EXPECT_TRUE(spec.ok()) << text << ": " << (spec.ok() ? "" : spec.error().message);
  return spec.ok() ? *spec : NormSpec{};
}

// ---- Writing ----

TEST(ToText, OfTheReferenceWorkloads) {
  EXPECT_EQ(to_text({.columns = 4194304, .affine = Affine::weight_bias}),
            "layernorm/cols=4194304/f32/eps=1e-05/wb");
  EXPECT_EQ(to_text({.columns = 64, .affine = Affine::weight_bias, .activation = Activation::gelu}),
            "layernorm/cols=64/f32/eps=1e-05/wb/gelu");
}

TEST(ToText, LeavesDefaultsOutAndKeepsTheOrder) {
  EXPECT_EQ(to_text({.columns = 1}), "layernorm/cols=1/f32/eps=1e-05");
  EXPECT_EQ(to_text({.columns = 2147483647,
                     .input = DType::f16,
                     .output = DType::f64,
                     .weight = DType::bf16,
                     .epsilon = 0,
                     .affine = Affine::weight,
                     .activation = Activation::gelu_tanh,
                     .scale = -0.125,
                     .statistics = true}),
            "layernorm/cols=2147483647/f16/out=f64/w=bf16/eps=0/w/gelu_tanh/scale=-0.125/stats");
}

TEST(ToText, OfOtherNormsAndResiduals) {
  EXPECT_EQ(to_text({.norm = Norm::rms, .columns = 4096, .input = DType::bf16, .affine = Affine::weight}),
            "rmsnorm/cols=4096/bf16/eps=1e-05/w");
  EXPECT_EQ(to_text({.columns = 64, .residual = Residual::before}), "layernorm/cols=64/f32/eps=1e-05/add");
  EXPECT_EQ(to_text({.norm = Norm::rms,
                     .columns = 4096,
                     .input = DType::bf16,
                     .output = DType::f32,
                     .weight = DType::f32,
                     .residual = Residual::before,
                     .sum = true,
                     .affine = Affine::weight,
                     .activation = Activation::silu,
                     .scale = 2,
                     .statistics = true}),
            "rmsnorm/cols=4096/bf16/out=f32/w=f32/eps=1e-05/add/sum/w/silu/scale=2/stats");
}

TEST(ToText, OfGatesAndModulations) {
  EXPECT_EQ(to_text({.columns = 3072,
                     .input = DType::bf16,
                     .weight = DType::f32,
                     .modulation_type = DType::f32,
                     .gate = Gate::before,
                     .gate_table = true,
                     .residual = Residual::before,
                     .sum = true,
                     .modulation = Modulation::scale_shift,
                     .modulation_table = true}),
            "layernorm/cols=3072/bf16/w=f32/mod=f32/eps=1e-05/gate:table/add/sum/mod:table");
  EXPECT_EQ(to_text({.norm = Norm::rms,
                     .columns = 128,
                     .gate = Gate::after,
                     .gate_function = GateFunction::silu,
                     .gate_table = true,
                     .residual = Residual::after,
                     .affine = Affine::weight,
                     .modulation = Modulation::scale,
                     .plain_modulation = true,
                     .modulation_table = true}),
            "rmsnorm/cols=128/f32/eps=1e-05/gateafter:silu:table/addafter/w/mods0:table");
}

TEST(ToText, OfChannelsFirst) {
  const NormSpec spec{.columns = 96,
                      .epsilon = 1e-6,
                      .affine = Affine::weight_bias,
                      .statistics = true,
                      .channels_first = true};
  EXPECT_EQ(to_text(spec), "layernorm/cols=96/f32/eps=1e-06/wb/stats/cf");
  EXPECT_EQ(parsed("layernorm/cf/cols=96/wb/eps=1e-6/stats"), spec);
  EXPECT_EQ(parsed("layernorm/cols=96/w:rows/f16").channels_first, false);
}

TEST(ToText, OfBackwardSpecs) {
  EXPECT_EQ(to_text({.backward = true, .columns = 64}), "layernorm_bwd/cols=64/f32/eps=1e-05");
  const NormSpec all{.norm = Norm::rms,
                     .backward = true,
                     .columns = 4096,
                     .input = DType::bf16,
                     .output = DType::f16,
                     .weight = DType::f32,
                     .gradient_type = DType::f64,
                     .residual_type = DType::f16,
                     .dsum = true,
                     .affine = Affine::weight_bias,
                     .weight_offset = true,
                     .activation = Activation::silu,
                     .scale = 0.5};
  EXPECT_EQ(to_text(all),
            "rmsnorm_bwd/cols=4096/bf16/out=f16/w=f32/dw=f64/res=f16/eps=1e-05/dsum/wb1/silu/scale=0.5");
  EXPECT_EQ(parsed(to_text(all)), all);
  EXPECT_EQ(parsed("rmsnorm_bwd/silu/wb1/scale=0.5/dsum/res=f16/dw=f64/w=f32/out=f16/bf16/cols=4096"), all)
      << "in any order";
  EXPECT_EQ(parsed("layernorm_bwd/shape=8x8/f16/w/dw=f16"),
            (NormSpec{.backward = true, .columns = 64, .input = DType::f16, .affine = Affine::weight}));
  // Of an input of 16 bits the gradients are of its type, too.
  EXPECT_EQ(parsed("layernorm_bwd/cols=64/bf16/w").gradient_type, DType::bf16);
  EXPECT_EQ(to_text({.columns = 64, .gradient_type = DType::f64, .dsum = true, .affine = Affine::weight}),
            "layernorm/cols=64/f32/eps=1e-05/w")
      << "a forward spec has neither";
}

TEST(ToText, OfWhatGradientsAreNeeded) {
  for (const auto& need : kNeeds) {
    const NormSpec spec{.backward = true, .columns = 64, .affine = Affine::weight_bias, .need = need.value};
    const std::string text = to_text(spec);
    EXPECT_EQ(text, std::string("layernorm_bwd/cols=64/f32/eps=1e-05/wb") +
                        (need.value == Need::all ? "" : "/need=" + std::string(need.name)));
    EXPECT_EQ(parsed(text), spec);
  }
  EXPECT_EQ(to_text(parsed("rmsnorm_bwd/need=dx+dw/cols=64/bf16/w")), "rmsnorm_bwd/cols=64/bf16/eps=1e-05/w");
  EXPECT_EQ(to_text(parsed("rmsnorm_bwd/cols=64/w/need=dx+db")),
            "rmsnorm_bwd/cols=64/f32/eps=1e-05/w/need=dx");
  EXPECT_EQ(to_text(parsed("rmsnorm_bwd/cols=64/w/need=all")), "rmsnorm_bwd/cols=64/f32/eps=1e-05/w");
}

TEST(ToText, OfGatesOfBackwardSpecs) {
  for (const std::string text : {"rmsnorm_bwd/cols=64/bf16/mod=f32/eps=1e-05/gate:silu/dsum/w/gelu/scale=0.5",
                                 "layernorm_bwd/cols=64/f32/eps=1e-05/gateafter:tanh/wb/need=dx",
                                 "rmsnorm_bwd/cols=64/f32/eps=1e-05/gate"})
    EXPECT_EQ(to_text(parsed(text)), text);
}

TEST(ToText, OfQuantizations) {
  const NormSpec row{.norm = Norm::rms,
                     .columns = 4096,
                     .input = DType::bf16,
                     .output = DType::e4m3,
                     .residual = Residual::before,
                     .sum = true,
                     .rounding = Rounding::sum_norm_y,
                     .affine = Affine::weight,
                     .quantization = Quantization::row};
  EXPECT_EQ(to_text(row), "rmsnorm/cols=4096/bf16/out=e4m3/eps=1e-05/add/sum/round=sum+norm+y/w/q=row");
  const NormSpec tensor{.columns = 64,
                        .output = DType::s8,
                        .scale = 2,
                        .quantization = Quantization::tensor,
                        .inverse_scale = true,
                        .statistics = true,
                        .channels_first = true};
  EXPECT_EQ(to_text(tensor), "layernorm/cols=64/f32/out=s8/eps=1e-05/scale=2/q=tensor:inv/stats/cf");
  for (const NormSpec& spec : {row, tensor}) EXPECT_EQ(parsed(to_text(spec)), spec);
  EXPECT_EQ(to_text({.columns = 64, .output = DType::e5m2}), "layernorm/cols=64/f32/out=e5m2/eps=1e-05");
  EXPECT_EQ(to_text(parsed("layernorm/q=tensor/out=e4m3/round=y/cols=64")),
            "layernorm/cols=64/f32/out=e4m3/eps=1e-05/q=tensor")
      << "rounding to f32 changes nothing";
  EXPECT_EQ(parsed("layernorm/cols=64/q=none").quantization, Quantization::none);
}

TEST(ToText, OfBlocksAndFurtherResults) {
  const std::string_view texts[] = {
      "rmsnorm/cols=4096/bf16/out=e4m3/eps=1e-05/w/q=row:ub",
      "rmsnorm/cols=4096/bf16/out=e4m3/eps=1e-05/w/q=128",
      "rmsnorm/cols=4096/bf16/out=s8/eps=1e-05/w/q=64:cols",
      "rmsnorm/cols=4096/bf16/out=e4m3/eps=1e-05/w/q=128:p2",
      "rmsnorm/cols=4096/bf16/out=e4m3/eps=1e-05/w/q=128:e8m0:cols4",
      "rmsnorm/cols=4096/bf16/out=e5m2/eps=1e-05/add/sum/w/q=32:e8m0:sw/also=bf16/stats",
      "rmsnorm/cols=4096/bf16/out=e4m3/eps=1e-05/w/q=16:e4m3:sw",
      "layernorm/cols=96/f32/out=e4m3/eps=1e-05/scale=2/q=tensor:inv/also=f32/amax/stats",
      "layernorm/cols=96/f16/eps=1e-05/amax"};
  for (const std::string_view text : texts) EXPECT_EQ(to_text(parsed(text)), text);
  EXPECT_TRUE(parsed(texts[0]).upper_bound);
  EXPECT_EQ(parsed(texts[1]), (NormSpec{.norm = Norm::rms,
                                        .columns = 4096,
                                        .input = DType::bf16,
                                        .output = DType::e4m3,
                                        .affine = Affine::weight,
                                        .quantization = Quantization::block_128}));
  const NormSpec swizzled = parsed(texts[5]);
  EXPECT_EQ(swizzled.quantization, Quantization::block_32);
  EXPECT_EQ(swizzled.scale_format, ScaleFormat::e8m0);
  EXPECT_EQ(swizzled.scale_layout, ScaleLayout::swizzled);
  EXPECT_EQ(swizzled.also, Also::bf16);
  EXPECT_TRUE(parsed(texts[8]).amax);
  EXPECT_EQ(parsed("layernorm/amax/cols=256/also=none"), (NormSpec{.columns = 256, .amax = true}));
}

// Of every quantization there is another text.
TEST(ToText, QuantizationsRoundTrip) {
  std::map<std::string, NormSpec> seen;
  for (const auto& quantization : kQuantizations)
    for (const auto& format : kScaleFormats)
      for (const auto& layout : kScaleLayouts)
        for (const auto& also : kAlsos)
          for (int flags = 0; flags < 8; ++flags) {
            const NormSpec spec{.columns = 256,
                                .output = DType::e4m3,
                                .quantization = quantization.value,
                                .inverse_scale = (flags & 1) != 0,
                                .upper_bound = (flags & 2) != 0,
                                .scale_format = format.value,
                                .scale_layout = layout.value,
                                .also = also.value,
                                .amax = (flags & 4) != 0};
            if (!validate(spec)) continue;
            const std::string text = to_text(spec);
            EXPECT_EQ(text.find_first_not_of(kShellSafe), text.npos) << text;
            EXPECT_EQ(parsed(text), canonical(spec)) << text;
            const auto [at, fresh] = seen.emplace(text, canonical(spec));
            EXPECT_TRUE(fresh || at->second == canonical(spec)) << "two specs share " << text;
          }
  // Of none, with and without amax. A tensor's two scales, each with and without amax; a row's two; and of
  // blocks 4 + 3, 4, 2 + 2 + 4 and 2 + 2 + 4. But for the first, each with four second results.
  EXPECT_EQ(seen.size(), 2u + 4 * (4 + 2 + 7 + 4 + 8 + 8));
}

TEST(ToText, LeavesOutWhatHasNoMeaning) {
  EXPECT_EQ(to_text({.columns = 8,
                     .weight = DType::f64,
                     .modulation_type = DType::f64,
                     .gate_function = GateFunction::tanh,
                     .gate_table = true,
                     .plain_modulation = true,
                     .modulation_table = true}),
            "layernorm/cols=8/f32/eps=1e-05");
  EXPECT_EQ(to_text({.columns = 8, .weight = DType::f64, .epsilon = -0.0}), "layernorm/cols=8/f32/eps=0");
}

TEST(ToText, NumbersAreTheShortestThatReadBack) {
  const auto epsilon = [](double value) { return to_text({.columns = 8, .epsilon = value}); };
  EXPECT_EQ(epsilon(1e-12), "layernorm/cols=8/f32/eps=1e-12");
  EXPECT_EQ(epsilon(0.1), "layernorm/cols=8/f32/eps=0.1");
  EXPECT_EQ(epsilon(1e-5f), "layernorm/cols=8/f32/eps=9.999999747378752e-06");
  EXPECT_EQ(epsilon(std::nextafter(1e-5, 1)), "layernorm/cols=8/f32/eps=1.0000000000000003e-05");
  EXPECT_EQ(to_text({.columns = 8, .scale = -0.0}), "layernorm/cols=8/f32/eps=1e-05/scale=-0");
}

// ---- Reading ----

TEST(ParseSpec, ReadsTheReferenceWorkloads) {
  EXPECT_EQ(parsed("layernorm/cols=4194304/f32/eps=1e-05/wb"),
            (NormSpec{.columns = 4194304, .affine = Affine::weight_bias}));
  EXPECT_EQ(parsed("layernorm/cols=64/f32/eps=1e-05/wb/gelu"),
            (NormSpec{.columns = 64, .affine = Affine::weight_bias, .activation = Activation::gelu}));
}

TEST(ParseSpec, EveryFieldButTheColumnsHasADefault) {
  EXPECT_EQ(parsed("layernorm/cols=64"), NormSpec{.columns = 64});
  EXPECT_EQ(parsed("layernorm/cols=64/bf16/wb"),
            (NormSpec{.columns = 64, .input = DType::bf16, .affine = Affine::weight_bias}));
}

TEST(ParseSpec, TakesAShapeForTheColumns) {
  EXPECT_EQ(parsed("layernorm/shape=64x256x256/f32/eps=1e-05/wb"),
            parsed("layernorm/cols=4194304/f32/eps=1e-05/wb"));
  EXPECT_EQ(parsed("layernorm/shape=64"), parsed("layernorm/cols=64"));
  EXPECT_EQ(parsed("layernorm/shape=1x1x1x1x1x1x1x9").columns, 9);
}

TEST(ParseSpec, TheOrderOfTheFieldsIsFree) {
  std::vector<std::string_view> fields = {"cols=24", "f16", "out=f32", "w=f64",   "eps=0.5", "add",
                                          "sum",     "w",   "silu",    "scale=2", "stats"};
  const NormSpec spec{.columns = 24,
                      .input = DType::f16,
                      .output = DType::f32,
                      .weight = DType::f64,
                      .epsilon = 0.5,
                      .residual = Residual::before,
                      .sum = true,
                      .affine = Affine::weight,
                      .activation = Activation::silu,
                      .scale = 2,
                      .statistics = true};
  Random random(1);
  for (int turn = 0; turn < 200; ++turn) {
    for (std::size_t i = fields.size(); i > 1; --i) std::swap(fields[i - 1], fields[random.below(i)]);
    std::string text = "layernorm";
    for (const std::string_view field : fields) text += concat({"/", field});
    ASSERT_EQ(parsed(text), spec) << text;
  }
}

TEST(ParseSpec, TheResultIsCanonical) {
  EXPECT_EQ(parsed("layernorm/cols=64/eps=-0"), parsed("layernorm/cols=64/eps=0"));
  EXPECT_FALSE(std::signbit(parsed("layernorm/cols=64/eps=-0").epsilon));
  EXPECT_EQ(parsed("layernorm/cols=64/f32/out=f32/w=f32/wb/scale=1"), parsed("layernorm/cols=64/wb"));
}

TEST(ParseSpec, ReadsNumbersToTheBit) {
  EXPECT_EQ(parsed("layernorm/cols=1/eps=1.0000000000000003e-05").epsilon, std::nextafter(1e-5, 1));
  EXPECT_EQ(parsed("layernorm/cols=1/eps=5e-324").epsilon, std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(parsed("layernorm/cols=1/f64/scale=-1.7976931348623157e+308").scale,
            -std::numeric_limits<double>::max());
}

struct BadText {
  const char* text;
  Code code;
  const char* says;
};

TEST(ParseSpec, NamesEachMistake) {
  for (const BadText& bad : std::initializer_list<BadText>{
           // The frame.
           {"", Code::BadSpecText, "does not begin with 'layernorm/'"},
           {"/", Code::BadSpecText, "does not begin with 'layernorm/'"},
           {"cols=64/f32", Code::BadSpecText, "does not begin with 'layernorm/'"},
           {"LayerNorm/cols=64", Code::BadSpecText, "does not begin with 'layernorm/'"},
           {" layernorm/cols=64", Code::BadSpecText, "does not begin with 'layernorm/'"},
           {"layernorms/cols=64", Code::BadSpecText, "does not begin with 'layernorm/'"},
           {"layernorm", Code::BadSpecText, "neither cols= nor shape="},
           {"layernorm/f32/eps=1e-05", Code::BadSpecText, "neither cols= nor shape="},
           {"layernorm/", Code::BadSpecText, "unknown field ''"},
           {"layernorm//cols=64", Code::BadSpecText, "unknown field ''"},
           {"layernorm/cols=64/", Code::BadSpecText, "unknown field ''"},
           {"rmsnorm", Code::BadSpecText, "neither cols= nor shape="},
           {"rms/cols=64", Code::BadSpecText, "does not begin with 'layernorm/' or 'rmsnorm/'"},
           {"layernorm/cols=64/rmsnorm", Code::BadSpecText, "norm is given twice"},
           // Fields that do not go together.
           {"layernorm/cols=64/sum", Code::BadCombination, "sum needs something that happens to x"},
           {"layernorm/cols=64/bf16/round=sum/w", Code::BadCombination,
            "rounding of the sum needs something"},
           {"layernorm/cols=64/bf16/round=norm", Code::BadCombination, "needs a weight or a modulation"},
           {"layernorm/cols=64/w:rows/cf", Code::BadCombination, "exclude a weight for each row"},
           {"layernorm/cols=64/gateafter/relu", Code::BadCombination,
            "a gate behind the norm excludes an activation: leave out the activation (/relu)"},
           // Gradients.
           {"layernorm/cols=64/dsum", Code::BadSpecText, "dsum describes what it does not have"},
           {"layernorm/cols=64/w/dw=f32", Code::BadSpecText, "dw= describes what it does not have"},
           {"layernorm_bwd/cols=64/dw=f32", Code::BadSpecText, "dw= describes what it does not have"},
           {"layernorm_bwd/cols=64/res=f16", Code::BadSpecText, "res= describes what it does not have"},
           {"layernorm_bwd/cols=64/w/dw=f8", Code::BadDType, "'f8'"},
           {"layernorm_bwd/cols=64/w/dw=e4m3", Code::BadDType, "gradient_type is e4m3; it must be one of"},
           {"layernorm_bwd/cols=64/w/dw=f32/dw=f32", Code::BadSpecText, "gradient_type is given twice"},
           {"layernorm_bwd/cols=64/dsum/dsum", Code::BadSpecText, "dsum is given twice"},
           {"layernorm_bwd/cols=64/dsum=f32", Code::BadSpecText, "unknown field 'dsum='"},
           {"layernorm/cols=64/w/need=dx", Code::BadSpecText, "need= describes what it does not have"},
           {"layernorm_bwd/cols=64/w/need=dw/dw=f32/need=dw", Code::BadSpecText, "need is given twice"},
           {"layernorm_bwd/cols=64/w/need=dx/dw=f32", Code::BadSpecText,
            "dw= describes what it does not have"},
           {"layernorm_bwd/cols=64/w/need=dw+dx", Code::BadSpecText,
            "'dw+dx' is no need; it must be one of all, dx, dx+dw, dx+db, dw+db, dw, db"},
           {"layernorm_bwd/cols=64/w/need", Code::BadSpecText, "unknown field 'need'"},
           {"layernorm_bwd/cols=64/need=dw", Code::BadCombination, "no gradient remains"},
           {"layernorm_bwd/cols=64/w/need=db", Code::BadCombination,
            "and there is no bias. Add it (/w, /wb)"},
           {"layernorm_bwd/cols=64/w/dsum/need=dw", Code::BadCombination,
            "dsum is added to dx, which need=dw leaves out"},
           {"layernorm_bwd/cols=64/gateafter/relu", Code::BadCombination,
            "a gate behind the norm excludes an activation"},
           {"layernorm_bwd/cols=64/gate:table", Code::BadCombination, "a backward spec excludes gate_table"},
           {"layernorm_bwd/cols=64/inb", Code::BadCombination, "a backward spec excludes in_bias"},
           {"layernorm_bwd/cols=64/add", Code::BadCombination, "a backward spec excludes residual"},
           {"layernorm_bwd/cols=64/gate/mod", Code::BadCombination,
            "a backward spec has a gate or a modulation, not both"},
           {"layernorm_bwd/cols=64/w:rows", Code::BadCombination, "a backward spec excludes affine_rows"},
           {"layernorm_bwd/cols=64/cf", Code::BadCombination, "a backward spec excludes channels_first"},
           {"layernorm_bwd/cols=64/out=e5m2", Code::BadCombination, "a backward spec has no output of e5m2"},
           {"layernorm_bwd", Code::BadSpecText, "neither cols= nor shape="},
           {"layernorm_bwd_bwd/cols=64", Code::BadSpecText, "does not begin with 'layernorm/'"},
           {"layernorm_fwd/cols=64", Code::BadSpecText, "does not begin with 'layernorm/'"},
           {"_bwd/cols=64", Code::BadSpecText, "does not begin with 'layernorm/'"},
           {"layernorm/cols=64/_bwd", Code::BadSpecText, "unknown field '_bwd'"},
           {"layernorm/cols=64/w_bwd", Code::BadSpecText, "'_bwd' does not belong behind 'w'"},
           {"layernorm/cols=64/rmsnorm_bwd", Code::BadSpecText, "norm is given twice"},
           {"layernorm1/cols=64", Code::BadSpecText, "'1' does not belong behind 'layernorm'"},
           // Gates and modulations.
           {"layernorm/cols=64/gate/gateafter", Code::BadSpecText, "gate is given twice"},
           {"layernorm/cols=64/gate:relu", Code::BadSpecText, "':relu' does not belong behind 'gate'"},
           {"layernorm/cols=64/gate:none", Code::BadSpecText, "':none' does not belong behind 'gate'"},
           {"layernorm/cols=64/gate:", Code::BadSpecText, "':' does not belong behind 'gate'"},
           {"layernorm/cols=64/gate:table:silu", Code::BadSpecText, "':silu' does not belong behind 'gate'"},
           {"layernorm/cols=64/gate:silu:tanh", Code::BadSpecText, "':tanh' does not belong behind 'gate'"},
           {"layernorm/cols=64/gate0", Code::BadSpecText, "'0' does not belong behind 'gate'"},
           {"layernorm/cols=64/mod1", Code::BadSpecText, "'1' does not belong behind 'mod'"},
           {"layernorm/cols=64/mod:silu", Code::BadSpecText, "':silu' does not belong behind 'mod'"},
           {"layernorm/cols=64/mod:table0", Code::BadSpecText, "':table0' does not belong behind 'mod'"},
           {"layernorm/cols=64/w:table", Code::BadSpecText, "':table' does not belong behind 'w'"},
           {"layernorm/cols=64/mod/mods", Code::BadSpecText, "modulation is given twice"},
           {"layernorm/cols=64/mod=f32/w", Code::BadSpecText, "mod= describes what it does not have"},
           {"layernorm/cols=64/mod=f8/mod", Code::BadDType, "'f8'"},
           {"layernorm/cols=64/w2", Code::BadSpecText, "unknown field 'w2'"},
           {"layernorm/cols=64/add1", Code::BadSpecText, "'1' does not belong behind 'add'"},
           {"layernorm/cols=64/gelu:rows", Code::BadSpecText, "':rows' does not belong behind 'gelu'"},
           {"layernorm/cols=64/w:rows1", Code::BadSpecText, "does not belong behind 'w'"},
           {"layernorm/cols=64/w:rows:rows", Code::BadSpecText, "does not belong behind 'w'"},
           {"layernorm/cols=64/w11", Code::BadSpecText, "does not belong behind 'w'"},
           {"layernorm/cols=64/1", Code::BadSpecText, "unknown field '1'"},
           {"layernorm/cols=64/:rows", Code::BadSpecText, "unknown field ':rows'"},
           {"layernorm/cols=64/w1/w:rows", Code::BadSpecText, "affine is given twice"},
           {"layernorm/cols=64/bf16/add/round=norm+sum/w", Code::BadSpecText, "'norm+sum' is no rounding"},
           {"layernorm/cols=64/bf16/add/round=z/w", Code::BadSpecText, "must be one of none, sum, norm"},
           // Results of 8 bits.
           {"layernorm/cols=64/e4m3", Code::BadDType, "input is e4m3; it must be one of f16, bf16, f32, f64"},
           {"layernorm/cols=64/w=s8/w", Code::BadDType,
            "weight is s8; it must be one of f16, bf16, f32, f64"},
           {"layernorm/cols=64/out=s4", Code::BadDType, "'s4'"},
           {"layernorm/cols=64/out=s8", Code::BadCombination, "an output of s8 needs a scale"},
           {"layernorm/cols=64/out=e2m1/q=tensor", Code::BadCombination, "an output of e2m1 needs a scale"},
           {"layernorm/cols=64/f64/out=e5m2", Code::BadCombination, "this spec is computed in f64"},
           {"layernorm/cols=64/w=f64/w/out=s8/q=row", Code::BadCombination, "computed in f64"},
           {"layernorm/cols=64/q=row", Code::BadCombination, "quantization needs an output of 8 or 4 bits"},
           {"layernorm/cols=64/bf16/out=e4m3/round=y", Code::BadCombination,
            "rounding of y needs a quantization that follows"},
           {"layernorm/cols=64/bf16/round=y", Code::BadCombination,
            "rounding of y needs a quantization that follows"},
           {"layernorm/cols=64/out=s8/q=row/cf", Code::BadCombination, "exclude a scale for each row"},
           {"layernorm/cols=64/out=s8/q=row:inv", Code::BadSpecText, ":inv describes what it does not have"},
           {"layernorm/cols=64/out=s8/q=column", Code::BadSpecText, "'column' is no quantization"},
           {"layernorm/cols=64/out=s8/q=tensor:rows", Code::BadSpecText, "does not belong behind"},
           // Scales of blocks, and further results.
           {"layernorm/cols=128/out=e4m3/q=8", Code::BadSpecText,
            "'8' is no quantization; it must be one of none, tensor, row, 16, 32, 64, 128"},
           {"layernorm/cols=128/out=e4m3/q=block_32", Code::BadSpecText, "'block_32' is no quantization"},
           {"layernorm/cols=128/out=e4m3/q=128:f32", Code::BadSpecText,
            "':f32' does not belong behind 'q=128'"},
           {"layernorm/cols=128/out=e4m3/q=128:rows", Code::BadSpecText,
            "':rows' does not belong behind 'q=128'"},
           {"layernorm/cols=128/out=e4m3/q=128:power_of_two", Code::BadSpecText, "does not belong behind"},
           {"layernorm/cols=128/out=e4m3/q=128:cols:e8m0", Code::BadSpecText,
            "':e8m0' does not belong behind 'q=128'"},
           {"layernorm/cols=128/out=e4m3/q=128:e8m0:p2", Code::BadSpecText, "':p2' does not belong behind"},
           {"layernorm/cols=128/out=e4m3/q=128:", Code::BadSpecText, "':' does not belong behind 'q=128'"},
           {"layernorm/cols=128/out=e4m3/q=128:ub", Code::BadSpecText, ":ub describes what it does not have"},
           {"layernorm/cols=128/out=e4m3/q=128:inv", Code::BadSpecText, ":inv describes what it does not"},
           {"layernorm/cols=128/out=e4m3/q=tensor:ub", Code::BadSpecText,
            ":ub describes what it does not have"},
           {"layernorm/cols=128/out=e4m3/q=row:e8m0", Code::BadSpecText, "describes what it does not have"},
           {"layernorm/cols=128/out=e4m3/q=row:sw", Code::BadSpecText, "describes what it does not have"},
           {"layernorm/cols=128/out=e4m3/q=row:ub:ub", Code::BadSpecText, "does not belong behind"},
           {"layernorm/cols=128/out=e4m3/ub", Code::BadSpecText, "unknown field 'ub'"},
           {"layernorm/cols=128/out=e4m3/w:sw", Code::BadSpecText, "':sw' does not belong behind 'w'"},
           {"layernorm/cols=128/out=e8m0/q=row", Code::BadDType,
            "output is e8m0; it must be one of f16, bf16, f32, f64, e4m3, e5m2, s8, e2m1"},
           {"layernorm/cols=128/out=e4m3/q=32", Code::BadCombination,
            "blocks of 32 columns have no scales in f32: of 16 they are e8m0 or e4m3, of 32 e8m0"},
           {"layernorm/cols=128/out=e4m3/q=128:sw", Code::BadCombination,
            "scales in f32 cannot be laid out as sw"},
           {"layernorm/cols=128/out=e4m3/q=16:e4m3:cols4", Code::BadCombination,
            "scales in e4m3 cannot be laid out as cols4"},
           {"layernorm/cols=96/out=e4m3/q=64", Code::BadCombination, "do not divide rows of 96"},
           {"layernorm/cols=128/out=s8/q=row:ub", Code::BadCombination,
            "an upper bound needs an output of e4m3"},
           {"layernorm/cols=128/q=128", Code::BadCombination, "quantization needs an output of 8 or 4 bits"},
           {"layernorm/cols=128/out=e4m3/q=128/cf", Code::BadCombination, "exclude a scale for each block"},
           {"layernorm/cols=128/out=e4m3/q=tensor/also=f64", Code::BadSpecText,
            "'f64' is no also; it must be one of none, f16, bf16, f32"},
           {"layernorm/cols=128/also=bf16", Code::BadCombination, "needs a quantization of the first"},
           {"layernorm/cols=128/out=e4m3/q=tensor/also", Code::BadSpecText, "unknown field 'also'"},
           {"layernorm/cols=128/out=e4m3/q=row/amax", Code::BadCombination, "amax excludes a scale for each"},
           {"layernorm/cols=128/f64/amax", Code::BadCombination, "amax is of f32"},
           {"layernorm/cols=128/amax=1", Code::BadSpecText, "unknown field 'amax='"},
           {"layernorm/cols=128/amax/amax", Code::BadSpecText, "amax is given twice"},
           {"layernorm/cols=64/out=s8/q=tensor:inv:inv", Code::BadSpecText, "does not belong behind"},
           {"layernorm/cols=64/out=s8/tensor", Code::BadSpecText, "unknown field 'tensor'"},
           {"layernorm/cols=64/out=s8/q=row/q=row", Code::BadSpecText, "quantization is given twice"},
           {"layernorm/cols=64/add/addafter", Code::BadSpecText, "residual is given twice"},
           {"layernorm/cols=64/res=f32", Code::BadSpecText, "res= describes what it does not have"},
           // Unknown fields and words.
           {"layernorm/cols=64/sum=1", Code::BadSpecText, "unknown field 'sum='"},
           {"layernorm/cols=64/add=f32", Code::BadSpecText, "unknown field 'add='"},
           {"layernorm/cols=64/before", Code::BadSpecText, "unknown field 'before'"},
           {"layernorm/cols=64/dropout", Code::BadSpecText, "unknown field 'dropout'"},
           {"layernorm/cols=64/f8", Code::BadSpecText, "unknown field 'f8'"},
           {"layernorm/cols=64/none", Code::BadSpecText, "unknown field 'none'"},
           {"layernorm/cols=64/GELU", Code::BadSpecText, "unknown field 'GELU'"},
           {"layernorm/cols=64/f32 ", Code::BadSpecText, "unknown field 'f32 '"},
           {"layernorm/cols=64/rows=4", Code::BadSpecText, "unknown field 'rows='"},
           {"layernorm/cols=64/=4", Code::BadSpecText, "unknown field '='"},
           {"layernorm/columns=64", Code::BadSpecText, "unknown field 'columns='"},
           // Sizes.
           {"layernorm/cols=", Code::BadSpecText, "'' is not a size"},
           {"layernorm/cols=many", Code::BadSpecText, "'many' is not a size"},
           {"layernorm/cols=64.0", Code::BadSpecText, "'64.0' is not a size"},
           {"layernorm/cols=+64", Code::BadSpecText, "'+64' is not a size"},
           {"layernorm/cols= 64", Code::BadSpecText, "' 64' is not a size"},
           {"layernorm/cols=0x40", Code::BadSpecText, "use shape= for several"},
           {"layernorm/cols=8x8", Code::BadSpecText, "use shape= for several"},
           {"layernorm/cols=99999999999999999999", Code::BadSpecText, "is not a size"},
           {"layernorm/shape=", Code::BadSpecText, "'' is not a size"},
           {"layernorm/shape=8x", Code::BadSpecText, "'8x' is not a size"},
           {"layernorm/shape=x8", Code::BadSpecText, "'x8' is not a size"},
           {"layernorm/shape=8xx8", Code::BadSpecText, "'8xx8' is not a size"},
           {"layernorm/shape=8,8", Code::BadSpecText, "'8,8' is not a size"},
           {"layernorm/cols=0", Code::BadDimension, "dimension of 0"},
           {"layernorm/cols=-64", Code::BadDimension, "dimension of -64"},
           {"layernorm/shape=8x0x8", Code::BadDimension, "dimension of 0"},
           {"layernorm/shape=1x1x1x1x1x1x1x1x1", Code::BadRank, "9 dimensions"},
           {"layernorm/cols=2147483648", Code::TooManyColumns, "2147483648"},
           {"layernorm/shape=1099511627776x1099511627776", Code::TooManyColumns,
            "1099511627776x1099511627776"},
           // Numbers.
           {"layernorm/cols=64/eps=", Code::BadSpecText, "'' is not a number"},
           {"layernorm/cols=64/eps=small", Code::BadSpecText, "'small' is not a number"},
           {"layernorm/cols=64/eps=1e-5f", Code::BadSpecText, "'1e-5f' is not a number"},
           {"layernorm/cols=64/eps=0,00001", Code::BadSpecText, "'0,00001' is not a number"},
           {"layernorm/cols=64/eps=1e999", Code::BadSpecText, "'1e999' is not a number"},
           {"layernorm/cols=64/scale=two", Code::BadSpecText, "'two' is not a number"},
           {"layernorm/cols=64/eps=-1e-05", Code::BadEpsilon, "-1e-05"},
           {"layernorm/cols=64/eps=inf", Code::BadEpsilon, "inf"},
           {"layernorm/cols=64/eps=nan", Code::BadEpsilon, "nan"},
           {"layernorm/cols=64/scale=inf", Code::BadScale, "inf"},
           {"layernorm/cols=64/scale=-nan", Code::BadScale, "nan"},
           // DTypes of output and weights.
           {"layernorm/cols=64/out=fp16", Code::BadDType, "'fp16'"},
           {"layernorm/cols=64/out=", Code::BadDType, "''"},
           {"layernorm/cols=64/w=float/wb", Code::BadDType, "'float'"},
           {"layernorm/cols=64/w=f64", Code::BadSpecText, "w= describes what it does not have"},
           // Twice.
           {"layernorm/cols=64/cols=64", Code::BadSpecText, "columns is given twice"},
           {"layernorm/cols=64/shape=8x8", Code::BadSpecText, "columns is given twice"},
           {"layernorm/cols=64/f32/f32", Code::BadSpecText, "input is given twice"},
           {"layernorm/cols=64/f32/f16", Code::BadSpecText, "input is given twice"},
           {"layernorm/cols=64/out=f32/out=f32", Code::BadSpecText, "output is given twice"},
           {"layernorm/cols=64/w=f32/w=f32/w", Code::BadSpecText, "weight is given twice"},
           {"layernorm/cols=64/eps=1/eps=1", Code::BadSpecText, "epsilon is given twice"},
           {"layernorm/cols=64/w/wb", Code::BadSpecText, "affine is given twice"},
           {"layernorm/cols=64/relu/gelu", Code::BadSpecText, "activation is given twice"},
           {"layernorm/cols=64/scale=1/scale=2", Code::BadSpecText, "scale is given twice"},
           {"layernorm/cols=64/add/add", Code::BadSpecText, "residual is given twice"},
           {"layernorm/cols=64/add/sum/sum", Code::BadSpecText, "sum is given twice"},
           {"layernorm/cols=64/stats/stats", Code::BadSpecText, "statistics is given twice"},
       }) {
    const auto spec = parse_spec(bad.text);
    ASSERT_EQ(spec.code(), bad.code) << "'" << bad.text << "'";
    EXPECT_THAT(spec.error().message, HasSubstr(bad.says));
    if (bad.code == Code::BadSpecText) {
      EXPECT_THAT(spec.error().message,
                  AllOf(HasSubstr(concat({"'", bad.text, "'"})),
                        HasSubstr("The form is layernorm|rmsnorm[_bwd]/cols=N/f16|bf16|f32|f64[/out=f16|")));
    }
  }
}

// ---- Both ----

TEST(SpecText, RoundTripsAndTellsSpecsApart) {
  std::map<std::string, NormSpec> seen;
  for (std::uint64_t seed = 0; seed < 10'000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const NormSpec spec = random_spec(random, {.channels_first = true, .every_norm = true, .backward = true});
    const std::string text = to_text(spec);
    ASSERT_EQ(text.find_first_not_of(kShellSafe), text.npos) << text;
    const auto back = parse_spec(text);
    ASSERT_TRUE(back.ok()) << back.error().message;
    ASSERT_EQ(*back, canonical(spec)) << text;
    ASSERT_EQ(to_text(*back), text);
    const auto [at, fresh] = seen.emplace(text, *back);
    ASSERT_TRUE(fresh || at->second == *back) << "two specs share " << text;
  }
  EXPECT_GT(seen.size(), 9'000u) << "the random specs hardly differ";
}

// Changes of one field of one spec, the nearest there are, change the text.
TEST(SpecText, TellsNeighboursApart) {
  for (std::uint64_t seed = 0; seed < 2'000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const NormSpec spec =
        canonical(random_spec(random, {.channels_first = true, .every_norm = true, .backward = true}));
    NormSpec near = spec;
    switch (random.below(4)) {
      case 0:
        near.columns = spec.columns == 1 ? 2 : spec.columns - 1;
        break;
      case 1:
        near.epsilon = std::nextafter(spec.epsilon, 1);
        break;
      case 2:
        near.scale = std::nextafter(spec.scale, 0.1);
        break;
      case 3:
        near.statistics = !spec.statistics;
        break;
    }
    if (near == spec) continue;  // 1 and 0.1 are their own neighbours
    ASSERT_NE(to_text(near), to_text(spec));
  }
}

// Whatever a text is, the answer is a canonical spec or one of the documented errors.
void expect_sane_answer(const std::string& text) {
  const auto spec = parse_spec(text);
  if (spec.ok()) {
    EXPECT_TRUE(validate(*spec).ok()) << text;
    EXPECT_EQ(canonical(*spec), *spec) << text;
    EXPECT_EQ(parsed(to_text(*spec)), *spec) << text;
    return;
  }
  EXPECT_TRUE(spec.code() == Code::BadSpecText || spec.code() == Code::BadCombination ||
              (spec.code() >= Code::BadRank && spec.code() <= Code::BadScale))
      << text << ": " << code_name(spec.code());
  EXPECT_FALSE(spec.error().message.empty()) << text;
}

TEST(SpecText, GarbageIsAnsweredWithAnError) {
  for (std::uint64_t seed = 0; seed < 10'000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    std::string text = random.coin() ? "layernorm/" : "";
    for (auto length = random.below(60); length > 0; --length) text += static_cast<char>(random.bits());
    expect_sane_answer(text);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST(SpecText, MutatedTextsAreReadOrRefused) {
  constexpr std::string_view kPieces[] = {"/",     "=",   "x",         "-",    "cols=", "shape=8x8",
                                          "f16",   "w",   "w=",        "1e",   "9",     "/q=128",
                                          ":e8m0", ":sw", "/also=f16", "_bwd", "/dsum", "/dw=f32"};
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    std::string text =
        to_text(random_spec(random, {.channels_first = true, .every_norm = true, .backward = true}));
    for (auto changes = 1 + random.below(3); changes > 0; --changes) {
      const std::size_t at = random.below(text.size() + 1);
      switch (random.below(4)) {
        case 0:
          text.erase(at, 1 + random.below(4));
          break;
        case 1:
          text.insert(at, random.one_of(kPieces));
          break;
        case 2:
          text.insert(at, 1, static_cast<char>(random.bits()));
          break;
        case 3:
          text.resize(at);
          break;
      }
    }
    expect_sane_answer(text);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
    refused += !parse_spec(text).ok();
  }
  EXPECT_GT(refused, 5'000);
  EXPECT_LT(refused, 20'000);
}

}  // namespace
}  // namespace normjit
