// SPDX-License-Identifier: Apache-2.0
// The manifests in cache/manifests: readable, canonical, and with what the published models have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "cli/manifest.h"

namespace normjit::cli {
namespace {

namespace fs = std::filesystem;
using testing::Contains;

const fs::path kFolder = NORMJIT_SOURCE_DIR "/cache/manifests";

std::vector<fs::path> shipped() {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(kFolder)) paths.push_back(entry.path());
  return paths;
}

std::vector<NormSpec> specs_of(const fs::path& path) {
  Result<std::vector<NormSpec>> specs = read_manifest(path.string());
  EXPECT_TRUE(specs.ok()) << (specs.ok() ? "" : specs.error().message);
  return specs ? *specs : std::vector<NormSpec>{};
}

// What one family must have in each of its dtypes.
struct Fact {
  std::string family;
  std::vector<std::int64_t> columns;
  double epsilon;
  std::vector<std::string> ends;  // of the texts
  std::vector<DType> dtypes;
  Norm norm = Norm::layer;
};

const std::vector<DType> kAll = {DType::f32, DType::f16, DType::bf16};
const std::vector<DType> kHalf = {DType::f16, DType::bf16};
const std::vector<DType> kBf16 = {DType::bf16};

// Of norms that stand before attention and feed-forward: alone, and with the residual, whose sum is kept or
// rounded.
const std::vector<std::string> kPreNorm = {"w", "round=norm/w", "add/sum/w", "add/sum/round=sum/w",
                                           "add/sum/round=sum+norm/w"};
const std::vector<std::string> kGemma = {"w1", "add/sum/w1", "add/sum/round=sum/w1"};
// In FP8: with one scale and with one for each token, and with one for each 128 columns, of either kind; in
// front of experts the router takes the result in bf16.
const std::vector<std::string> kOfTokens = {
    "out=e4m3/round=y/w/q=tensor", "out=e4m3/add/sum/round=sum+y/w/q=tensor",
    "out=e4m3/round=norm+y/w/q=row", "out=e4m3/add/sum/round=norm+y/w/q=row"};
const std::vector<std::string> kBounded = {"out=e4m3/round=norm+y/w/q=row:ub",
                                           "out=e4m3/add/sum/round=norm+y/w/q=row:ub"};
const std::vector<std::string> kOfBlocks = {"out=e4m3/round=norm+y/w/q=128:cols",
                                            "out=e4m3/round=norm+y/w/q=128:e8m0:cols4"};
const std::vector<std::string> kOfBlocksOfSums = {"out=e4m3/add/sum/round=norm+y/w/q=128:cols",
                                                  "out=e4m3/add/sum/round=norm+y/w/q=128:e8m0:cols4"};
const std::vector<std::string> kForExperts = {"out=e4m3/add/sum/round=norm+y/w/q=128:cols/also=bf16",
                                              "out=e4m3/add/sum/round=norm+y/w/q=128:e8m0:cols4/also=bf16"};
const std::vector<std::string> kWan = {"w=f32/mod:table", "w=f32/gate:table/add/sum/round=sum/wb",
                                       "w=f32/add/sum/round=sum/mod:table"};

// From the configs and the code that the models were published with.
const std::vector<Fact> kFacts = {
    {"gpt2", {768, 1024, 1280, 1600}, 1e-5, {"wb"}, kAll},
    {"bert", {256, 384, 512, 768, 1024, 2048, 4096}, 1e-12, {"inb/add/wb", "add/wb"}, kAll},
    {"bert", {768, 1024}, 1e-5, {"inb/add/wb", "add/wb"}, kAll},
    {"bert", {768, 1024}, 1e-5, {"add/sum/w", "add/sum/round=sum/w"}, kAll},
    {"bert", {128, 256, 384, 512, 768, 1024, 2048, 4096}, 1e-12, {"wb"}, kAll},
    {"bert", {768, 1024}, 1e-5, {"wb"}, kAll},  // RoBERTa
    {"bert", {768, 1024}, 1e-5, {"w"}, kAll},   // ModernBERT
    {"vit", {192, 384, 512, 768, 1024, 1280}, 1e-12, {"wb"}, kAll},
    {"vit", {192, 384, 768, 1024, 1280, 1408, 1536}, 1e-6, {"wb"}, kAll},
    {"whisper", {384, 512, 768, 1024, 1280}, 1e-5, {"wb"}, kAll},
    {"whisper", {384, 512, 768, 1024, 1280}, 1e-5, {"add/sum/wb", "add/sum/round=sum/wb"}, kAll},
    {"clip", {512, 640, 768, 896, 1024, 1280, 1408, 1664}, 1e-5, {"wb"}, kAll},
    {"clip", {768, 1024, 1152, 1536}, 1e-6, {"wb"}, kAll},  // SigLIP
    {"stable-diffusion", {320, 640, 768, 1024, 1280, 1536}, 1e-5, {"wb"}, kAll},
    {"dit", {384, 768, 1024, 1152, 1536, 2432, 3072}, 1e-6, {""}, kAll},
    {"dit", {1152}, 1e-5, {""}, kAll},
    {"dit", {384, 768, 1024, 1152}, 1e-6, {"mod"}, kAll},
    {"dit", {384, 768, 1024, 1152}, 1e-6, {"gate/add/sum/mod"}, {DType::f32}},
    {"dit", {384, 768, 1024, 1152}, 1e-6, {"gate/add/sum/round=sum/mod"}, kHalf},
    {"dit", {1152}, 1e-6, {"mod:table"}, kAll},  // PixArt
    {"dit", {1152}, 1e-6, {"gate:table/add/sum/mod:table"}, {DType::f32}},
    {"dit", {1152}, 1e-6, {"gate:table/add/sum/round=sum/mod:table"}, kHalf},
    {"sd3", {1536, 2432}, 1e-6, {"mod", "gate/add/sum/round=sum/mod"}, kHalf},
    {"flux", {3072}, 1e-6, {"mod", "gate/add/sum/round=sum/mod"}, kHalf},
    {"flux", {128}, 1e-6, {"w"}, kHalf, Norm::rms},
    {"wan", {1536, 3072, 5120}, 1e-6, kWan, kHalf},
    {"wan", {1536, 3072, 5120}, 1e-6, {"w"}, kHalf, Norm::rms},
    {"mamba2",
     {1536, 2048, 3072, 4096, 5120},
     1e-5,
     {"gate:silu/w", "gate:silu/round=norm/w"},
     kHalf,
     Norm::rms},
    {"mamba2", {768, 1024, 1536, 2048, 2560}, 1e-5, {"w", "res=f32/add/sum/w"}, kHalf, Norm::rms},
    {"mamba2", {1024}, 1e-5, {"gate:silu/w:rows", "gate:silu/round=norm/w:rows"}, kHalf, Norm::rms},
    {"qwen3-next", {128}, 1e-6, {"gateafter:silu/w", "gateafter:silu/round=norm/w"}, kHalf, Norm::rms},
    {"qwen3-next", {2048}, 1e-6, {"w1", "add/sum/w1"}, kHalf, Norm::rms},
    {"qwen3-next", {256}, 1e-6, {"w1"}, kHalf, Norm::rms},
    {"convnext", {40, 80, 160, 320}, 1e-6, {"wb"}, kAll},
    {"convnext", {48, 96, 192, 384}, 1e-6, {"wb"}, kAll},
    {"convnext", {64, 128, 256, 512}, 1e-6, {"wb"}, kAll},
    {"convnext", {640, 768, 1024, 1536, 2048}, 1e-6, {"wb"}, kAll},
    {"convnext", {352, 704, 1408, 2816}, 1e-6, {"wb"}, kAll},
    {"convnext", {320, 384, 512, 640, 768, 1024, 1536, 2048, 2816}, 1e-12, {"wb"}, kAll},
    {"convnext", {384, 768, 1536, 3072}, 1e-5, {"wb"}, kAll},
    {"convnext", {96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048}, 1e-6, {"wb/cf"}, kAll},
    {"llama-widths", {2048, 3072, 4096, 5120, 6656, 8192, 16384}, 1e-5, {"wb"}, kHalf},
    {"llama-widths", {2048, 3072, 4096, 5120, 6656, 8192, 16384}, 1e-5, {"w"}, kHalf},
    {"llama", {2048, 3072, 4096, 5120, 8192, 16384}, 1e-5, kPreNorm, kHalf, Norm::rms},
    {"llama", {4096, 5120, 6656, 8192}, 1e-6, kPreNorm, kHalf, Norm::rms},  // Llama 1
    {"qwen3", {1024, 2048, 2560, 4096, 5120}, 1e-6, kPreNorm, kHalf, Norm::rms},
    {"qwen3-heads", {128}, 1e-6, {"w", "round=norm/w", "w:rows", "round=norm/w:rows"}, kHalf, Norm::rms},
    {"llama-fp8", {4096, 8192, 16384}, 1e-5, kOfTokens, kBf16, Norm::rms},  // 8B, 70B and 405B of Llama 3.1
    {"llama-fp8", {16384}, 1e-5, kBounded, kBf16, Norm::rms},
    {"qwen3-fp8", {1024, 2048, 2560, 4096, 5120}, 1e-6, kOfBlocks, kBf16, Norm::rms},
    {"qwen3-fp8", {1024, 2048, 2560, 4096, 5120}, 1e-6, kOfBlocksOfSums, kBf16, Norm::rms},
    {"qwen3-fp8", {2048, 4096}, 1e-6, kForExperts, kBf16, Norm::rms},
    {"deepseek-v3-fp8", {512, 1536, 7168}, 1e-6, kOfBlocks, kBf16, Norm::rms},
    {"deepseek-v3-fp8", {7168}, 1e-6, kOfBlocksOfSums, kBf16, Norm::rms},
    {"deepseek-v3-fp8", {7168}, 1e-6, kForExperts, kBf16, Norm::rms},
    {"deepseek-v3-fp8", {7168}, 1e-6, {"add/sum/w", "add/sum/round=sum/w"}, kBf16, Norm::rms},
    {"deepseek-v3-fp8", {512}, 1e-6, {"w", "round=norm/w"}, kBf16, Norm::rms},
    {"gemma", {2048, 3072}, 1e-6, kGemma, kBf16, Norm::rms},                   // Gemma 1
    {"gemma", {2304, 3584, 4608}, 1e-6, kGemma, kBf16, Norm::rms},             // Gemma 2
    {"gemma", {640, 1152, 2560, 3840, 5376}, 1e-6, kGemma, kBf16, Norm::rms},  // Gemma 3
    {"gemma", {640, 1152, 2304, 2560, 3584, 3840, 4608, 5376}, 1e-6, {"addafter/w1"}, kBf16, Norm::rms},
    {"gemma-heads", {128, 256}, 1e-6, {"w1", "w1:rows"}, kBf16, Norm::rms},
};

// The layers of a fact, one for each of its widths, dtypes and ends.
std::vector<NormSpec> specs_of(const Fact& fact) {
  std::vector<NormSpec> specs;
  for (const std::int64_t columns : fact.columns)
    for (const DType dtype : fact.dtypes)
      for (const std::string& end : fact.ends) {
        const bool rounds = end.find("round=") != std::string::npos;
        if (rounds && dtype == DType::f32) continue;  // to the type in which it is computed
        const NormSpec bare{.norm = fact.norm, .columns = columns, .input = dtype, .epsilon = fact.epsilon};
        specs.push_back(parse_spec(to_text(bare) + (end.empty() ? "" : "/" + end)).value());
      }
  return specs;
}

NormSpec with_input_weights(NormSpec spec) {
  spec.weight = spec.input;
  return canonical(spec);
}

// Layers that take and give 16-bit values and keep their weights in f32.
std::size_t with_f32_weights(const std::vector<NormSpec>& specs) {
  return static_cast<std::size_t>(std::count_if(specs.begin(), specs.end(), [](const NormSpec& spec) {
    return spec.weight == DType::f32 && spec.input != DType::f32;
  }));
}

TEST(ShippedManifests, AreCanonicalDistinctAndSayWhatFor) {
  for (const fs::path& path : shipped()) {
    std::ifstream stream(path);
    const auto document = nlohmann::json::parse(stream);
    std::set<std::string> seen;
    for (const auto& entry : document.at("specs")) {
      const std::string text = entry.at("spec");
      const Result<NormSpec> spec = parse_spec(text);
      ASSERT_TRUE(spec.ok()) << path << ": " << spec.error().message;
      EXPECT_EQ(to_text(*spec), text) << path;
      EXPECT_TRUE(seen.insert(text).second) << path << " has " << text << " twice";
      EXPECT_FALSE(entry.at("comment").get<std::string>().empty()) << path << ", " << text;
    }
    EXPECT_FALSE(seen.empty()) << path;
  }
}

TEST(ShippedManifests, HaveTheLayersOfThePublishedModels) {
  for (const Fact& fact : kFacts) {
    const std::vector<NormSpec> present = specs_of(kFolder / (fact.family + ".json"));
    for (const NormSpec& spec : specs_of(fact))
      EXPECT_THAT(present, Contains(spec)) << fact.family << ", " << to_text(spec);
  }
}

// So a typing error in a width is not carried along.
TEST(ShippedManifests, HaveNothingElse) {
  for (const fs::path& path : shipped()) {
    const std::string family = path.stem().string();
    if (family == "reference") continue;
    std::vector<NormSpec> known;
    for (const Fact& fact : kFacts)
      if (fact.family == family)
        for (NormSpec spec : specs_of(fact)) known.push_back(with_input_weights(spec));
    for (const NormSpec& spec : specs_of(path)) {
      EXPECT_THAT(known, Contains(with_input_weights(spec))) << path << ", " << to_text(spec);
    }
  }
}

TEST(ShippedManifests, HaveF32WeightsWhereTheModelsCodeKeepsThem) {
  EXPECT_EQ(with_f32_weights(specs_of(kFolder / "whisper.json")), 15u);  // f16, each width, of 3 forms
  EXPECT_EQ(with_f32_weights(specs_of(kFolder / "clip.json")), 16u);  // f16 and bf16, each width of OpenCLIP
}

}  // namespace
}  // namespace normjit::cli
