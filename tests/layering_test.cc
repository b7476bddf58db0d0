// SPDX-License-Identifier: Apache-2.0
// The folder graph is the architecture: this test reads every #include under src/ and every kernel template,
// and names file and line of whatever breaks a rule. The rules are the tables below; a new folder under src/
// needs a row.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "tests/support/layering.h"

namespace normjit::layering {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

// --- The tree
// --------------------------------------------------------------------------------------------------

TEST(Layering, IncludesRunOneWay) {
  const std::vector<File> files = read_files("src", {".h", ".cc"});
  ASSERT_GT(files.size(), 20u) << "src/ was not read";
  for (const File& file : files) {
    const std::vector<std::string> broken = check_includes(file);
    EXPECT_TRUE(broken.empty()) << joined(broken);
  }
}

TEST(Layering, EveryPublicHeaderHasAStage) {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(NORMJIT_SOURCE_DIR "/src/normjit")) {
    if (entry.path().extension() == ".h") found.insert("normjit/" + entry.path().filename().string());
  }
  EXPECT_EQ(found, public_headers()) << "kPublicHeaders and src/normjit/*.h differ";
}

TEST(Layering, OneFileIncludesSpdlog) {
  std::set<std::string> users;
  for (const File& file : read_files("src", {".h", ".cc"})) {
    if (file.text.find("#include <spdlog/") != std::string::npos) users.insert(file.path);
  }
  EXPECT_THAT(users, ElementsAre("src/normjit/service/default_log.cc"));
}

TEST(Layering, KernelsArePlainCuda) {
  const std::vector<File> kernels = read_files("templates", {".cu"});
  ASSERT_FALSE(kernels.empty()) << "templates/ was not read";
  for (const File& kernel : kernels) {
    const std::vector<std::string> broken = check_kernel(kernel);
    EXPECT_TRUE(broken.empty()) << joined(broken);
  }
}

// --- The checker
// -----------------------------------------------------------------------------------------------

std::vector<std::string> check(const std::string& path, const std::string& text) {
  return check_includes({path, text});
}

TEST(LayeringChecker, NamesFileLineAndRuleOfABackEdge) {
  EXPECT_THAT(check("src/normjit/spec/spec.cc", "#include <string>\n\n#include \"normjit/plan.h\"\n"),
              ElementsAre("src/normjit/spec/spec.cc:3: normjit/plan.h: spec may not include plan"));
}

TEST(LayeringChecker, KnowsTheStagesApart) {
  const char* const allowed[][2] = {
      {"src/normjit/plan/candidates.cc", "normjit/spec.h"},
      {"src/normjit/codegen/generator.h", "normjit/plan.h"},
      {"src/normjit/compiler/nvrtc.cc", "normjit/arch.h"},
      {"src/normjit/cache/cache.h", "normjit/cache/entry.h"},
      {"src/normjit/driver/driver.h", "normjit/stream.h"},
      {"src/normjit/driver/driver.h", "normjit/device.h"},
      {"src/normjit/remote/signature.cc", "normjit/cache/read_file.h"},
      {"src/normjit/service/impl.h", "normjit/cache/cache.h"},
      {"src/normjit/service/impl.h", "normjit/remote/signature.h"},
      {"src/normjit/c_api.h", "normjit/remote.h"},
      {"src/normjit/service.h", "normjit/plan.h"},
      {"src/cli/run.cc", "cli/commands.h"},
      {"src/cli/run.cc", "normjit/normjit.h"},
      {"src/cli/run.cc", "verify/check.h"},
      {"src/verify/problem.h", "normjit/tensors.h"},
      {"src/bench/suite.cc", "cli/measure.h"},
  };
  for (const auto& [path, header] : allowed)
    EXPECT_EQ(objection(path, header, true), "") << path << ' ' << header;

  const char* const refused[][2] = {
      {"src/normjit/base/text.h", "normjit/spec.h"},
      {"src/normjit/plan.h", "normjit/codegen/templates.h"},
      {"src/normjit/cache/cache.h", "normjit/spec.h"},
      {"src/normjit/cache/cache.h", "normjit/driver/driver.h"},
      {"src/normjit/cache/cache.h", "normjit/remote/signature.h"},
      {"src/normjit/remote/signature.cc", "normjit/service.h"},
      {"src/normjit/remote/signature.cc", "normjit/spec.h"},
      {"src/normjit/c_api/service.cc", "normjit/remote/signature.h"},
      {"src/normjit/driver/driver.h", "normjit/plan.h"},
      {"src/normjit/driver/driver.h", "normjit/spec.h"},
      {"src/normjit/compiler/nvrtc.cc", "normjit/plan.h"},
      {"src/normjit/driver/driver.h", "normjit/service.h"},
      {"src/normjit/driver/driver.h", "normjit/service/impl.h"},
      {"src/normjit/service/impl.h", "cli/commands.h"},
      {"src/verify/check.h", "cli/commands.h"},
      {"src/cli/measure.h", "bench/suite.h"},
      {"src/verify/problem.h", "normjit/service.h"},
      {"src/normjit/spec.h", "normjit/normjit.h"},
  };
  for (const auto& [path, header] : refused) {
    EXPECT_THAT(objection(path, header, true), HasSubstr("may not include")) << path << ' ' << header;
  }
}

TEST(LayeringChecker, AsksForARowForANewFolder) {
  EXPECT_THAT(objection("src/normjit/novel/x.cc", "normjit/spec.h", true),
              HasSubstr("no row in kMayInclude"));
}

TEST(LayeringChecker, SeesThroughEveryWayToWriteAnInclude) {
  EXPECT_THAT(check("src/normjit/spec/x.cc", "  #  include<normjit/plan.h>  // why"), testing::SizeIs(1));
  EXPECT_THAT(check("src/normjit/spec/x.cc", "#include \"../plan/footprint.h\""), testing::SizeIs(1));
  EXPECT_THAT(check("src/normjit/spec/x.cc", "// #include \"normjit/plan.h\"\n#include <vector>"), IsEmpty());
}

TEST(LayeringChecker, KeepsOtherPeoplesHeadersInTheirPlaces) {
  EXPECT_EQ(objection("src/normjit/service/default_log.cc", "spdlog/spdlog.h", false), "");
  EXPECT_EQ(objection("src/cli/command_line.h", "CLI/CLI.hpp", false), "");
  EXPECT_EQ(objection("src/normjit/driver/table.cc", "cuda.h", false), "");
  for (const char* header : {"spdlog/spdlog.h", "fmt/core.h", "CLI/CLI.hpp", "nlohmann/json.hpp", "nvrtc.h",
                             "cuda.h", "cuda_runtime.h"}) {
    EXPECT_THAT(objection("src/normjit/service.h", header, false), HasSubstr("belongs only in")) << header;
    EXPECT_THAT(objection("src/normjit/cache/cache.cc", header, false), HasSubstr("belongs only in"))
        << header;
  }
}

TEST(LayeringChecker, FindsWhatIsBannedInKernels) {
  for (const char* line : {"asm volatile(\"\");", "  __asm__(\"\");", "__shared__ float s[4];",
                           "extern \"C\" void f();", "# include <x>", "#define N 4"}) {
    EXPECT_THAT(check_kernel({"templates/k.cu", std::string("int a;\n") + line}), testing::SizeIs(1)) << line;
  }
  EXPECT_THAT(check_kernel({"templates/k.cu", "\nasm(\"\");"}),
              ElementsAre("templates/k.cu:2: asm is not for kernels"));
}

TEST(LayeringChecker, LeavesCommentsAndOtherWordsOfKernelsAlone) {
  EXPECT_THAT(
      check_kernel({"templates/k.cu", "// no asm here\n/* nor\n   __shared__ */ int asmx = 4 / 2;\n"}),
      IsEmpty());
  EXPECT_THAT(check_kernel({"templates/k.cu", "/* a */ asm(\"\");"}), testing::SizeIs(1));
}

}  // namespace
}  // namespace normjit::layering
