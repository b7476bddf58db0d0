// SPDX-License-Identifier: Apache-2.0
// What a tuning concludes from its times.
#include "cli/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/measure.h"
#include "nlohmann/json.hpp"
#include "normjit/service/prepared.h"

namespace normjit::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Trials = std::vector<TuneReport::Trial>;

// Trials with these medians against a copy of 90 us, all finalists; 0 is one that did not run.
Trials trials_of(const std::vector<double>& medians) {
  Trials trials;
  for (const double median : medians) {
    TuneReport::Trial trial{.plan = {.threads = 32 << trials.size()}, .cost = 1.25, .why = "loads"};
    trial.kernel.median = median;
    trial.copy.median = 90;
    trial.replays = median > 0 ? 30 : 0;
    trial.finalist = true;
    if (median == 0) trial.error = "refused";
    trials.push_back(std::move(trial));
  }
  return trials;
}

TuneReport report_of(const std::vector<double>& medians) {
  TuneReport report{.spec = {.columns = 64},
                    .rows = 9,
                    .device = "GPU",
                    .trials = trials_of(medians),
                    .error = {},
                    .winner = {}};
  report.winner = winner_of(report.trials);
  return report;
}

TEST(Tuning, FinalistsAreTheFastestAndTheRulesChoice) {
  const Trials trials = trials_of({105, 110, 100, 0, 103, 104, 101, 102});
  EXPECT_THAT(finalists(trials, 3), ElementsAre(2, 6, 7, 0));
  EXPECT_THAT(finalists(trials, 20), ElementsAre(2, 6, 7, 4, 5, 0, 1)) << "each once";
  EXPECT_THAT(finalists(trials_of({0, 110, 100}), 2), ElementsAre(2, 1)) << "if they ran";
  EXPECT_THAT(finalists(trials_of({0, 0}), 2), IsEmpty());
}

TEST(Tuning, OnlyFinalistsAreRanked) {
  Trials trials = trials_of({105, 95, 100, 0});
  trials[1].finalist = false;
  EXPECT_THAT(ranking(trials), ElementsAre(2, 0));
  EXPECT_EQ(winner_of(trials), 2u);
}

TEST(Tuning, TheRulesWinUnlessAPlanIsFasterByMoreThanTheNoise) {
  EXPECT_EQ(winner_of(trials_of({100, 110, 105})), 0u);
  EXPECT_EQ(winner_of(trials_of({100, 99.5})), 0u);
  EXPECT_EQ(winner_of(trials_of({102, 101, 100})), 2u);
  EXPECT_EQ(winner_of(trials_of({0, 101, 100})), 2u);
  EXPECT_EQ(winner_of(trials_of({0, 0})), std::nullopt);
  EXPECT_EQ(winner_of({}), std::nullopt);
}

TEST(Tuning, TheVerdictNamesBothPlansAndTheGain) {
  EXPECT_EQ(verdict(report_of({100, 100, 110})), "the rules chose the best plan");
  const std::string better = verdict(report_of({103, 100}));
  EXPECT_THAT(better, HasSubstr("threads=32"));
  EXPECT_THAT(better, HasSubstr("(0.874 of copy)"));
  EXPECT_THAT(better, HasSubstr("threads=64"));
  EXPECT_THAT(better, HasSubstr("(0.900 of copy) is better by 3.0 %"));
  EXPECT_THAT(verdict(report_of({0, 100})), HasSubstr("which did not run"));
  EXPECT_EQ(verdict(report_of({0, 0})), "no plan could be measured");
}

TEST(Tuning, TheReportAsJsonHasEveryTrial) {
  const auto json = nlohmann::json::parse(json_of({report_of({103, 0, 100})}, "/cache"));
  EXPECT_EQ(json.at("cache_directory"), "/cache");
  const auto& result = json.at("results").at(0);
  EXPECT_EQ(result.at("rows"), 9);
  EXPECT_EQ(result.at("regime"), "many");
  EXPECT_EQ(result.at("rules"), to_text(Plan{.threads = 32}));
  EXPECT_EQ(result.at("best"), to_text(Plan{.threads = 128}));
  EXPECT_FALSE(result.at("stored"));
  ASSERT_EQ(result.at("trials").size(), 3u);
  EXPECT_EQ(result.at("trials").at(0).at("kernel").at("median_us"), 103);
  EXPECT_EQ(result.at("trials").at(0).at("estimated_cost"), 1.25);
  EXPECT_EQ(result.at("trials").at(1).at("error"), "refused");
  EXPECT_FALSE(result.at("trials").at(1).contains("kernel"));
  EXPECT_EQ(nlohmann::json::parse(json_of({report_of({0})}, "")).at("results").at(0).at("best"), nullptr);
}

TEST(RowsList, IsNumbersFromOneOn) {
  EXPECT_THAT(parse_rows_list("1,128,16384"), ElementsAre(1, 128, 16384));
  for (const char* wrong : {"", "0", "1,", "12x", "-3", "1,,2", "99999999999999999999"})
    EXPECT_THROW(parse_rows_list(wrong), Exception) << wrong;
}

TEST(RowsList, TheDefaultMakesXLargerThanCaches) {
  EXPECT_EQ(default_rows({.columns = 4096}), 16384);
  EXPECT_EQ(default_rows({.columns = 4096, .input = DType::f16}), 32768);
  EXPECT_EQ(default_rows({.columns = 2147483647}), 1);
}

// What tune asks the planner for is what the measured tensors are.
TEST(Workbench, ItsTensorsAreAsAlignedAsTheirRowsAllow) {
  const auto alignment = [](const NormSpec& spec, std::int64_t rows) {
    std::byte* const set = reinterpret_cast<std::byte*>(256);
    return pack(spec, tensors_of(spec, layout_of(spec, rows), rows, set)).alignment;
  };
  EXPECT_EQ(alignment({.columns = 4096, .affine = Affine::weight_bias, .statistics = true}, 5),
            Alignment::eight);
  EXPECT_EQ(alignment({.columns = 1023, .input = DType::f16}, 5), Alignment::one);
  EXPECT_EQ(alignment({.columns = 1022, .input = DType::f16}, 5), Alignment::two);
  EXPECT_EQ(alignment({.columns = 1023, .input = DType::f16}, 1), Alignment::eight) << "no further row";
}

TEST(Workbench, ItsTensorsAreThoseOfTheSpec) {
  std::byte* const set = reinterpret_cast<std::byte*>(4096);
  const NormSpec all{.columns = 65, .affine = Affine::weight_bias, .statistics = true};
  const Tensors tensors = tensors_of(all, layout_of(all, 3), 3, set);
  EXPECT_TRUE(pack(all, tensors).status.ok());
  EXPECT_EQ(tensors.rows, 3);
  EXPECT_EQ(tensors.x.pointer, set);
  const NormSpec plain{.columns = 65};
  EXPECT_TRUE(pack(plain, tensors_of(plain, layout_of(plain, 3), 3, set)).status.ok());
}

TEST(Workbench, MoreRowsThanAnyGpuHoldsAreRefused) {
  EXPECT_NO_THROW(check_use({.columns = 64}, 1 << 20));
  EXPECT_THROW(check_use({.columns = 64}, std::int64_t{1} << 60), Exception);
  EXPECT_NO_THROW(check_use({.columns = 64}, 1 << 20, {.sample = 1024}));
  EXPECT_THROW(check_use({.columns = 64}, 1 << 20, {.sample = 3}), Exception);
  EXPECT_THROW(check_use({.columns = 64}, 1 << 20, {.sample = 0}), Exception);
}

}  // namespace
}  // namespace normjit::cli
