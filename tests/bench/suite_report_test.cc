// SPDX-License-Identifier: Apache-2.0
// The suite's results against their targets, as text and as JSON.
#include "bench/suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/measure.h"

namespace normjit::bench {

using namespace cli;

namespace {

using testing::DoubleEq;
using testing::HasSubstr;

SuiteResult measured(const char* spec, std::int64_t rows, double kernel, double copy) {
  SuiteResult result{
      .what = {parse_spec(spec).value(), rows}, .bench = BenchReport{}, .error = {}, .value = {}, .met = {}};
  result.bench->spec = result.what.spec;
  result.bench->rows = rows;
  result.bench->bytes = bytes_moved(result.what.spec, rows);
  result.bench->kernel = {.median = kernel, .min = kernel, .max = kernel};
  result.bench->copy = {.median = copy, .min = copy, .max = copy};
  return result;
}

SuiteResult failed(const char* spec, std::int64_t rows) {
  return {.what = {parse_spec(spec).value(), rows}, .bench = {}, .error = "no room", .value = {}, .met = {}};
}

TEST(SuiteReport, FractionsMustReachAndTimesMustNotExceedTheirBounds) {
  std::vector<SuiteResult> results = {measured("layernorm/cols=4096/f32/wb", 8192, 100, 96),
                                      measured("layernorm/cols=4096/f32/wb", 8192, 100, 95),
                                      measured("layernorm/cols=4194304/f32/wb", 16, 150, 135),
                                      measured("layernorm/cols=4194304/f32/wb", 16, 150.1, 135)};
  judge(results);
  EXPECT_THAT(*results[0].value, DoubleEq(0.96));
  EXPECT_EQ(results[0].met, true);
  EXPECT_EQ(results[1].met, false);
  EXPECT_EQ(results[2].met, true);
  EXPECT_EQ(results[3].met, false);
}

// One row of x and y, 1.5 times the bytes of a copy of it when x is read twice.
TEST(SuiteReport, LongestRowsAreComparedWithSplitRow) {
  std::vector<SuiteResult> results = {measured("layernorm/cols=16777216/f32", 2, 150, 100)};
  EXPECT_THAT(split_row_microseconds(*results[0].bench), DoubleEq(150));
  judge(results);
  EXPECT_THAT(*results[0].value, DoubleEq(1.0));
  EXPECT_EQ(results[0].met, true);
}

TEST(SuiteReport, CasesWithAnActivationAreComparedWithTheirPlainOne) {
  std::vector<SuiteResult> results = {measured("layernorm/cols=4096/f32/wb", 8000, 50, 90),
                                      measured("layernorm/cols=4096/f32/wb/gelu", 8192, 104, 90),
                                      measured("layernorm/cols=4096/f32/wb", 8192, 100, 90)};
  judge(results);
  EXPECT_THAT(*results[1].value, DoubleEq(1.04));
  EXPECT_EQ(results[1].met, false);
  results.pop_back();
  judge(results);
  EXPECT_FALSE(results[1].value) << "there is no plain case of as many rows";
  EXPECT_FALSE(results[1].met);
}

TEST(SuiteReport, WithoutATargetOrAMeasurementNothingIsJudged) {
  std::vector<SuiteResult> results = {measured("layernorm/cols=4096/f32/wb", 100, 10, 9),
                                      measured("layernorm/cols=8192/bf16/wb", 8, 2, 1),
                                      failed("layernorm/cols=4096/f32/wb", 8192)};
  judge(results);
  for (const SuiteResult& result : results) {
    EXPECT_FALSE(result.value);
    EXPECT_FALSE(result.met);
  }
}

TEST(SuiteReport, SumsUpEachRegime) {
  std::vector<SuiteResult> results = {measured("layernorm/cols=4096/f32/wb", 8192, 100, 98),
                                      measured("layernorm/cols=1024/f32/wb", 32768, 100, 50),
                                      failed("layernorm/cols=2048/f32/wb", 32768),
                                      measured("layernorm/cols=1023/f32/wb", 32768, 100, 91)};
  judge(results);
  const std::vector<RegimeSummary> summaries = summarize(results);
  ASSERT_EQ(summaries.size(), 2u);
  const RegimeSummary& odd = summaries[0];
  EXPECT_EQ(odd.regime, Regime::odd);
  EXPECT_EQ(odd.met, 1);
  const RegimeSummary& ordinary = summaries[1];
  EXPECT_EQ(ordinary.regime, Regime::ordinary);
  EXPECT_EQ(ordinary.cases, 3);
  EXPECT_EQ(ordinary.failed, 1);
  EXPECT_EQ(ordinary.judged, 2);
  EXPECT_EQ(ordinary.met, 1);
  EXPECT_THAT(ordinary.worst, DoubleEq(0.5));
  EXPECT_THAT(ordinary.mean, DoubleEq(0.7));
  EXPECT_EQ(ordinary.worst_case, "32768 x layernorm/cols=1024/f32/eps=1e-05/wb");
}

TEST(SuiteReport, TextAndJsonSayWhatWasFound) {
  SuiteReport report{
      .device = "GPU", .driver = "580.1", .date = "2026-01-31 12:00", .seed = 42, .results = {}};
  report.results = {measured("layernorm/cols=4096/f32/wb", 8192, 100, 50),
                    failed("layernorm/cols=2048/f32/wb", 32768)};
  report.results[1].what.drawn = true;
  judge(report.results);
  const std::string text = table_of(report);
  for (const char* words : {"GPU, driver 580.1, 2026-01-31 12:00 UTC, seed 42", ">= 0.96 of copy", "0.500",
                            "NO", "FAILED: no room", "ordinary *"}) {
    EXPECT_THAT(text, HasSubstr(words));
  }

  const auto json = nlohmann::json::parse(json_of(report));
  EXPECT_EQ(json.at("seed"), 42);
  EXPECT_EQ(json.at("driver"), "580.1");
  const auto& cases = json.at("cases");
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(cases[0].at("spec"), "layernorm/cols=4096/f32/eps=1e-05/wb");
  EXPECT_EQ(cases[0].at("rows"), 8192);
  EXPECT_EQ(cases[0].at("fraction_of_copy"), 0.5);
  EXPECT_EQ(cases[0].at("met"), false);
  EXPECT_EQ(cases[1].at("error"), "no room");
  EXPECT_EQ(cases[1].at("drawn"), true);
  EXPECT_FALSE(cases[1].contains("met"));
  EXPECT_EQ(cases[0].at("overlap"), false);
  EXPECT_TRUE(cases[0].contains("copy_shape"));
  EXPECT_EQ(json.at("summary")[0].at("failed"), 1);
}

TEST(SuiteReport, TheCompactTableHasALineForEachSizeOfANorm) {
  SuiteReport report{
      .device = "GPU", .driver = "580.1", .date = "2026-01-31 12:00", .seed = 42, .results = {}};
  report.results = {measured("rmsnorm/cols=4096/bf16/add/sum/w", 5120, 40, 38),
                    measured("rmsnorm/cols=1024/bf16/add/sum/w", 20480, 100, 75),
                    measured("rmsnorm/cols=4096/f32/add/sum/w", 5120, 80, 79.2),
                    failed("rmsnorm/cols=1024/f32/add/sum/w", 20480),
                    measured("rmsnorm/cols=4096/bf16/w", 1, 1.56, 1.248),
                    measured("rmsnorm/cols=4096/bf16/w", 1, 1, 0.9)};
  report.results[5].what.use.overlap = true;
  EXPECT_EQ(compact_table_of(report),
            "GPU, 2026-01-31 12:00 UTC, seed 42; us, and the copy's time over it\n"
            "\n"
            "rmsnorm/add/sum/w   bf16           f32\n"
            "5120 x 4096         40.0  0.95    80.0  0.99\n"
            "20480 x 1024       100.0  0.75  FAILED\n"
            "\n"
            "rmsnorm/w  bf16\n"
            "1 x 4096   1.56  0.80\n"
            "\n"
            "rmsnorm/w, overlapped  bf16\n"
            "1 x 4096               1.00  0.90\n");
}

}  // namespace
}  // namespace normjit::bench
