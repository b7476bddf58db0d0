// SPDX-License-Identifier: Apache-2.0
#include "normjit/codegen/generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <locale>
#include <map>
#include <set>
#include <vector>

#include "normjit/base/digest.h"
#include "normjit/base/text.h"
#include "normjit/codegen/templates.h"
#include "tests/support/random_spec.h"

namespace normjit {
namespace {

using testing::HasSubstr;

const NormSpec kSpec{.columns = 4096, .affine = Affine::weight_bias, .statistics = true};
const Plan kPlan{
    .strategy = Strategy::block_row, .threads = 256, .threads_per_row = 256, .vector = 4, .per_thread = 4};
constexpr Arch kArch{.number = 90};

Source generated(const NormSpec& spec, const Plan& plan = kPlan, Arch arch = kArch) {
  auto source = generate(spec, plan, arch, "");
  EXPECT_TRUE(source.ok()) << source.error().message;
  return std::move(source).value();
}

// What stands between `name = ` and the end of the definition or of the enumerator.
std::string constant(const std::string& text, const std::string& name) {
  const std::size_t at = text.find(" " + name + " = ");
  if (at == text.npos) return "no constant " + name;
  const std::size_t begin = at + name.size() + 4;
  return text.substr(begin, std::min(text.find_first_of(",;", begin), text.find(" }", begin)) - begin);
}

TEST(Generate, TheSameArgumentsGiveTheSameText) {
  const Source source = generated(kSpec);
  EXPECT_TRUE(generated(kSpec).text == source.text);
  EXPECT_EQ(source.kernel, "normjit_block_row_layernorm_cols_4096_f32_eps_1e_05_wb_stats");
  EXPECT_EQ(
      source.description,
      "layernorm/cols=4096/f32/eps=1e-05/wb/stats as block_row threads=256 threads_per_row=256 vector=4 "
      "per_thread=4 group_rows=1 blocks_per_sm=1");
}

TEST(Generate, DraftsHaveOneDigestExactlyIfTheirSourcesHaveOneText) {
  std::map<std::string, std::string> text_of;  // by digest
  std::set<std::string> texts;
  for (const Arch arch : {Arch{75}, Arch{90}})
    for (const Plan& plan : plans(kSpec, DeviceProfile::of(arch).value())) {
      const Draft files = draft(kSpec, plan, arch, "").value();
      const Source source = files.source();
      EXPECT_EQ(text_of.try_emplace(files.digest(), source.text).first->second, source.text);
      texts.insert(source.text);
      EXPECT_EQ(files.kernel, source.kernel);
    }
  EXPECT_EQ(text_of.size(), texts.size());
  EXPECT_GT(texts.size(), 2u);
}

TEST(Generate, TheDigestOfADraftChangesWithEachByteOfAnyFile) {
  Draft files =
      draft(kSpec, choose(kSpec, DeviceProfile::of(Arch{90}).value(), RowsRegime::many, Alignment::eight),
            Arch{90}, "")
          .value();
  const std::string before = files.digest();
  for (Draft::File& file : files.files) {
    const Draft::File kept = file;
    file.text = {std::string(kept.text.view()), {}};
    EXPECT_EQ(files.digest(), before) << "the same text, read from a file: " << file.name;
    file.text.read.back() ^= 1;
    EXPECT_NE(files.digest(), before) << file.name;
    file = kept;
    file.name += 'x';
    EXPECT_NE(files.digest(), before) << file.name;
    file = kept;
  }
  EXPECT_EQ(files.digest(), before);
}

TEST(Generate, EqualSpecsGiveTheSameText) {
  EXPECT_TRUE(generated({.columns = 4096, .weight = DType::f64, .epsilon = -0.0}).text ==
              generated({.columns = 4096, .epsilon = 0}).text);
}

TEST(Generate, EveryFieldOfTheSpecIsInTheText) {
  std::set<std::string> texts = {generated(kSpec).text};
  const auto differs = [&](auto change) {
    NormSpec spec = kSpec;
    change(spec);
    return texts.insert(generated(spec).text).second;
  };
  EXPECT_TRUE(differs([](auto& s) { s.norm = Norm::rms; }));
  EXPECT_TRUE(differs([](auto& s) { s.columns = 4092; }));
  EXPECT_TRUE(differs([](auto& s) { s.residual = Residual::before; }));
  EXPECT_TRUE(differs([](auto& s) {
    s.residual = Residual::before;
    s.sum = true;
  }));
  for (const DType dtype : {DType::f16, DType::bf16, DType::f64}) {
    EXPECT_TRUE(differs([&](auto& s) { s.input = dtype; })) << name(dtype);
    EXPECT_TRUE(differs([&](auto& s) { s.output = dtype; })) << name(dtype);
    EXPECT_TRUE(differs([&](auto& s) { s.weight = dtype; })) << name(dtype);
  }
  EXPECT_TRUE(differs([](auto& s) { s.epsilon = std::nextafter(s.epsilon, 1); }));
  EXPECT_TRUE(differs([](auto& s) { s.affine = Affine::weight; }));
  EXPECT_TRUE(differs([](auto& s) { s.affine = Affine::none; }));
  for (const Activation activation :
       {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu})
    EXPECT_TRUE(differs([&](auto& s) { s.activation = activation; })) << name(activation);
  EXPECT_TRUE(differs([](auto& s) { s.scale = std::nextafter(s.scale, 2); }));
  EXPECT_TRUE(differs([](auto& s) { s.statistics = false; }));
}

TEST(Generate, EveryFieldOfThePlanAndTheArchitectureAreInTheText) {
  std::set<std::string> texts = {generated(kSpec).text};
  const auto differs = [&](auto change) {
    Plan plan = kPlan;
    change(plan);
    return texts.insert(generated(kSpec, plan).text).second;
  };
  EXPECT_TRUE(differs([](auto& p) { p.strategy = Strategy::warp_rows; }));
  EXPECT_TRUE(differs([](auto& p) { p.strategy = Strategy::persistent_row; }));
  EXPECT_TRUE(differs([](auto& p) { p.strategy = Strategy::split_row; }));
  EXPECT_TRUE(differs([](auto& p) { p.threads = 512; }));
  EXPECT_TRUE(differs([](auto& p) { p.threads_per_row = 512; }));
  EXPECT_TRUE(differs([](auto& p) { p.vector = 2; }));
  EXPECT_TRUE(differs([](auto& p) { p.per_thread = 5; }));
  EXPECT_TRUE(differs([](auto& p) { p.group_rows = 4; }));
  EXPECT_TRUE(differs([](auto& p) { p.blocks_per_sm = 2; }));
  EXPECT_TRUE(differs([](auto& p) { p.blocks_per_row = 2; }));
  EXPECT_TRUE(differs([](auto& p) { p.exchange = Exchange::cluster; }));
  EXPECT_TRUE(differs([](auto& p) { p.exchange = Exchange::grid; }));
  EXPECT_TRUE(differs([](auto& p) { p.unaligned = true; }));
  EXPECT_TRUE(differs([](auto& p) { p.stages = 8; }));
  for (const DeviceProfile& device : DeviceProfile::known())
    if (device.arch != kArch) {
      EXPECT_TRUE(texts.insert(generated(kSpec, kPlan, device.arch).text).second) << device.text();
    }
}

TEST(Generate, RandomSpecsShareATextOnlyWhenTheyAreEqual) {
  std::map<std::string, NormSpec> seen;
  for (std::uint64_t seed = 0; seed < 1'000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const NormSpec spec = canonical(random_spec(random));
    const Plan plan = choose(spec, DeviceProfile::of(kArch).value(), random.one_of(kRowsRegimes),
                             random.one_of(kAlignments));
    const Source source = generated(spec, plan);
    ASSERT_TRUE(source.kernel.starts_with(concat({"normjit_", name(plan.strategy), "_layernorm_cols_"})))
        << source.kernel;
    ASSERT_EQ(seen.emplace(source.text, spec).first->second, spec);
  }
}

// Compilers then name the template and its line; and each part is the file, byte for byte.
TEST(Generate, JoinsTheTemplatesByLineDirectives) {
  std::set<std::string, std::less<>> used;
  const auto check_files_of = [&](Strategy strategy, bool backward) {
    Plan plan = kPlan;
    plan.strategy = strategy;
    const std::string text =
        generated(backward ? NormSpec{.backward = true, .columns = 64} : kSpec, plan).text;
    EXPECT_TRUE(text.starts_with("#line 1 \"spec.cuh\"\n"));
    EXPECT_EQ(text.find("{{"), text.npos);
    std::size_t parts = 1;
    for (const EmbeddedFile& file : embedded_templates()) {
      const std::string part = "#line 1 \"" + std::string(file.name) + "\"\n" + std::string(file.text);
      const std::size_t at = text.find(part);
      if (at == text.npos) continue;
      EXPECT_EQ(text.find(part, at + 1), text.npos) << file.name << " twice";
      EXPECT_TRUE(at == 0 || text[at - 1] == '\n');
      used.insert(std::string(file.name));
      ++parts;
    }
    std::size_t directives = 0;
    for (std::size_t at = 0; (at = text.find("#line ", at)) != text.npos; ++at) ++directives;
    EXPECT_EQ(directives, parts);
    const std::string_view of_gradients = strategy == Strategy::generic && backward ? "_gradients" : "";
    EXPECT_TRUE(used.contains(concat({"schedule/", name(strategy), of_gradients, ".cu"}))) << name(strategy);
  };
  for (const Strategy strategy :
       {Strategy::warp_rows, Strategy::staged_rows, Strategy::block_row, Strategy::persistent_row,
        Strategy::split_row, Strategy::channels_first, Strategy::generic})
    check_files_of(strategy, false);
  for (const Strategy strategy :
       {Strategy::gradient_rows, Strategy::gradient_ring, Strategy::gradient_columns, Strategy::generic})
    check_files_of(strategy, true);
  EXPECT_EQ(used.size() + 1, embedded_templates().size()) << "a template that no kernel uses";
}

// Epsilon and scale of a spec that computes in T, as the kernel's compiler reads them, are those of the spec.
template <class T>
void expect_exact(DType dtype, double epsilon, double scale) {
  const std::string text =
      generated({.columns = 4096, .input = dtype, .epsilon = epsilon, .scale = scale}).text;
  for (const auto& [name, value] : {std::pair{"kEpsilon", epsilon}, std::pair{"kScale", scale}}) {
    const std::string written = constant(text, name);
    EXPECT_THAT(written, HasSubstr("0x")) << "exact only in hexadecimal";
    char* end = nullptr;
    const T read = static_cast<T>(std::strtod(written.c_str(), &end)), expected = static_cast<T>(value);
    EXPECT_TRUE(read == expected && std::signbit(read) == std::signbit(expected)) << name << " = " << written;
    EXPECT_EQ(*end, '\0') << written;
  }
}

TEST(Generate, NumbersReadBackToTheBit) {
  constexpr double kTiny = std::numeric_limits<double>::denorm_min();
  constexpr double kHuge = std::numeric_limits<double>::max();
  expect_exact<double>(DType::f64, 1e-5, 1);
  expect_exact<double>(DType::f64, 0, 0);
  expect_exact<double>(DType::f64, std::nextafter(1e-5, 1), -0.0);
  expect_exact<double>(DType::f64, kTiny, -kTiny);
  expect_exact<double>(DType::f64, kHuge, -kHuge);
  expect_exact<float>(DType::f32, std::nextafter(1e-5, 1), -0.0);
  for (std::uint64_t seed = 0; seed < 1'000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const NormSpec wide = canonical(random_spec(random));
    expect_exact<double>(DType::f64, wide.epsilon, wide.scale);
    const NormSpec tame = canonical(random_spec(random, {.tame = true}));
    expect_exact<float>(DType::f16, tame.epsilon, tame.scale);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Generate, WritesTheConstantsThatTheKernelsAreMadeOf) {
  const std::string text = generated({.columns = 2147483647,
                                      .input = DType::f16,
                                      .output = DType::bf16,
                                      .weight = DType::f32,
                                      .affine = Affine::weight,
                                      .activation = Activation::gelu_tanh})
                               .text;
  EXPECT_EQ(constant(text, "kColumns"), "2147483647");
  EXPECT_EQ(constant(text, "Input"), "F16");
  EXPECT_EQ(constant(text, "Output"), "BF16");
  EXPECT_EQ(constant(text, "Weight"), "float");
  EXPECT_EQ(constant(text, "Acc"), "float");
  EXPECT_EQ(constant(text, "kHasWeight"), "true");
  EXPECT_EQ(constant(text, "kHasBias"), "false");
  EXPECT_THAT(text,
              HasSubstr("enum class Activation { none, relu, gelu, gelu_tanh, silu, chosen = gelu_tanh };"));
  EXPECT_EQ(constant(text, "kHasStatistics"), "false");
  EXPECT_THAT(text, HasSubstr("enum class Norm { layer, rms, chosen = layer };"));
  EXPECT_THAT(text, HasSubstr("enum class ResidualAt { none, before, after, chosen = none };"));
  EXPECT_EQ(constant(text, "kWritesSum"), "false");
  const std::string other =
      generated({.norm = Norm::rms, .columns = 64, .residual = Residual::before, .sum = true}).text;
  EXPECT_THAT(other, HasSubstr("enum class Norm { layer, rms, chosen = rms };"));
  EXPECT_THAT(other, HasSubstr("enum class ResidualAt { none, before, after, chosen = before };"));
  EXPECT_EQ(constant(other, "kWritesSum"), "true");
  EXPECT_EQ(constant(text, "kArch"), "90");
  EXPECT_EQ(constant(text, "kThreads"), "256");
  EXPECT_EQ(constant(text, "kPerThread"), "4");
  EXPECT_EQ(constant(text, "kBlocksPerRow"), "1");
  EXPECT_THAT(text, HasSubstr("enum class Exchange { none, cluster, grid, chosen = none };"));
  EXPECT_EQ(constant(text, "kUnaligned"), "false");
  EXPECT_EQ(constant(text, "kStages"), "0");
}

TEST(Generate, WritesHowBlocksShareARow) {
  Plan plan = kPlan;
  plan.blocks_per_row = 8;
  plan.exchange = Exchange::cluster;
  plan.unaligned = true;
  const std::string clusters = generated(kSpec, plan).text;
  EXPECT_EQ(constant(clusters, "kBlocksPerRow"), "8");
  EXPECT_THAT(clusters, HasSubstr("enum class Exchange { none, cluster, grid, chosen = cluster };"));
  EXPECT_EQ(constant(clusters, "kUnaligned"), "true");
  plan = {Strategy::persistent_row, 512, 256, 4, 2, 1, 1, 16, Exchange::grid, false, 28};
  const std::string streamed = generated(kSpec, plan).text;
  EXPECT_EQ(constant(streamed, "kBlocksPerRow"), "16");
  EXPECT_THAT(streamed, HasSubstr("enum class Exchange { none, cluster, grid, chosen = grid };"));
  EXPECT_EQ(constant(streamed, "kStages"), "28");
  EXPECT_EQ(constant(streamed, "kThreadsPerRow"), "256");
}

// A locale that writes 4.096,5 for streams, and for printf and strtod where the machine has one.
class CommaLocale {
 public:
  CommaLocale() {
    std::locale::global(std::locale(std::locale::classic(), new Comma));
    for (const char* name : {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE"})
      if (std::setlocale(LC_ALL, name) != nullptr) break;
  }
  ~CommaLocale() {
    std::locale::global(std::locale::classic());
    std::setlocale(LC_ALL, "C");
  }

 private:
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
};

TEST(Generate, TheLocaleOfTheHostDoesNotMatter) {
  const NormSpec spec{.columns = 4194304, .epsilon = 0.1, .scale = -1234567.5};
  const Source source = generated(spec);
  const std::string spec_text = to_text(spec);
  const CommaLocale locale;
  EXPECT_TRUE(generated(spec).text == source.text);
  EXPECT_EQ(generated(spec).description, source.description);
  EXPECT_EQ(to_text(spec), spec_text);
  EXPECT_EQ(parse_spec(spec_text).value(), spec);
}

}  // namespace
}  // namespace normjit
