// SPDX-License-Identifier: Apache-2.0
#include "cli/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace normjit::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> texts(const Result<std::vector<NormSpec>>& specs) {
  EXPECT_TRUE(specs.ok()) << (specs.ok() ? "" : specs.error().message);
  std::vector<std::string> result;
  if (specs)
    for (const NormSpec& spec : *specs) result.push_back(to_text(spec));
  return result;
}

std::string error_of(std::string_view text) {
  const Result<std::vector<NormSpec>> specs = parse_manifest(text, "shapes.json");
  EXPECT_EQ(specs.code(), Code::BadArgument) << text;
  return specs.ok() ? "" : specs.error().message;
}

const std::vector<std::string> kTwo = {"layernorm/cols=64/f32/eps=1e-05",
                                       "layernorm/cols=4/bf16/eps=1e-05/w"};

TEST(Manifest, DocumentOfStringsAndObjects) {
  EXPECT_EQ(texts(parse_manifest(R"({
    "normjit_manifest": 1,
    "comment": "two shapes",
    "specs": ["layernorm/cols=64/f32", {"spec": "layernorm/shape=2x2/bf16/w", "comment": "small"}]
  })",
                                 "m")),
            kTwo);
}

TEST(Manifest, JsonLines) {
  EXPECT_EQ(
      texts(parse_manifest("\"layernorm/cols=64/f32\"\n\n{\"spec\": \"layernorm/cols=4/bf16/w\"}\r\n", "m")),
      kTwo);
  EXPECT_EQ(texts(parse_manifest("{\"spec\": \"layernorm/cols=64/f32\"}", "m")).size(), 1u);
  EXPECT_EQ(texts(parse_manifest("", "m")).size(), 0u);
}

TEST(Manifest, ErrorsNameFileEntryAndReason) {
  EXPECT_THAT(
      error_of(R"({"normjit_manifest": 1, "specs": ["layernorm/cols=1/f32", "layernorm/cols=0/f32"]})"),
      HasSubstr("shapes.json, entry 2: "));
  EXPECT_THAT(error_of("\"layernorm/cols=1/f32\"\n\"layernorm/f32\"\n"), HasSubstr("shapes.json, line 2: "));
  EXPECT_THAT(error_of("\"layernorm/cols=1/f32\"\n{\"spec\"\n"), HasSubstr("shapes.json, line 2: "));
  EXPECT_THAT(error_of(R"({"normjit_manifest": 1, "specs": [], "arch": "sm_90"})"), HasSubstr("\"arch\""));
  EXPECT_THAT(error_of(R"({"normjit_manifest": 1, "specs": [{"spec": "layernorm/cols=1/f32", "rows": 3}]})"),
              HasSubstr("\"rows\""));
  EXPECT_THAT(error_of(R"({"normjit_manifest": 2, "specs": []})"), HasSubstr("must be 1"));
  EXPECT_THAT(error_of(R"({"normjit_manifest": 1})"), HasSubstr("must be a list"));
  EXPECT_THAT(error_of(R"({"normjit_manifest": 1, "specs": [64]})"), HasSubstr("entry 1"));
  EXPECT_THAT(error_of(R"({"normjit_manifest": 1, "specs": [{"comment": "none"}]})"),
              HasSubstr("without \"spec\""));
  EXPECT_THAT(error_of(R"({"specs": []})"), HasSubstr("normjit_manifest"));
  EXPECT_THAT(error_of("{\n  \"normjit_manifest\": 1,\n  \"specs\": [,]\n}"), HasSubstr("line 3"));
  EXPECT_THAT(error_of("[1, 2]"), HasSubstr("shapes.json, entry 1: "));
  EXPECT_THAT(error_of("[\"layernorm/cols=64/f32\",\n"), HasSubstr("is not JSON"));
}

TEST(Manifest, PlainLines) {
  EXPECT_EQ(
      texts(parse_manifest("  layernorm/cols=64/f32 \r\n\n{\"spec\": \"layernorm/cols=4/bf16/w\"}", "m")),
      kTwo);
  EXPECT_EQ(texts(parse_manifest("layernorm/cols=64/f32", "m")).size(), 1u);
  EXPECT_THAT(error_of("layernorm/cols=64/f32\nlayernorm\n"),
              AllOf(HasSubstr("shapes.json, line 2: 'layernorm' is not a spec"), Not(HasSubstr("JSON"))));
}

TEST(Manifest, AListAlone) {
  EXPECT_EQ(
      texts(parse_manifest("[\"layernorm/cols=64/f32\",\n {\"spec\": \"layernorm/cols=4/bf16/w\"}]", "m")),
      kTwo);
  EXPECT_EQ(texts(parse_manifest("[]", "m")).size(), 0u);
  EXPECT_THAT(error_of(R"(["layernorm/cols=64/f32", "layernorm"])"), HasSubstr("shapes.json, entry 2: "));
}

TEST(Manifest, AKeyIsGivenOnce) {
  EXPECT_THAT(error_of(R"({"normjit_manifest": 1, "specs": ["layernorm/cols=1/f32"], "specs": []})"),
              HasSubstr("\"specs\" is given twice"));
  EXPECT_THAT(error_of("{\"normjit_manifest\": 1,\n\"specs\": [],\n\"specs\": []}"),
              HasSubstr("\"specs\" is given twice"));
  EXPECT_THAT(error_of("\"layernorm/cols=1/f32\"\n"
                       R"({"spec": "layernorm/cols=1/f32", "spec": "layernorm/cols=2/f32"})"),
              HasSubstr("shapes.json, line 2: the key \"spec\" is given twice"));
  const std::string two =
      R"({"spec": "layernorm/cols=1/f32", "comment": ""}, {"spec": "layernorm/cols=2/f32"})";
  EXPECT_EQ(texts(parse_manifest("[" + two + "]", "m")).size(), 2u) << "of one object";
}

TEST(Manifest, DeepNestingIsRefused) {
  EXPECT_THAT(error_of(std::string(1'000'000, '[')), HasSubstr("nested too deeply"));
  EXPECT_EQ(
      texts(parse_manifest(R"([{"spec": "layernorm/cols=1/f32", "comment": {"of": ["a model"]}}])", "m"))
          .size(),
      1u);
}

TEST(Manifest, ForeignTextIsQuotedWithoutControlCharacters) {
  for (const char* text : {R"(["layernorm/cols=64/f32\u0000\u001b[31m\nred"])", "layernorm/cols=64/\x1b[31m",
                           R"({"normjit_manifest": 1, "specs": [], "\u001b[31m\n": 1})",
                           R"([{"spec": "layernorm/cols=1/f32", "\u001b[31m\n": 1}])"})
    EXPECT_THAT(error_of(text),
                AllOf(HasSubstr(R"(\x1b[31m)"), Not(HasSubstr("\x1b")), Not(HasSubstr("\n"))));
  const std::string large(3'000'000, 'a');
  EXPECT_LT(error_of(large).size(), 1000u);
  EXPECT_LT(error_of("[\"" + large + "\"]").size(), 1000u);
  EXPECT_LT(error_of("{\n\"" + large + "\":").size(), 1000u);
}

TEST(Manifest, ALastLineThatIsCutShortSaysSo) {
  const std::string line = R"({"spec": "layernorm/cols=64/f32"})";
  EXPECT_THAT(error_of(line + "\n" + line.substr(0, 20)),
              AllOf(HasSubstr("shapes.json, line 2: "), HasSubstr("cut short")));
  EXPECT_THAT(error_of(line + "\n" + line.substr(0, 20) + line + "\n"),
              AllOf(HasSubstr("line 2: "), Not(HasSubstr("cut short"))));
}

TEST(Manifest, UnreadableFilesAreErrors) {
  const Result<std::vector<NormSpec>> absent = read_manifest(testing::TempDir() + "no-such-manifest.json");
  EXPECT_EQ(absent.code(), Code::BadArgument);
  EXPECT_THAT(absent.error().message, HasSubstr("no-such-manifest.json"));
  EXPECT_EQ(read_manifest(testing::TempDir()).code(), Code::BadArgument);
}

TEST(Manifest, DistinctKeepsTheFirstOfEach) {
  const NormSpec a{.columns = 1}, b{.columns = 2};
  EXPECT_EQ(distinct({a, b, a, b, a}), (std::vector<NormSpec>{a, b}));
}

TEST(Manifest, TheReferenceManifestHoldsTheReferenceWorkloads) {
  EXPECT_EQ(texts(read_manifest(NORMJIT_SOURCE_DIR "/cache/manifests/reference.json")),
            (std::vector<std::string>{"layernorm/cols=4194304/f32/eps=1e-05/wb",
                                      "layernorm/cols=64/f32/eps=1e-05/wb/gelu"}));
}

}  // namespace
}  // namespace normjit::cli
