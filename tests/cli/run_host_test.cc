// SPDX-License-Identifier: Apache-2.0
// `normjit run --device host` of the real tool, which compiles with this machine's C++ compiler.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "normjit/base/text.h"
#include "normjit/plan.h"
#include "normjit/spec/operands.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"
#include "verify/check.h"
#include "verify/element.h"
#include "verify/npy.h"
#include "verify/problem.h"

namespace normjit {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Json = nlohmann::json;

class RunOnHost : public testing::Test {
 protected:
  ToolRun run(std::vector<std::string> arguments, std::vector<std::string> environment = {}) const {
    arguments.insert(arguments.begin(), "run");
    arguments.insert(arguments.end(), {"--device", "host", "--cache-dir", directory_ / "cache"});
    return run_tool(arguments, environment);
  }
  // The report of a run that must succeed, its numbers included.
  Json checked(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--check", "--json"});
    const ToolRun tool = run(arguments);
    EXPECT_EQ(tool.status, 0) << tool.err;
    if (tool.status != 0) return {};
    Json report = Json::parse(tool.out);
    EXPECT_TRUE(report.at("emulated"));
    EXPECT_TRUE(report.at("check").at("ok"));
    return report;
  }
  static std::string contents(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    EXPECT_TRUE(in) << path;
    return {std::istreambuf_iterator<char>(in), {}};
  }

  TempDirectory directory_;
};

TEST_F(RunOnHost, BothReferenceLayersAreRight) {
  const Json rows = checked({"layernorm/cols=64/f32/eps=1e-05/wb/gelu", "--rows", "1000"});
  EXPECT_EQ(rows.at("check").at("y").at("values"), 64 * 1000);
  EXPECT_THAT(rows.at("plan"), testing::StartsWith("warp_rows"));
  const Json long_row =
      checked({"layernorm/cols=4194304/f32/eps=1e-05/wb", "--rows", "1", "--checks", "off"});
  EXPECT_EQ(long_row.at("check").at("y").at("values"), 4194304);
  EXPECT_THAT(long_row.at("plan"), testing::StartsWith("split_row"));
  EXPECT_GT(long_row.at("workspace_bytes"), 0);
}

TEST_F(RunOnHost, TheGenericKernel) {
  for (const char* spec : {"layernorm/cols=90/bf16/out=f32/wb/silu/stats", "layernorm/cols=3001/f64/w",
                           "layernorm_bwd/cols=90/bf16/w=f32/dsum/wb/silu", "rmsnorm_bwd/cols=3001/f64/w"}) {
    const ToolRun tool = run({spec, "--rows", "9", "--check", "--json", "--plan", to_text(generic_plan())});
    ASSERT_EQ(tool.status, 0) << tool.err;
    EXPECT_EQ(Json::parse(tool.out).at("plan"), to_text(generic_plan()));
  }
}

TEST_F(RunOnHost, FilesInAndOut) {
  const NormSpec spec =
      parse_spec("layernorm/cols=300/f16/out=f32/w=bf16/eps=1e-05/wb/silu/scale=0.5/stats").value();
  constexpr std::int64_t kRows = 6;
  oracle::Problem problem = oracle::make_problem(spec, kRows).value();
  oracle::fill(problem, 42);
  oracle::write_npy(directory_ / "x.npy", problem[Operand::x], {2, 3, 300}).value();
  oracle::write_npy(directory_ / "w.npy", problem[Operand::weight], {300}).value();
  oracle::write_npy(directory_ / "b.npy", problem[Operand::bias], {300}).value();

  const ToolRun tool = run({to_text(spec), "--x", directory_ / "x.npy", "--weight", directory_ / "w.npy",
                            "--bias", directory_ / "b.npy", "--out", directory_ / "y.npy", "--mean-out",
                            directory_ / "mean.npy", "--rstd-out", directory_ / "rstd.npy"});
  ASSERT_EQ(tool.status, 0) << tool.err;
  auto y = oracle::NpyFile::open(directory_ / "y.npy").value();
  EXPECT_EQ(y.shape(), (std::vector<std::int64_t>{2, 3, 300}));
  y.read(problem[Operand::y]).value();
  oracle::NpyFile::open(directory_ / "mean.npy").value().read(problem[Operand::mean]).value();
  oracle::NpyFile::open(directory_ / "rstd.npy").value().read(problem[Operand::rstd]).value();
  const oracle::CheckReport report = oracle::check(problem, kRows);
  EXPECT_TRUE(report.ok()) << report[Operand::y].largest.error;
  EXPECT_EQ(report[Operand::y].values, kRows * 300);
  EXPECT_EQ(report[Operand::rstd].values, kRows);
}

TEST_F(RunOnHost, TheSameSeedGivesTheSameBits) {
  for (const auto& [file, seed] : {std::pair{"1.npy", "5"}, {"2.npy", "5"}, {"3.npy", "6"}}) {
    const ToolRun tool =
        run({"layernorm/cols=33/bf16/w", "--rows", "9", "--seed", seed, "--out", directory_ / file});
    ASSERT_EQ(tool.status, 0) << tool.err;
  }
  EXPECT_EQ(contents(directory_ / "1.npy"), contents(directory_ / "2.npy"));
  EXPECT_NE(contents(directory_ / "1.npy"), contents(directory_ / "3.npy"));
}

TEST_F(RunOnHost, EachScheduleIsALaunch) {
  const Json report =
      checked({"layernorm/cols=1000/f32/wb", "--rows", "3", "--schedule", "5,0,1", "--arch", "sm_80"});
  std::vector<int> seeds;
  for (const Json& launch : report.at("launches")) {
    seeds.push_back(launch.at("seed"));
    EXPECT_THAT(launch.at("schedule"), HasSubstr(std::to_string(seeds.back()) + ": "));
    EXPECT_GT(launch.at("run_ms"), 0);
  }
  EXPECT_THAT(seeds, testing::ElementsAre(5, 0, 1));
  EXPECT_EQ(report.at("device"),
            "CPU emulation of sm_80 (one fiber per CUDA thread, schedules 5, 0, 1, checks on)");
}

TEST_F(RunOnHost, TheReportSaysThatItEmulates) {
  const std::vector<std::string> arguments = {"layernorm/cols=64/f32", "--rows", "2", "--checks", "off"};
  const Json report = checked(arguments);
  EXPECT_EQ(report.at("checks"), false);
  EXPECT_GT(report.at("prepare_ms"), 0);
  EXPECT_NE(report.at("compiler"), "");
  EXPECT_FALSE(report.contains("first_launch_us"));
  EXPECT_FALSE(report.contains("kept_in"));

  const ToolRun text = run(arguments);
  EXPECT_EQ(text.status, 0);
  EXPECT_THAT(text.err, IsEmpty());
  EXPECT_THAT(text.out, HasSubstr("device     CPU emulation of sm_90 (one fiber per CUDA thread, schedule 0, "
                                  "checks off)\n"));
  EXPECT_THAT(text.out, Not(HasSubstr(" us"))) << "a time of a GPU";
}

// The kernel is the one that the service takes on such a device for these rows, strides and pointers.
TEST_F(RunOnHost, RunsTheKernelOfTheArchitecture) {
  const std::string spec = "layernorm/cols=1024/bf16/wb";
  std::set<std::string> plans;
  for (const char* arch : {"sm_75", "sm_90"}) {
    const DeviceProfile device = DeviceProfile::of(Arch::parse(arch).value()).value();
    const struct {
      std::int64_t rows, stride;
      Alignment alignment;
    } uses[] = {{device.sm_count - 1, 1024, Alignment::eight},
                {3 * device.sm_count, 1024, Alignment::eight},
                {3, 1026, Alignment::two},
                {3, 1025, Alignment::one},
                {1, 1025, Alignment::eight}};
    for (const auto& use : uses) {
      const Json report = checked({spec, "--rows", std::to_string(use.rows), "--x-row-stride",
                                   std::to_string(use.stride), "--arch", arch});
      const Plan plan = choose(parse_spec(spec).value(), device, regime_of(use.rows, device), use.alignment);
      EXPECT_EQ(report.value("plan", ""), to_text(plan)) << arch << " " << use.rows << " " << use.stride;
      plans.insert(to_text(plan));
    }
  }
  EXPECT_GE(plans.size(), 4u) << "all uses have nearly the same plan: this spec shows nothing";
}

TEST_F(RunOnHost, StridesAreObserved) {
  const std::string spec = "layernorm/cols=100/f16/wb/relu/stats";
  EXPECT_EQ(checked({spec, "--rows", "5", "--x-row-stride", "0"}).at("check").at("rows"), 5);
  EXPECT_EQ(checked({spec, "--rows", "5", "--x-row-stride", "37"}).at("check").at("rows"), 5);
  const Json padded = checked({spec, "--rows", "5", "--x-row-stride", "104", "--y-row-stride", "112"});
  EXPECT_EQ(padded.at("check").at("overwritten_gap_bytes"), 0);
}

// Of both residuals, with every rounding and every operand.
TEST_F(RunOnHost, ChecksEveryStageOfTheAlgebra) {
  for (const char* spec :
       {"rmsnorm/cols=96/bf16/inb/add/sum/round=sum+norm/w1/stats",
        "layernorm/cols=96/f16/w=f32/res=f32/inb/addafter/sum/wb/gelu/stats",
        "rmsnorm/cols=96/bf16/res=f32/add/sum/w1:rows", "layernorm/cols=96/bf16/add/round=sum/wb:rows",
        "layernorm/cols=96/f16/out=e5m2/wb/gelu/stats", "rmsnorm/cols=96/f32/out=e4m3/w/q=tensor:inv",
        "rmsnorm/cols=96/bf16/out=e4m3/add/sum/round=sum+norm+y/w/q=row",
        "layernorm/cols=96/bf16/out=s8/mods/q=row", "rmsnorm/cols=96/bf16/out=e4m3/w/q=32:e8m0:cols4",
        "rmsnorm/cols=128/f16/out=s8/w/q=64:cols/also=f32", "layernorm/cols=96/bf16/out=e5m2/wb/q=16:e4m3:sw",
        "rmsnorm/cols=128/bf16/out=e4m3/add/sum/round=y/w/q=128:p2", "rmsnorm/cols=96/f32/out=e4m3/q=row:ub",
        "layernorm/cols=96/bf16/wb/amax", "rmsnorm/cols=96/bf16/out=s8/w/q=tensor/also=bf16/amax"}) {
    const Json check = checked({spec, "--rows", "6"}).at("check");
    EXPECT_EQ(check.contains("sum"), std::string_view(spec).find("/sum/") != std::string_view::npos) << spec;
    EXPECT_EQ(check.contains("rstd"), std::string_view(spec).ends_with("stats")) << spec;
    const auto has = [&](std::string_view part) { return std::string_view(spec).find(part) != part.npos; };
    EXPECT_EQ(check.contains("row_scale"), has("q=row")) << spec;
    EXPECT_EQ(check.contains("block_scale"), has("/q=1") || has("/q=32") || has("/q=64")) << spec;
    EXPECT_EQ(check.contains("also"), has("/also=")) << spec;
    EXPECT_EQ(check.contains("amax"), has("/amax")) << spec;
  }
}

TEST_F(RunOnHost, OperandsAreFilesByName) {
  const NormSpec spec = parse_spec("rmsnorm/cols=40/bf16/w=f32/res=f32/inb/add/sum/w").value();
  oracle::Problem problem = oracle::make_problem(spec, 5).value();
  oracle::fill(problem, 7);
  oracle::write_npy(directory_ / "x.npy", problem[Operand::x], {5, 40}).value();
  oracle::write_npy(directory_ / "b.npy", problem[Operand::in_bias], {40}).value();
  oracle::write_npy(directory_ / "r.npy", problem[Operand::residual], {5, 40}).value();
  oracle::write_npy(directory_ / "w.npy", problem[Operand::weight], {40}).value();
  const ToolRun tool = run({to_text(spec), "--x", directory_ / "x.npy", "--in-bias", directory_ / "b.npy",
                            "--residual", directory_ / "r.npy", "--weight", directory_ / "w.npy", "--out",
                            directory_ / "y.npy", "--sum-out", directory_ / "s.npy"});
  ASSERT_EQ(tool.status, 0) << tool.err;
  oracle::NpyFile::open(directory_ / "y.npy").value().read(problem[Operand::y]).value();
  oracle::NpyFile::open(directory_ / "s.npy").value().read(problem[Operand::sum]).value();
  const oracle::CheckReport report = oracle::check(problem, 5);
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report[Operand::sum].values, 5 * 40);
}

// Whatever the statistics of x are.
TEST_F(RunOnHost, GivenStatisticsAreFiles) {
  const NormSpec spec{.backward = true, .columns = 40, .affine = Affine::weight_bias, .statistics = true};
  oracle::Problem problem = oracle::make_problem(spec, 5).value();
  oracle::fill(problem, 3);
  for (const Operand operand : {Operand::saved_mean, Operand::saved_rstd}) {
    oracle::fill_random(problem[operand], 9, {.stream = 1, .mean = 2, .deviation = 0.25});
    oracle::write_npy(directory_ / (std::string(name(operand)) + ".npy"), problem[operand], {5}).value();
  }
  const auto dx_of = [&](const char* file, bool given) {
    std::vector<std::string> arguments = {to_text(spec), "--rows",   "5",
                                          "--check",     "--dx-out", directory_ / file};
    if (given)
      for (const char* const one : {"saved_mean", "saved_rstd"}) {
        std::string option = concat({"--", one});
        option[option.find('_')] = '-';
        arguments.insert(arguments.end(), {option, directory_ / (std::string(one) + ".npy")});
      }
    checked(arguments);
    return contents(directory_ / file);
  };
  EXPECT_NE(dx_of("dx.npy", false), dx_of("given.npy", true));
}

// The heads of a projection, normalized where they are: what lies between them stays as it is.
TEST_F(RunOnHost, AnAddressMakesTheFileTheBuffer) {
  const NormSpec spec = parse_spec("rmsnorm/cols=16/f32/w").value();
  constexpr std::int64_t kTokens = 3, kHeads = 4, kWidth = 100;
  oracle::Matrix buffer(DType::f32, kTokens, kWidth);
  oracle::fill_random(buffer, 3, {9, 0, 1});
  oracle::write_npy(directory_ / "qkv.npy", buffer, {kTokens, kWidth}).value();
  oracle::Problem problem =
      oracle::make_problem(spec, kTokens * kHeads, {{Operand::x, {kHeads, kWidth, 16, kTokens * kWidth}}},
                           set_of(Operand::y))
          .value();
  oracle::fill(problem, 4);
  oracle::write_npy(directory_ / "w.npy", problem[Operand::weight], {16}).value();
  const std::vector<std::string> arguments = {
      to_text(spec),        "--rows",      "12",       "--x",   directory_ / "qkv.npy", "--weight",
      directory_ / "w.npy", "--x-address", "4,100,16", "--out", directory_ / "y.npy",   "--check"};
  std::vector<std::string> in_place = arguments;
  in_place.emplace_back("--out-in-place");
  const ToolRun tool = run(in_place);
  ASSERT_EQ(tool.status, 0) << tool.err;
  EXPECT_THAT(tool.out, HasSubstr("grouped_rows=1"));
  auto y = oracle::NpyFile::open(directory_ / "y.npy").value();
  EXPECT_EQ(y.shape(), (std::vector<std::int64_t>{kTokens, kWidth})) << "the buffer of x";
  y.read_buffer(problem[Operand::y]).value();
  oracle::NpyFile::open(directory_ / "qkv.npy").value().read_buffer(problem[Operand::x]).value();
  const oracle::CheckReport report = oracle::check(problem, problem.rows);
  EXPECT_TRUE(report.ok()) << report[Operand::y].largest.error << " " << report.overwritten;

  ASSERT_EQ(run(arguments).status, 0);
  EXPECT_EQ(oracle::NpyFile::open(directory_ / "y.npy").value().shape(), (std::vector<std::int64_t>{12, 16}))
      << "rows of its own";
}

TEST_F(RunOnHost, EveryRowOperandMayComeInGroups) {
  const Json report =
      checked({"layernorm/cols=24/f16/inb/res=f32/add/sum/wb:rows", "--rows", "8", "--x-address", "4,120,25",
               "--out-address", "2,24,96", "--residual-address", "4,0,24", "--sum-out-address", "4,128,26",
               "--weight-address", "4,0,24", "--bias-address", "2,48,0", "--schedule", "0,1"});
  EXPECT_EQ(report.at("check").at("sum").at("values"), 8 * 24);
  EXPECT_EQ(report.at("check").at("overwritten_gap_bytes"), 0);
}

TEST_F(RunOnHost, BothOutputsInPlace) {
  const Json report = checked({"rmsnorm/cols=256/bf16/add/sum/round=sum/w", "--rows", "9", "--out-in-place",
                               "--sum-out-in-place", "--schedule", "0,1,2"});
  EXPECT_EQ(report.at("launches").size(), 3u) << "each finds the inputs again";
  const Json padded = checked({"rmsnorm/cols=33/f32/add/sum", "--rows", "5", "--x-row-stride", "40",
                               "--residual-row-stride", "50", "--out-in-place", "--sum-out-in-place"});
  EXPECT_EQ(padded.at("check").at("overwritten_gap_bytes"), 0);
}

TEST_F(RunOnHost, ChannelsFirstHavePlanes) {
  const std::string spec = "layernorm/cols=40/f32/eps=1e-06/add/sum/wb/stats/cf";
  const Json report = checked({spec, "--rows", "98", "--plane", "49", "--schedule", "0,1,2"});
  EXPECT_EQ(report.at("check").at("y").at("values"), 98 * 40);
  EXPECT_THAT(report.at("plan"), testing::StartsWith("channels_first"));
  const Json apart = checked({spec, "--rows", "60", "--plane", "20", "--x-row-stride", "804",
                              "--out-in-place", "--sum-row-stride", "4000"});
  EXPECT_EQ(apart.at("check").at("overwritten_gap_bytes"), 0);
  checked({spec, "--rows", "0", "--plane", "20"});

  // The plane follows from the shape of a file, which is that of y, too.
  const std::string bare = "layernorm/cols=6/f32/cf";
  oracle::Problem problem = oracle::make_problem(parse_spec(bare).value(), 40, {}, 0, 20).value();
  oracle::fill(problem, 1);
  oracle::write_npy(directory_ / "x.npy", problem[Operand::x], {2, 6, 4, 5}).value();
  checked({bare, "--x", directory_ / "x.npy", "--out", directory_ / "y.npy"});
  EXPECT_EQ(oracle::NpyFile::open(directory_ / "y.npy").value().shape(),
            (std::vector<std::int64_t>{2, 6, 4, 5}));

  EXPECT_THAT(run({bare, "--rows", "40"}).err, HasSubstr("needs the positions of a sample"));
  EXPECT_THAT(run({bare, "--rows", "40", "--plane", "7"}).err, HasSubstr("no multiple of --plane 7"));
  EXPECT_THAT(run({"layernorm/cols=6/f32", "--rows", "40", "--plane", "20"}).err,
              HasSubstr("--plane is for specs with channels first"));
  EXPECT_THAT(run({bare, "--rows", "40", "--plane", "20", "--x-address", "4,120,25"}).err,
              HasSubstr("only the distance of samples can be given"));
}

// The plan for many rows, however many there are; and the kernel of rows in groups, whether there are any.
TEST_F(RunOnHost, KernelsOfBothUses) {
  const std::string spec = "layernorm/cols=1024/f32/eps=1e-05/wb";
  const DeviceProfile device = DeviceProfile::of(Arch{90}).value();
  const auto plan_for = [&](RowsRegime regime) {
    return to_text(choose(parse_spec(spec).value(), device, regime, Alignment::eight));
  };
  ASSERT_NE(plan_for(RowsRegime::lone), plan_for(RowsRegime::many)) << "this spec shows nothing";
  EXPECT_EQ(checked({spec, "--rows", "1"}).at("plan"), plan_for(RowsRegime::lone));
  EXPECT_EQ(checked({spec, "--rows", "1", "--batch-invariant"}).at("plan"), plan_for(RowsRegime::many));
  EXPECT_EQ(checked({spec, "--rows", "1", "--grouped-rows"}).at("plan"),
            plan_for(RowsRegime::lone) + " grouped_rows=1");
}

TEST_F(RunOnHost, AddressesThatCannotBe) {
  const std::string spec = "layernorm/cols=64/f16/addafter/w";
  const std::pair<std::vector<std::string>, std::string> mistakes[] = {
      {{"--x-address", "4,256"}, "--x-address is '4,256'; it must be N,OUTER,INNER"},
      {{"--x-address", "4,256,-1"}, "it must be N,OUTER,INNER"},
      {{"--x-address", "3,256,64"}, "BadStride: the rows of x: there are 8, which are no groups of n = 3"},
      {{"--out-address", "4,128,64"}, "BadStride: the rows of y: rows of an output must not overlap"},
      {{"--weight-address", "4,0,64"}, "weight is a vector"},
      {{"--sum-out-address", "4,256,64"}, "sum is not there"},
      {{"--x-address", "4,256,64", "--x-row-stride", "64"}, "not both"},
      {{"--out-address", "4,256,64", "--out-in-place"}, "the rows of y are those of x"},
      {{"--sum-out-in-place"}, "Overlap"},
      {{"--x-address", "4,300,64", "--plan", "warp_rows threads=64 threads_per_row=8 vector=4 per_thread=2"},
       "BadStride: rows come in groups"}};
  for (const auto& [options, message] : mistakes) {
    std::vector<std::string> arguments = {spec, "--rows", "8"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const ToolRun tool = run(arguments);
    EXPECT_EQ(tool.status, 2) << testing::PrintToString(options);
    EXPECT_THAT(tool.err, HasSubstr(message));
  }
  oracle::write_npy(directory_ / "x.npy", oracle::Matrix(DType::f16, 3, 64), {3, 64}).value();
  const ToolRun no_rows = run({spec, "--x", directory_ / "x.npy", "--x-address", "1,64,0"});
  EXPECT_EQ(no_rows.status, 2);
  EXPECT_THAT(no_rows.err, HasSubstr("say how many rows with --rows"));
  const ToolRun beyond = run({spec, "--rows", "4", "--x", directory_ / "x.npy", "--x-address", "1,64,0"});
  EXPECT_EQ(beyond.status, 2);
  EXPECT_THAT(beyond.err, HasSubstr("they reach to element 256 of a buffer of 192"));
}

TEST_F(RunOnHost, ScalesAreFilesByName) {
  const NormSpec rows = parse_spec("rmsnorm/cols=40/bf16/out=e4m3/q=row").value();
  oracle::Problem problem = oracle::make_problem(rows, 5).value();
  oracle::fill(problem, 7);
  oracle::write_npy(directory_ / "x.npy", problem[Operand::x], {5, 40}).value();
  ASSERT_EQ(run({to_text(rows), "--x", directory_ / "x.npy", "--out", directory_ / "y.npy", "--row-scale-out",
                 directory_ / "s.npy"})
                .status,
            0);
  oracle::NpyFile::open(directory_ / "y.npy").value().read(problem[Operand::y]).value();
  oracle::NpyFile scales = oracle::NpyFile::open(directory_ / "s.npy").value();
  EXPECT_EQ(scales.shape(), std::vector<std::int64_t>{5});
  scales.read(problem[Operand::row_scale]).value();
  EXPECT_TRUE(oracle::check(problem, 5).ok());

  const NormSpec tensor = parse_spec("rmsnorm/cols=40/bf16/out=s8/q=tensor").value();
  problem = oracle::make_problem(tensor, 5).value();
  oracle::fill(problem, 7);
  const double scale = 0.25;
  oracle::store(DType::f32, problem[Operand::tensor_scale].data(), 0, 1, &scale);
  oracle::write_npy(directory_ / "t.npy", problem[Operand::tensor_scale], {}).value();
  ASSERT_EQ(run({to_text(tensor), "--x", directory_ / "x.npy", "--out", directory_ / "y.npy",
                 "--tensor-scale", directory_ / "t.npy"})
                .status,
            0);
  oracle::NpyFile::open(directory_ / "y.npy").value().read(problem[Operand::y]).value();
  EXPECT_TRUE(oracle::check(problem, 5).ok());

  oracle::write_npy(directory_ / "t.npy", oracle::Matrix(DType::f32, 1, 2), {2}).value();
  const ToolRun two = run({to_text(tensor), "--rows", "5", "--tensor-scale", directory_ / "t.npy"});
  EXPECT_EQ(two.status, 2);
  EXPECT_THAT(two.err, HasSubstr("but 1 x 1 elements are needed"));
  const ToolRun none = run({to_text(rows), "--rows", "5", "--tensor-scale", directory_ / "t.npy"});
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err, HasSubstr("has no tensor_scale"));
}

// What is written is read here by the shape of its layout, and is right.
TEST_F(RunOnHost, ScalesOfBlocksAndFurtherResultsAreFiles) {
  using Shape = std::vector<std::int64_t>;
  const struct {
    const char* text;
    std::map<Operand, Shape> shapes;  // of inputs and outputs besides x and y
  } cases[] = {
      {"out=e4m3/q=64", {{Operand::block_scale, {6, 3}}}},
      {"out=e4m3/q=64:p2:cols/also=f32", {{Operand::block_scale, {3, 8}}, {Operand::also, {2, 3, 192}}}},
      {"out=e4m3/q=32:e8m0:cols4", {{Operand::block_scale, {2, 8, 4}}}},
      {"out=e4m3/q=16:e4m3:sw/also=bf16",
       {{Operand::global_scale, {}}, {Operand::block_scale, {1, 3, 512}}, {Operand::also, {2, 3, 192}}}},
      {"out=e2m1/q=16:e4m3", {{Operand::global_scale, {}}, {Operand::block_scale, {6, 12}}}},
      {"out=e4m3/q=row:ub", {{Operand::upper_bound, {}}, {Operand::row_scale, {6}}}},
      {"out=e4m3/q=tensor/amax", {{Operand::tensor_scale, {1}}, {Operand::amax, {}}}}};
  const auto file_of = [&](Operand operand) { return directory_ / concat({name(operand), ".npy"}); };
  for (const auto& [text, shapes] : cases) {
    SCOPED_TRACE(text);
    const NormSpec spec = parse_spec(concat({"rmsnorm/cols=192/bf16/", text})).value();
    oracle::Problem problem = oracle::make_problem(spec, 6).value();
    oracle::fill(problem, 7);
    oracle::write_npy(directory_ / "x.npy", problem[Operand::x], {2, 3, 192}).value();
    std::vector<std::string> arguments = {to_text(spec), "--x", directory_ / "x.npy", "--out",
                                          directory_ / "y.npy"};
    for (const auto& [operand, shape] : shapes) {
      const OperandRow& row = row_of(operand);
      if (!row.output) oracle::write_npy(file_of(operand), problem[operand], shape).value();
      std::string option = concat({"--", row.name, row.output ? "-out" : ""});
      std::replace(option.begin(), option.end(), '_', '-');
      arguments.insert(arguments.end(), {option, file_of(operand)});
    }
    ASSERT_EQ(run(arguments).status, 0);
    auto y = oracle::NpyFile::open(directory_ / "y.npy").value();
    EXPECT_EQ(y.shape(), (Shape{2, 3, spec.output == DType::e2m1 ? 96 : 192}));
    y.read(problem[Operand::y]).value();
    for (const auto& [operand, shape] : shapes) {
      if (!row_of(operand).output) continue;
      auto file = oracle::NpyFile::open(file_of(operand)).value();
      EXPECT_EQ(file.shape(), shape) << name(operand);
      file.read(problem[operand]).value();
    }
    EXPECT_TRUE(oracle::check(problem, 6).ok());
  }
}

TEST_F(RunOnHost, TheSecondResultHasRowsOfItsOwn) {
  const std::string spec = "rmsnorm/cols=96/bf16/out=e4m3/q=row/also=bf16";
  const Json padded = checked({spec, "--rows", "6", "--also-row-stride", "104", "--schedule", "0,1"});
  EXPECT_EQ(padded.at("check").at("also").at("values"), 6 * 96);
  EXPECT_EQ(padded.at("check").at("overwritten_gap_bytes"), 0);
  const Json grouped = checked({spec, "--rows", "6", "--also-out-address", "3,400,100"});
  EXPECT_EQ(grouped.at("check").at("overwritten_gap_bytes"), 0);
}

// Launches of several orders of blocks, one after the other, with one workspace, which each leaves as it was.
TEST_F(RunOnHost, TheLargestResultDoesNotDependOnTheOrderOfBlocks) {
  const struct {
    const char *spec, *rows, *plan;
  } cases[] = {
      {"rmsnorm/cols=64/bf16/w/amax", "90",
       "warp_rows threads=64 threads_per_row=8 vector=8 per_thread=1 group_rows=1 blocks_per_sm=1"},
      {"rmsnorm/cols=1024/bf16/out=e4m3/w/q=tensor/also=f32/amax", "11",
       "block_row threads=64 threads_per_row=64 vector=8 per_thread=2 group_rows=1 blocks_per_sm=1"},
      {"layernorm/cols=4096/f32/wb/amax", "7",
       "block_row threads=64 threads_per_row=64 vector=4 per_thread=4 group_rows=1 blocks_per_sm=1 "
       "blocks_per_row=4 exchange=grid"},
      {"layernorm/cols=300/f16/out=s8/q=tensor/amax", "40",
       "generic threads=256 threads_per_row=32 vector=1 per_thread=32 group_rows=1 blocks_per_sm=1"}};
  for (const auto& [spec, rows, plan] : cases) {
    SCOPED_TRACE(plan);
    const Json report = checked({spec, "--rows", rows, "--plan", plan, "--schedule", "0,1,2,3"});
    EXPECT_EQ(report.at("launches").size(), 4u);
    EXPECT_EQ(report.at("check").at("amax").at("values"), 1);
  }
}

TEST_F(RunOnHost, ScalesThatTheSpecDoesNotHaveAreRefused) {
  oracle::write_npy(directory_ / "g.npy", oracle::Matrix(DType::f32, 1, 1), {}).value();
  const struct {
    const char *spec, *option, *name;
  } mistakes[] = {{"rmsnorm/cols=128/bf16/out=e4m3/q=row", "--block-scale-out", "block_scale"},
                  {"rmsnorm/cols=128/bf16/out=e4m3/q=128", "--row-scale-out", "row_scale"},
                  {"rmsnorm/cols=128/bf16/out=e4m3/q=128", "--global-scale", "global_scale"},
                  {"rmsnorm/cols=128/bf16/out=e4m3/q=row", "--upper-bound", "upper_bound"},
                  {"rmsnorm/cols=128/bf16", "--amax-out", "amax"},
                  {"rmsnorm/cols=128/bf16/out=e4m3/q=row", "--also-out", "also"}};
  for (const auto& [spec, option, name] : mistakes) {
    const ToolRun tool = run({spec, "--rows", "2", option, directory_ / "g.npy"});
    EXPECT_EQ(tool.status, 2) << option;
    EXPECT_THAT(tool.err, HasSubstr(std::string(option) + " is given, but"));
    EXPECT_THAT(tool.err, HasSubstr(std::string("has no ") + name + "\n"));
  }
}

TEST_F(RunOnHost, NoRowsAreASuccess) {
  for (const char* const spec :
       {"layernorm/cols=64/f32/stats", "rmsnorm/cols=64/f32/out=e4m3/q=64:cols",
        "rmsnorm/cols=64/f32/out=e4m3/q=64:e8m0:sw/also=f16", "rmsnorm/cols=64/f32/amax"})
    EXPECT_EQ(checked({spec, "--rows", "0"}).at("rows"), 0) << spec;
}

TEST_F(RunOnHost, LargeTensorsAreNotCheckedUnlessAskedFor) {
  const std::vector<std::string> arguments = {"layernorm/cols=8/f32", "--rows", "2", "--x-row-stride",
                                              std::to_string(16 << 20)};
  const ToolRun large = run(arguments);
  ASSERT_EQ(large.status, 0) << large.err;
  EXPECT_THAT(large.err, HasSubstr("accesses are not checked; --checks on checks them\n"));
  EXPECT_EQ(std::count(large.err.begin(), large.err.end(), '\n'), 1);
  EXPECT_THAT(large.out, HasSubstr("checks off"));

  std::vector<std::string> asked = arguments;
  asked.insert(asked.end(), {"--checks", "on"});
  const ToolRun on = run(asked);
  EXPECT_THAT(on.err, IsEmpty());
  EXPECT_THAT(on.out, HasSubstr("checks on"));
}

TEST_F(RunOnHost, KeepsSourceAndLibraryForADebugger) {
  const std::string kept = directory_ / "for/gdb";
  const Json report = checked({"layernorm/cols=64/f32", "--rows", "2", "--keep", kept});
  EXPECT_EQ(report.at("kept_in"), kept);
  const std::string plan = report.at("plan"), schedule = plan.substr(0, plan.find(' '));
  EXPECT_THAT(contents(kept + "/kernels.cc"), HasSubstr("#line 1 \"schedule/" + schedule + ".cu\""));
  EXPECT_GT(std::filesystem::file_size(kept + "/kernels.so"), 0u);

  std::ofstream(directory_ / "file") << "not a directory";
  const ToolRun nowhere = run({"layernorm/cols=64/f32", "--rows", "2", "--keep", directory_ / "file/gdb"});
  EXPECT_EQ(nowhere.status, 4);
  EXPECT_THAT(nowhere.err, HasSubstr("--keep"));
}

TEST_F(RunOnHost, ACompilerThatFailsExitsWith1) {
  const ToolRun failed = run({"layernorm/cols=64/f32", "--rows", "2"}, {"NORMJIT_HOST_CXX=false"});
  EXPECT_EQ(failed.status, 1);
  EXPECT_THAT(failed.err, HasSubstr("CompileFailed"));
}

// The templates with the barrier removed that block_row.cu has before it reads what other warps have written.
class RunOnHostWithoutABarrier : public RunOnHost {
 protected:
  void SetUp() override {
    std::filesystem::copy(NORMJIT_SOURCE_DIR "/templates", templates(),
                          std::filesystem::copy_options::recursive);
    const std::string file = templates() + "/schedule/block_row.cu";
    std::string text = contents(file);
    const std::string barrier = "hw::block_barrier();";
    const std::size_t reading = text.find("= merge_parts("), at = text.rfind(barrier, reading);
    ASSERT_NE(reading, std::string::npos);
    ASSERT_NE(at, std::string::npos);
    reading_line_ = 1 + static_cast<int>(std::count(text.begin(), text.begin() + reading, '\n'));
    std::ofstream(file) << text.erase(at, barrier.size());
  }
  std::string templates() const { return directory_ / "templates"; }
  std::string variable() const { return "NORMJIT_TEMPLATE_DIR=" + templates(); }
  // Two rows, by a block each.
  std::vector<std::string> launch() const {
    return {"layernorm/cols=4096/f32/wb",
            "--rows",
            "2",
            "--schedule",
            "0,1",
            "--plan",
            "block_row threads=256 threads_per_row=256 vector=4 per_thread=4"};
  }

  int reading_line_ = 0;  // where block_row.cu reads what other warps have written
};

TEST_F(RunOnHostWithoutABarrier, TheMessageSaysWhatWhereAndHowToSeeItAgain) {
  std::vector<std::string> arguments = launch();
  arguments.insert(arguments.end(), {"--out", directory_ / "y.npy"});
  const ToolRun faulty = run(arguments, {variable()});
  EXPECT_EQ(faulty.status, 1);
  EXPECT_THAT(faulty.out, IsEmpty());
  EXPECT_THAT(faulty.err, testing::StartsWith("normjit: uninitialized: "));
  EXPECT_THAT(faulty.err, HasSubstr("block_row.cu:" + std::to_string(reading_line_)));
  EXPECT_THAT(faulty.err, HasSubstr("schedule 0"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "y.npy")) << "unfinished outputs";

  const std::string heading = "To see it again: ";
  const std::size_t at = faulty.err.find(heading);
  ASSERT_NE(at, std::string::npos) << faulty.err;
  const std::string command = faulty.err.substr(at + heading.size());
  EXPECT_THAT(command, HasSubstr("--schedule 0\n"));
  EXPECT_THAT(command, HasSubstr(variable()));
  const std::string log = directory_ / "log";
  const int status = std::system((command.substr(0, command.size() - 1) + " 2>" + log).c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_EQ(contents(log), faulty.err);

  EXPECT_EQ(run(arguments).status, 0) << "the templates that are built in have the barrier";
}

TEST_F(RunOnHostWithoutABarrier, UncheckedResultsMustNotDependOnTheSchedule) {
  std::vector<std::string> arguments = launch();
  arguments.insert(arguments.end(), {"--checks", "off"});
  const ToolRun faulty = run(arguments, {variable()});
  EXPECT_EQ(faulty.status, 1);
  EXPECT_THAT(faulty.err, HasSubstr("the result depends on the order of the threads"));
  EXPECT_THAT(faulty.err, HasSubstr("first in y, row 0, column "));
  EXPECT_THAT(faulty.err, HasSubstr("--schedule 0,1"));
}

// Faults in the templates that show only between blocks, between launches, or in rows whose parts differ.
struct PlantedFault {
  const char *name, *file, *from, *to;
  std::vector<std::string> launch;
  const char* message;
};
// Three chunks a row, the last of them shorter.
const std::vector<std::string> kSplitRow = {"layernorm/cols=1200/f32/wb", "--rows", "9", "--plan",
                                            "split_row threads=64 threads_per_row=64 vector=4 per_thread=2"};
std::vector<std::string> split_row(const std::vector<std::string>& more) {
  std::vector<std::string> all = kSplitRow;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

class RunOnHostWithAFault : public RunOnHost, public testing::WithParamInterface<PlantedFault> {};

TEST_P(RunOnHostWithAFault, IsFound) {
  const PlantedFault& fault = GetParam();
  EXPECT_EQ(run(fault.launch).status, 0) << "the templates that are built in are right";
  const std::string templates = directory_ / "templates", file = templates + "/" + fault.file;
  std::filesystem::copy(NORMJIT_SOURCE_DIR "/templates", templates, std::filesystem::copy_options::recursive);
  std::string text = contents(file);
  const std::size_t at = text.find(fault.from);
  ASSERT_NE(at, std::string::npos);
  std::ofstream(file) << text.replace(at, std::string_view(fault.from).size(), fault.to);
  const ToolRun faulty = run(fault.launch, {"NORMJIT_TEMPLATE_DIR=" + templates});
  EXPECT_EQ(faulty.status, 1);
  EXPECT_THAT(faulty.err, HasSubstr(fault.message));
}

INSTANTIATE_TEST_SUITE_P(
    Table, RunOnHostWithAFault,
    testing::Values(
        PlantedFault{"StatisticsAreReleasedBeforeTheyAreWritten", "schedule/split_row.cu",
                     "w.known[slot].statistics = statistics;\n    hw::arrive(&w.ring[slot].ready);",
                     "hw::arrive(&w.ring[slot].ready);\n    w.known[slot].statistics = statistics;",
                     split_row({"--schedule", "0,1,2"}), "race: "},
        PlantedFault{"TheWorkspaceIsNotReadyForTheNextLaunch", "schedule/split_row.cu", "w.ring[i] = {};",
                     "w.ring[i].applied = {};", kSplitRow, "the workspace is not ready for the next launch"},
        PlantedFault{"TheLastChunkCountsAsAFullOne", "schedule/split_row.cu",
                     "widened(columns_of_chunk(i), base)", "widened(kSpan, base)", split_row({"--check"}),
                     "the result differs from the reference"},
        PlantedFault{"ALaunchDoesNotWaitForTheOneBefore",
                     "schedule/warp_rows.cu",
                     "    hw::wait_for_previous_launch();\n",
                     "",
                     {"layernorm/cols=64/f32/wb", "--rows", "9", "--plan",
                      "warp_rows threads=64 threads_per_row=8 vector=4 per_thread=2"},
                     "before wait_for_previous_launch()"},
        PlantedFault{"TheRowsOfAGroupAreTakenForOne",
                     "layout.cuh",
                     " + group * rows.step",
                     "",
                     {"rmsnorm/cols=64/f32/w", "--rows", "8", "--x-address", "4,300,64", "--check"},
                     "the result differs from the reference"},
        PlantedFault{"TheSumIsNotRounded",
                     "op/source.cuh",
                     "Choice<kRoundsSum, Residual, Acc>",
                     "Choice<kRoundsSum, Acc, Acc>",
                     {"rmsnorm/cols=256/bf16/out=f32/add/round=sum", "--rows", "8", "--check"},
                     "the result differs from the reference"},
        PlantedFault{"ARowIsWrittenBetweenTheGroups",
                     "layout.cuh",
                     "group * rows.step",
                     "group * (rows.step - 8)",
                     {"layernorm/cols=64/f32", "--rows", "8", "--out-address", "4,300,64", "--check"},
                     "the result differs from the reference"}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace normjit
