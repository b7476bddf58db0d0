// SPDX-License-Identifier: Apache-2.0
// A prebuild on more threads than one process is good for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/support/child.h"
#include "tests/support/nvrtc.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return (std::stringstream() << file.rdbuf()).str();
}

// The files of a cache with what is in them.
std::map<std::string, std::string> files_in(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(directory))
    files[file.path().filename()] = contents(file.path());
  return files;
}

// The running processes that a process has started.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string stat = contents(entry.path() / "stat");
    const std::size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos) continue;
    std::istringstream rest(stat.substr(name_end + 1));
    char state = 0;
    pid_t of = 0;
    if (rest >> state >> of && of == parent && state != 'Z')
      children.push_back(std::stoi(entry.path().filename()));
  }
  return children;
}

class PrebuildProcesses : public testing::NvrtcTest {
 protected:
  std::vector<std::string> command(const std::string& jobs) const {
    std::vector<std::string> words = {"prebuild", "--arch", "sm_90", "--json", "-j", jobs};
    for (int i = 1; i <= 8; ++i)  // of two kernels each, which compile fast
      words.push_back("layernorm/cols=1/f32/eps=" + std::to_string(i) + "e-05");
    words.insert(words.end(), {"--cache-dir", cache(jobs)});
    return words;
  }
  std::string cache(const std::string& jobs) const { return directory_ / ("cache" + jobs); }

  // Starts the tool, its report in a file. Its process.
  pid_t start(const std::string& jobs) const {
    return testing::start_child(
        [&] {
          std::vector<std::string> words = command(jobs);
          words.insert(words.begin(), NORMJIT_TOOL);
          std::vector<char*> arguments;
          for (std::string& word : words) arguments.push_back(word.data());
          arguments.push_back(nullptr);
          if (!std::freopen(report().c_str(), "w", stdout)) return false;
          if (!std::freopen("/dev/null", "w", stderr)) return false;
          execv(NORMJIT_TOOL, arguments.data());
          return false;
        },
        testing::Ending::immediate, /*seconds=*/300);
  }
  std::string report() const { return directory_ / "report.json"; }

  // Waits until this process has a child.
  static pid_t a_child_of(pid_t parent) {
    for (int i = 0; i < 3000; ++i) {
      if (const std::vector<pid_t> children = children_of(parent); !children.empty()) return children[0];
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "the prebuild has started no process";
    return -1;
  }

  TempDirectory directory_;
};

TEST_F(PrebuildProcesses, MakeWhatOneMakes) {
  const ToolRun one = run_tool(command("1")), eight = run_tool(command("8"));
  ASSERT_EQ(one.status, 0) << one.err;
  ASSERT_EQ(eight.status, 0) << eight.err;
  Json reports[] = {Json::parse(one.out), Json::parse(eight.out)};
  EXPECT_EQ(std::count(one.err.begin(), one.err.end(), '\n'),
            std::count(eight.err.begin(), eight.err.end(), '\n'));
  for (Json& report : reports) {
    EXPECT_EQ(report.at("compiled"), report.at("requested"));
    report.erase("seconds");
    report.erase("cache_directory");
    for (Json& kernel : report.at("results")) kernel.erase("milliseconds");
  }
  EXPECT_EQ(reports[0], reports[1]);
  EXPECT_EQ(files_in(cache("1")), files_in(cache("8")));

  const ToolRun again = run_tool(command("8"), {"NORMJIT_NVRTC_PATH=/no/such/libnvrtc.so"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(Json::parse(again.out).at("cached"), reports[0].at("requested"));
}

TEST_F(PrebuildProcesses, OneThatIsKilledCostsNoKernel) {
  const pid_t tool = start("8");
  const pid_t victim = a_child_of(tool);
  ASSERT_GT(victim, 0);
  EXPECT_EQ(kill(victim, SIGKILL), 0);
  EXPECT_EQ(testing::outcome_of(tool), "done");
  const Json made = Json::parse(contents(report()));
  EXPECT_EQ(made.at("compiled"), made.at("requested"));
  EXPECT_EQ(made.at("failed"), 0);
}

TEST_F(PrebuildProcesses, EndWithTheirParent) {
  const pid_t tool = start("8");
  const pid_t child = a_child_of(tool);
  ASSERT_GT(child, 0);
  EXPECT_EQ(kill(tool, SIGKILL), 0);
  EXPECT_EQ(testing::outcome_of(tool), "signal 9");
  const auto runs = [&] { return contents("/proc/" + std::to_string(child) + "/cmdline") != ""; };
  for (int i = 0; i < 1000 && runs(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(runs());
}

TEST_F(PrebuildProcesses, SayWhyAKernelFails) {
  std::filesystem::copy(NORMJIT_SOURCE_DIR "/templates", directory_ / "templates",
                        std::filesystem::copy_options::recursive);
  std::ofstream(directory_ / "templates/op/sink.cuh", std::ios::app) << "\nstatic_assert(false, \"stop\");\n";
  const ToolRun run = run_tool(command("8"), {"NORMJIT_TEMPLATE_DIR=" + directory_ / "templates"});
  EXPECT_EQ(run.status, 1) << run.err;
  const Json report = Json::parse(run.out);
  EXPECT_EQ(report.at("failed"), report.at("requested"));
  for (const Json& kernel : report.at("results")) {
    EXPECT_THAT(kernel.at("error").get<std::string>(), HasSubstr("op/sink.cuh("));
    EXPECT_THAT(kernel.at("error").get<std::string>(), HasSubstr("stop"));
  }
}

}  // namespace
}  // namespace normjit
