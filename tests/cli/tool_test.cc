// SPDX-License-Identifier: Apache-2.0
// Exit codes and messages of the real tool, where neither a compiler nor a GPU is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "normjit/plan.h"
#include "tests/support/pages.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using Json = nlohmann::json;

constexpr const char* kSpec = "layernorm/cols=64/f32/eps=1e-05/wb/gelu";

class Tool : public testing::Test {
 protected:
  // The command with a cache of the test's own.
  ToolRun run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--cache-dir", cache()});
    return run_tool(arguments);
  }
  std::string cache() const { return directory_ / "cache"; }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ / name) << text;
    return directory_ / name;
  }

  TempDirectory directory_;
};

TEST_F(Tool, HelpSaysHowToUseEachCommand) {
  const ToolRun help = run_tool({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.err, IsEmpty());
  for (const char* command : {"prebuild", "list", "show", "render", "run", "bench", "doctor"}) {
    EXPECT_THAT(help.out, HasSubstr(command));
    const ToolRun own = run_tool({command, "--help"});
    EXPECT_EQ(own.status, 0) << command;
    EXPECT_THAT(own.out, HasSubstr("--cache-dir")) << command;
    EXPECT_THAT(own.out, HasSubstr("Exit status")) << command;
  }
}

TEST_F(Tool, VersionIsOneLine) {
  const ToolRun version = run_tool({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_THAT(version.out, testing::MatchesRegex("normjit [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST_F(Tool, UsageErrorsExitWith2) {
  const std::vector<std::vector<std::string>> mistakes = {
      {},
      {"no-such-command"},
      {"list", "--no-such-option"},
      {"show"},
      {"show", "layernorm/cols=0/f32"},
      {"show", "layernorm/cols=64/f99"},
      {"show", kSpec, "--arch", "sm_90,sm_80"},
      {"show", kSpec, "--arch", "sm_12"},
      {"show", kSpec, "--rows", "-1"},
      {"list", "--log", "loud"},
      {"render", kSpec, "--arch", "sm_90", "--align", "3"},
      {"prebuild", kSpec, "--arch", "volta"},
      {"prebuild", kSpec, "--arch", ""},
      {"prebuild", kSpec, "--arch", "sm_90", "-j", "-1"},
      {"run", kSpec},
      {"run", kSpec, "--rows", "-3"},
      {"run", "layernorm/cols=64/f32", "--rows", "1", "--weight", "w.npy"},
      {"run", kSpec, "--rows", "1", "--mean-out", "mean.npy"},
      {"run", kSpec, "--rows", "2", "--y-row-stride", "63"},
      {"run", kSpec, "--x", "no-such-file.npy"},
      {"run", kSpec, "--rows", "1", "--device", "cpu"},
      {"run", kSpec, "--rows", "1", "--device", "-1"},
      {"run", kSpec, "--rows", "1", "--device", ""},
      {"run", kSpec, "--rows", "1", "--arch", "sm_80"},
      {"run", kSpec, "--rows", "1", "--device", "0", "--schedule", "1"},
      {"run", kSpec, "--rows", "1", "--checks", "on"},
      {"run", kSpec, "--rows", "1", "--keep", "directory"},
      {"run", kSpec, "--rows", "1", "--device", "host", "--repeat", "5"},
      {"run", kSpec, "--rows", "1", "--device", "host", "--arch", "sm_12"},
      {"run", kSpec, "--rows", "1", "--device", "host", "--arch", "sm_80,sm_90"},
      {"run", kSpec, "--rows", "1", "--device", "host", "--schedule", "0,,1"},
      {"run", kSpec, "--rows", "1", "--device", "host", "--schedule", "-1"},
      {"run", kSpec, "--rows", "1", "--device", "host", "--checks", "maybe"},
      {"bench", kSpec, "--rows", "0"},
      {"bench", kSpec, "--rows", "12x"},
      {"render", kSpec, "--arch", "sm_90", "--plan", "fast"},
      {"run", kSpec, "--rows", "1", "--device", "host", "--plan", "fast"},
      {"bench", kSpec, "--plan", "fast"},
  };
  for (const auto& arguments : mistakes) {
    const ToolRun run = run_tool(arguments);
    EXPECT_EQ(run.status, 2) << testing::PrintToString(arguments) << run.err;
    EXPECT_THAT(run.out, IsEmpty()) << testing::PrintToString(arguments);
    EXPECT_FALSE(run.err.empty()) << testing::PrintToString(arguments);
  }
}

TEST_F(Tool, StandardOutputThatIsFullExitsWith4) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"list", "--cache-dir", cache()},
                                             {"render", kSpec, "--arch", "sm_90"},
                                             {"prebuild", kSpec, "--arch", "sm_90", "--check", "--json"},
                                             {"--help"},
                                             {"--version"}}) {
    const ToolRun run = run_tool(arguments, {}, "/dev/full");
    EXPECT_EQ(run.status, 4) << arguments[0];
    EXPECT_THAT(run.err, testing::EndsWith("standard output cannot be written: No space left on device\n"));
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
}

TEST_F(Tool, ForeignTextIsEscapedAndShort) {
  const std::string spec = file("bad.json", R"(["layernorm/cols=64/f32\u0000\u001b[31m\nred"])");
  const ToolRun manifest = run({"prebuild", "--manifest", spec, "--arch", "sm_90"});
  EXPECT_EQ(manifest.status, 2);
  EXPECT_THAT(manifest.err, HasSubstr(R"('layernorm/cols=64/f32\x00\x1b[31m\nred' is not a spec)"));
  const std::string foreign = "\x1b[31m\n" + std::string(100'000, 'a');
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"show", "layernorm/cols=64/f32" + foreign},
                                             {"show", kSpec, "--arch", foreign},
                                             {"render", kSpec, "--arch", "sm_90", "--plan", foreign},
                                             {"run", kSpec, "--rows", "1", "--device", foreign},
                                             {"list", "--" + foreign}}) {
    const ToolRun run = run_tool(arguments);
    EXPECT_EQ(run.status, 2) << arguments[0];
    EXPECT_LT(run.err.size(), 5000u);
    EXPECT_THAT(run.err, testing::Not(HasSubstr("\x1b")));
    EXPECT_THAT(run.err, HasSubstr(R"(\x1b[31m\naaaa)"));
    const bool usage = arguments[0] == "list";  // a second line says where the help is
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), usage ? 2 : 1) << run.err.substr(0, 300);
  }
}

TEST_F(Tool, ManifestsWithoutEndAreRefused) {
  const ToolRun run = this->run({"prebuild", "--manifest", "/dev/zero", "--arch", "sm_90"});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.err, HasSubstr("/dev/zero has more than 64 MiB"));
}

TEST_F(Tool, TooLittleMemoryIsSaid) {
#if defined(NORMJIT_ADDRESS_SANITIZER) || defined(NORMJIT_THREAD_SANITIZER)
  GTEST_SKIP() << "a sanitizer needs more address space than this test leaves";
#endif
  const std::string large = file("large.json", ""), err = directory_ / "err";
  std::filesystem::resize_file(large, std::size_t{60} << 20);
  const std::string command = "ulimit -v 100000; '" NORMJIT_TOOL "' prebuild --arch sm_90 --manifest '" +
                              large + "' 2> '" + err + "'";
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  std::ifstream in(err);
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(in), {}),
              StartsWith("normjit: there is not enough memory for this; "));
}

TEST_F(Tool, AFifoIsNoInput) {
  const std::string fifo = directory_ / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const ToolRun run = this->run({"run", kSpec, "--x", fifo, "--device", "host"});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.err, HasSubstr(fifo + ": must be a regular file"));
}

TEST_F(Tool, DoctorNamesATemplateDirectory) {
  const auto doctor = [&](const std::string& templates) {
    return run_tool({"doctor", "--cache-dir", cache()}, {"NORMJIT_TEMPLATE_DIR=" + templates});
  };
  const ToolRun none = doctor(directory_.path());
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.out, HasSubstr("\ntemplates  " + directory_.path() + "\n"));
  EXPECT_THAT(none.out, HasSubstr("NORMJIT_TEMPLATE_DIR is set: every kernel is made of these"));
  EXPECT_THAT(none.err, HasSubstr("prebuild cannot work here: cannot read template"));

  const std::string copy = directory_ / "templates";
  std::filesystem::copy(NORMJIT_SOURCE_DIR "/templates", copy, std::filesystem::copy_options::recursive);
  EXPECT_EQ(doctor(copy).status, doctor("").status);
  EXPECT_THAT(doctor(copy).out, HasSubstr("\ntemplates  " + copy + "\n"));
  EXPECT_THAT(doctor("").out, testing::Not(HasSubstr("templates")));
  const Json report = Json::parse(
      run_tool({"doctor", "--json", "--cache-dir", cache()}, {"NORMJIT_TEMPLATE_DIR=" + copy}).out);
  EXPECT_EQ(report.at("templates"), Json({{"directory", copy}, {"error", ""}}));

  std::ofstream(copy + "/plan_math.cuh", std::ios::app) << "// changed\n";
  EXPECT_EQ(doctor(copy).status, 1);
  EXPECT_THAT(doctor(copy).err, HasSubstr("plan_math.cuh differs"));
  std::filesystem::remove_all(copy);
  std::filesystem::copy(NORMJIT_SOURCE_DIR "/templates", copy, std::filesystem::copy_options::recursive);
  std::filesystem::remove(copy + "/schedule/split_row.cu");
  EXPECT_THAT(doctor(copy).err, HasSubstr("split_row.cu")) << "also one that only long rows need";
}

TEST_F(Tool, AnEmptyCacheDirectoryIsNone) {
  const std::vector<std::string> elsewhere = {"NORMJIT_CACHE_DIR=" + cache()};
  const ToolRun list = run_tool({"list", "--cache-dir", ""}, elsewhere);
  EXPECT_EQ(list.status, 4);
  EXPECT_THAT(list.err, HasSubstr("there is no cache directory"));
  EXPECT_EQ(run_tool({"show", kSpec, "--arch", "sm_90", "--cache-dir", ""}, elsewhere).status, 0);
  EXPECT_EQ(run_tool({"list"}, {"NORMJIT_CACHE_DIR=", "XDG_CACHE_HOME=", "HOME=" + cache()}).status, 0)
      << "an empty variable is unset";
  EXPECT_THAT(run_tool({"list", "--help"}).out, HasSubstr("'' for none"));
}

TEST_F(Tool, ADirectoryThatTakesNothingStopsAPrebuildFirst) {
  for (const std::string& place : {std::string("/dev/null"), file("file", ""), file("f", "") + "/cache"}) {
    const ToolRun run =
        run_tool({"prebuild", kSpec, "--arch", "sm_90", "--json", "--cache-dir", place},
                 {"NORMJIT_NVRTC_PATH=" + (directory_ / "libnvrtc.so")});  // compiling would fail
    EXPECT_EQ(run.status, 4) << run.err;
    EXPECT_THAT(run.err, HasSubstr("nothing was compiled"));
    const Json report = Json::parse(run.out);
    EXPECT_EQ(report.at("missing"), report.at("requested"));
    EXPECT_EQ(report.at("failed"), 0);
  }
}

TEST_F(Tool, PlainListsOfSpecsAreManifests) {
  const std::string path = file("list.txt", "layernorm/cols=64/f32\nlayernorm/cols=128/f32\n");
  const ToolRun prebuild = run({"prebuild", "--manifest", path, "--arch", "sm_90", "--dry-run"});
  EXPECT_EQ(prebuild.status, 0) << prebuild.err;
  EXPECT_THAT(prebuild.out, HasSubstr("layernorm/cols=128/f32"));
}

TEST_F(Tool, ZeroKernelsAreAnError) {
  EXPECT_EQ(run({"prebuild", "--arch", "sm_90"}).status, 2);
  const std::string empty = file("empty.json", R"({"normjit_manifest": 1, "specs": []})");
  const ToolRun prebuild = run({"prebuild", "--manifest", empty, "--arch", "sm_90"});
  EXPECT_EQ(prebuild.status, 2);
  EXPECT_THAT(prebuild.err, HasSubstr("nothing to build"));
}

TEST_F(Tool, BadManifestNamesFileAndEntry) {
  const std::string path =
      file("bad.json", R"({"normjit_manifest": 1, "specs": ["layernorm/cols=1/f32", "layernorm"]})");
  const ToolRun prebuild = run({"prebuild", "--manifest", path, "--arch", "sm_90"});
  EXPECT_EQ(prebuild.status, 2);
  EXPECT_THAT(prebuild.err, HasSubstr(path + ", entry 2: "));
  EXPECT_EQ(run({"prebuild", "--manifest", directory_ / "absent.json", "--arch", "sm_90"}).status, 2);
}

// The option takes one file each time, so a spec may follow it.
TEST_F(Tool, ManifestsAndSpecsMix) {
  const std::string path = file("one.json", R"({"normjit_manifest": 1, "specs": ["layernorm/cols=64/f32"]})");
  const ToolRun prebuild = run({"prebuild", "--manifest", path, "layernorm/cols=128/f32", "--manifest", path,
                                "--arch", "sm_90", "--dry-run", "--json"});
  ASSERT_EQ(prebuild.status, 0) << prebuild.err;
  std::vector<std::string> specs;
  const Json report = Json::parse(prebuild.out);
  for (const Json& result : report.at("results")) specs.push_back(result.at("spec"));
  EXPECT_THAT(specs, testing::Contains("layernorm/cols=64/f32/eps=1e-05"));
  EXPECT_THAT(specs, testing::Contains("layernorm/cols=128/f32/eps=1e-05"));
}

TEST_F(Tool, DryRunReportsWhatIsMissingAndWritesNothing) {
  const ToolRun prebuild = run({"prebuild", kSpec, "--arch", "all-major", "--dry-run", "--json"});
  ASSERT_EQ(prebuild.status, 0) << prebuild.err;
  const Json report = Json::parse(prebuild.out);
  EXPECT_GT(report.at("requested"), 0);
  EXPECT_EQ(report.at("missing"), report.at("requested"));
  EXPECT_EQ(report.at("compiled"), 0);
  EXPECT_EQ(report.at("failed"), 0);
  EXPECT_EQ(report.at("cache_directory"), cache());
  EXPECT_EQ(report.at("results").size(), report.at("requested"));
  for (const Json& result : report.at("results")) {
    EXPECT_EQ(result.at("spec"), kSpec);
    EXPECT_EQ(result.at("outcome"), "missing");
    EXPECT_EQ(result.at("id").get<std::string>().size(), 32u);
  }
  EXPECT_FALSE(std::filesystem::exists(cache()));
}

TEST_F(Tool, CheckOfAnEmptyCacheExitsWith1) {
  const ToolRun check = run({"prebuild", kSpec, "--arch", "sm_90", "--check"});
  EXPECT_EQ(check.status, 1);
  EXPECT_THAT(check.err, HasSubstr("missing"));
  EXPECT_THAT(check.out, HasSubstr(kSpec));
  EXPECT_FALSE(std::filesystem::exists(cache()));
}

TEST_F(Tool, ListOfAnEmptyCacheIsEmpty) {
  const ToolRun text = run({"list"});
  EXPECT_EQ(text.status, 0);
  EXPECT_THAT(text.out, StartsWith("0 entries"));
  const ToolRun json = run({"list", "--json"});
  EXPECT_EQ(json.status, 0);
  EXPECT_THAT(Json::parse(json.out).at("entries"), IsEmpty());
}

TEST_F(Tool, ShowKnowsEveryRegimeAndAlignment) {
  const ToolRun show =
      run({"show", "layernorm/shape=8x8/bf16/w", "--arch", "sm_90", "--rows", "1000", "--json"});
  ASSERT_EQ(show.status, 0) << show.err;
  const Json report = Json::parse(show.out);
  EXPECT_EQ(report.at("spec"), "layernorm/cols=64/bf16/eps=1e-05/w");
  EXPECT_EQ(report.at("columns"), 64);
  EXPECT_EQ(report.at("x_row_bytes"), 128);
  EXPECT_EQ(report.at("device").at("arch"), "sm_90");
  ASSERT_EQ(report.at("uses").size(), std::size(kRowsRegimes) * std::size(kAlignments));
  for (const Json& use : report.at("uses")) {
    EXPECT_FALSE(use.at("cached"));
    EXPECT_GT(use.at("blocks"), 0);
    EXPECT_EQ(use.at("id").get<std::string>().size(), 32u);
  }
  EXPECT_THAT(run({"show", kSpec, "--arch", "sm_90"}).out, HasSubstr("warp_rows"));
}

TEST_F(Tool, RenderPrintsOrWritesTheSource) {
  const ToolRun printed = run({"render", kSpec, "--arch", "sm_80"});
  ASSERT_EQ(printed.status, 0) << printed.err;
  EXPECT_THAT(printed.out, HasSubstr("#line"));
  const std::string path = directory_ / "kernel.cu";
  const ToolRun written = run({"render", kSpec, "--arch", "sm_80", "-o", path});
  EXPECT_EQ(written.status, 0);
  EXPECT_THAT(written.out, IsEmpty());
  std::ifstream in(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), printed.out);
  EXPECT_EQ(run({"render", kSpec, "--arch", "sm_80", "-o", directory_ / "no/such/file"}).status, 4);
}

TEST_F(Tool, DoctorSaysWhatIsMissing) {
  const ToolRun doctor = run_tool({"doctor", "--json", "--cache-dir", cache()},
                                  {"NORMJIT_NVRTC_PATH=" + (directory_ / "libnvrtc.so")});
  EXPECT_EQ(doctor.status, 3);
  EXPECT_THAT(doctor.err, HasSubstr("no compiler"));
  const Json report = Json::parse(doctor.out);
  EXPECT_EQ(report.at("compiler").at("path"), "");
  EXPECT_THAT(report.at("compiler").at("error"), HasSubstr("libnvrtc.so"));
  EXPECT_EQ(report.at("cache").at("directory"), cache());
  EXPECT_EQ(report.at("measured_archs"), Json::array({"sm_90"}));
  EXPECT_NE(report.at("host_compiler").at("path").get<std::string>().empty(),
            report.at("host_compiler").at("error").get<std::string>().empty());
  EXPECT_EQ(report.at("driver").at("version").get<std::string>().empty(),
            !report.at("driver").at("error").get<std::string>().empty());
}

// On every machine: the verdicts of the report are those of the exit status, and docs/tool.md has all
// members.
TEST_F(Tool, DoctorIsAProbe) {
  const auto doctor = [&](std::vector<std::string> more, const std::string& mode = "eager") {
    more.insert(more.begin(), {"doctor", "--json", "--cache-dir", cache()});
    return run_tool(more, {"NORMJIT_MODE=" + mode});
  };
  const ToolRun prebuild = doctor({}), serve = doctor({"--serve"});
  const Json report = Json::parse(prebuild.out);
  EXPECT_EQ(Json::parse(serve.out).at("serve"), report.at("serve"));
  EXPECT_EQ(prebuild.status, report.at("prebuild").at("error") == "" ? 0 : 3);
  EXPECT_EQ(serve.status, report.at("serve").at("error") == "" ? 0 : 3);
  EXPECT_EQ(report.at("serve").at("error") == "", !report.at("devices").empty());
  if (serve.status != 0) {
    EXPECT_THAT(serve.err, HasSubstr("kernels cannot be launched here: " +
                                     report.at("serve").at("error").get<std::string>()));
  }

  const std::string table = part_of(source_text("docs/tool.md"), "## Probe a machine", "## Fill a cache");
  for (const auto& [name, member] : report.items()) {
    EXPECT_THAT(table, HasSubstr("\n| `" + name + "` |"));
    const Json& object = member.is_array() && !member.empty() ? member[0] : member;
    if (!object.is_object()) continue;
    for (const auto& [inner, value] : object.items())
      EXPECT_THAT(table, HasSubstr("`" + inner + "`")) << name;
  }
}

TEST_F(Tool, TheManualPageHasEveryCommand) {
  const std::string page = source_text("packaging/normjit.1");
  const std::string commands = part_of(run({"--help"}).out, "Subcommands:\n", "\nA SPEC is");
  std::istringstream lines(commands.substr(commands.find('\n') + 1));
  int count = 0;
  for (std::string name, text; lines >> name && std::getline(lines >> std::ws, text); ++count)
    EXPECT_THAT(page, HasSubstr(".B " + name + "\n" + text));
  EXPECT_GT(count, 10);
}

TEST_F(Tool, OptionsOfTheOtherDeviceAreNamed) {
  const ToolRun gpu = run({"run", kSpec, "--rows", "1", "--arch", "sm_80"});
  EXPECT_THAT(gpu.err, HasSubstr("--arch is only for --device host"));
  const ToolRun host = run({"run", kSpec, "--rows", "1", "--device", "host", "--repeat", "5"});
  EXPECT_THAT(host.err, HasSubstr("--repeat times later calls on a GPU"));
  const ToolRun neither = run({"run", kSpec, "--rows", "1", "--device", "cpu"});
  EXPECT_THAT(neither.err, HasSubstr("--device is 'cpu'; it may be"));
}

TEST_F(Tool, WithoutAHostCompilerEmulationExitsWith3) {
  const std::vector<std::string> nothing = {"PATH=", "NORMJIT_HOST_CXX=/nonexistent/g++"};
  const ToolRun run = run_tool({"run", kSpec, "--rows", "1", "--device", "host"}, nothing);
  EXPECT_EQ(run.status, 3);
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(run.err, HasSubstr("/nonexistent/g++"));
  EXPECT_THAT(run.err, HasSubstr("NORMJIT_HOST_CXX"));
  EXPECT_THAT(run.err, testing::Not(HasSubstr("--device host runs"))) << "no way out of itself";

  const Json doctor = Json::parse(run_tool({"doctor", "--json", "--cache-dir", cache()}, nothing).out);
  EXPECT_EQ(doctor.at("host_compiler").at("path"), "");
  EXPECT_THAT(doctor.at("host_compiler").at("error"), HasSubstr("/nonexistent/g++"));
  EXPECT_THAT(run_tool({"doctor", "--cache-dir", cache()}, nothing).out,
              HasSubstr("no C++ compiler for run --device host"));
}

TEST_F(Tool, PrebuildWithoutACompilerExitsWith3) {
  const ToolRun prebuild = run_tool({"prebuild", kSpec, "--arch", "sm_90", "--cache-dir", cache(), "--json"},
                                    {"NORMJIT_NVRTC_PATH=" + (directory_ / "libnvrtc.so")});
  EXPECT_EQ(prebuild.status, 3);
  const Json report = Json::parse(prebuild.out);
  EXPECT_GT(report.at("failed"), 0);
  EXPECT_EQ(report.at("failed"), report.at("requested"));
  EXPECT_THAT(report.at("results").at(0).at("error"), HasSubstr("libnvrtc.so"));
}

TEST_F(Tool, NoCacheDirectoryExitsWith4) {
  const std::vector<std::string> homeless = {"NORMJIT_CACHE_DIR=", "XDG_CACHE_HOME=", "HOME="};
  EXPECT_EQ(run_tool({"list"}, homeless).status, 4);
  EXPECT_EQ(run_tool({"prebuild", kSpec, "--arch", "sm_90"}, homeless).status, 4);
}

// Where there is no GPU: with one these commands succeed, which the tests with the label gpu see to.
TEST_F(Tool, WithoutADriverGpuCommandsExitWith3) {
  const Json environment = Json::parse(run({"doctor", "--json"}).out);
  if (!environment.at("devices").empty()) GTEST_SKIP() << "this machine has a GPU";
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"run", kSpec, "--rows", "4"}, {"bench", kSpec}, {"prebuild", kSpec}}) {
    const ToolRun tool = run(arguments);
    EXPECT_EQ(tool.status, 3) << arguments[0];
    EXPECT_THAT(tool.out, IsEmpty()) << arguments[0];
  }
  EXPECT_THAT(run({"prebuild", kSpec}).err, HasSubstr("name architectures"));
  EXPECT_THAT(run({"run", kSpec, "--rows", "4"}).err, HasSubstr("--device host runs the kernel on the CPU"));
  EXPECT_THAT(run({"doctor"}).out, HasSubstr("none: prebuild, list, show and render work here"));
}

}  // namespace
}  // namespace normjit
