// SPDX-License-Identifier: Apache-2.0
// The real tool with a compiler, without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/copy.h"
#include "normjit/compiler/nvrtc_compiler.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using Json = nlohmann::json;

constexpr const char* kSpec = "layernorm/cols=64/f16/eps=1e-05/wb/gelu";

class ToolWithCompiler : public testing::Test {
 protected:
  ToolRun run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--cache-dir", cache()});
    return run_tool(arguments);
  }
  std::string cache() const { return directory_ / "cache"; }

  TempDirectory directory_;
};

TEST_F(ToolWithCompiler, SecondPrebuildCompilesNothing) {
  EXPECT_EQ(run({"prebuild", kSpec, "--arch", "sm_80,sm_90", "--check"}).status, 1);

  const ToolRun first = run({"prebuild", kSpec, "--arch", "sm_80,sm_90", "--json"});
  ASSERT_EQ(first.status, 0) << first.err;
  const Json built = Json::parse(first.out);
  EXPECT_GT(built.at("requested"), 0);
  EXPECT_EQ(built.at("compiled"), built.at("requested"));
  EXPECT_EQ(std::count(first.err.begin(), first.err.end(), '\n'), built.at("requested"))
      << "one line a kernel";

  const ToolRun second = run({"prebuild", kSpec, "--arch", "sm_80,sm_90", "--json"});
  ASSERT_EQ(second.status, 0) << second.err;
  const Json found = Json::parse(second.out);
  EXPECT_EQ(found.at("compiled"), 0);
  EXPECT_EQ(found.at("cached"), built.at("requested"));

  EXPECT_EQ(run({"prebuild", kSpec, "--arch", "sm_80,sm_90", "--check"}).status, 0);
  EXPECT_EQ(run({"prebuild", kSpec, "--arch", "sm_80,sm_90,sm_100", "--check"}).status, 1);
}

TEST_F(ToolWithCompiler, ListShowsWhatWasBuiltAndWhatWasDamaged) {
  ASSERT_EQ(run({"prebuild", kSpec, "--arch", "sm_90"}).status, 0);
  const ToolRun listed = run({"list", "--json"});
  ASSERT_EQ(listed.status, 0) << listed.err;
  const Json entries = Json::parse(listed.out).at("entries");
  ASSERT_FALSE(entries.empty());
  for (const Json& entry : entries) {
    EXPECT_EQ(entry.at("spec"), kSpec);
    EXPECT_EQ(entry.at("arch"), "sm_90");
    EXPECT_EQ(entry.at("code"), "cubin");
    EXPECT_THAT(entry.at("toolchain"), HasSubstr("nvrtc"));
    EXPECT_GT(entry.at("registers"), 0);
  }

  const Json shown = Json::parse(run({"show", kSpec, "--arch", "sm_90", "--json"}).out);
  for (const Json& use : shown.at("uses")) EXPECT_TRUE(use.at("cached"));

  const std::string id = entries.at(0).at("id");
  for (const auto& file : std::filesystem::directory_iterator(cache())) {
    if (file.path().stem() == id) std::filesystem::resize_file(file.path(), file.file_size() - 1);
  }
  const ToolRun damaged = run({"list", "--json"});
  EXPECT_EQ(damaged.status, 1);
  EXPECT_EQ(Json::parse(damaged.out).at("damaged"), 1);
  EXPECT_THAT(run({"list"}).out, HasSubstr("DAMAGED"));
}

TEST_F(ToolWithCompiler, DoctorIsContent) {
  const ToolRun doctor = run({"doctor", "--json"});
  EXPECT_EQ(doctor.status, 0) << doctor.err;
  const Json report = Json::parse(doctor.out);
  EXPECT_NE(report.at("compiler").at("path"), "");
  EXPECT_THAT(report.at("compiler").at("archs"), testing::Contains("sm_90"));
}

TEST_F(ToolWithCompiler, UnstorableKernelsExitWith4) {
  std::ofstream(directory_ / "file") << "not a directory";
  const ToolRun prebuild =
      run_tool({"prebuild", kSpec, "--arch", "sm_90", "--cache-dir", directory_ / "file/cache"});
  EXPECT_EQ(prebuild.status, 4);
  EXPECT_THAT(prebuild.err, HasSubstr("could not keep"));
}

TEST_F(ToolWithCompiler, RenderedSourceCompiles) {
  const ToolRun rendered = run({"render", kSpec, "--arch", "sm_90", "--rows", "4", "--align", "2"});
  ASSERT_EQ(rendered.status, 0) << rendered.err;
  const Json shown = Json::parse(run({"list", "--json"}).out);
  EXPECT_THAT(shown.at("entries"), IsEmpty()) << "render only prints";

  NvrtcSearch search;
  const std::string name = "warp_rows";
  const Result<Binary> binary = make_nvrtc_compiler(search)->compile(
      {.text = rendered.out, .kernel = name, .description = "rendered"}, Arch{90});
  ASSERT_TRUE(binary.ok()) << binary.error().message;
  EXPECT_FALSE(binary->code.empty());
}

TEST(CopyKernel, CompilesForEveryArchitectureWithoutSpills) {
  const std::shared_ptr<Compiler> compiler = make_nvrtc_compiler({});
  const cli::CopyStreams all[] = {{{1}, {1}}, {{4, 4, 1}, {1, 4}}, {{2, 1}, {}}};
  for (const DeviceProfile& device : DeviceProfile::known())
    for (const cli::CopyStreams& streams : all)
      for (const cli::CopyShape& shape : cli::kCopyShapes) {
        const bool overlap = device.arch.number >= 90;
        const Source source{.text = cli::copy_source(streams, shape, overlap),
                            .kernel = "normjit_copy",
                            .description = "copy"};
        const Result<Binary> binary = compiler->compile(source, device.arch);
        ASSERT_TRUE(binary.ok()) << binary.error().message << source.text;
        EXPECT_EQ(binary->spill_bytes, binary->ptx ? -1 : 0) << device.arch.name() << to_text(shape);
      }
}

}  // namespace
}  // namespace normjit
