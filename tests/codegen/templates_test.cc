// SPDX-License-Identifier: Apache-2.0
#include "normjit/codegen/templates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "normjit/codegen/generator.h"
#include "tests/support/temp_directory.h"

namespace normjit {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::filesystem::path kFolder = std::filesystem::path(NORMJIT_SOURCE_DIR) / "templates";

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// The templates in the source tree: all of the folder and those in it, but its documentation.
std::set<std::string> files_in_tree() {
  std::set<std::string> names;
  for (const auto& file : std::filesystem::recursive_directory_iterator(kFolder))
    if (file.is_regular_file() && file.path().extension() != ".md")
      names.insert(std::filesystem::relative(file.path(), kFolder).string());
  return names;
}

TEST(Templates, EmbeddedOnesAreThoseOfTheTree) {
  std::set<std::string> embedded;
  for (const EmbeddedFile& file : embedded_templates()) {
    EXPECT_TRUE(embedded.emplace(file.name).second) << file.name << " is embedded twice";
    EXPECT_TRUE(file.text == bytes_of(kFolder / file.name)) << file.name << " differs; build again";
  }
  EXPECT_EQ(embedded, files_in_tree());
}

TEST(Templates, EmptyDirectoryNameMeansTheEmbeddedOnes) {
  for (const EmbeddedFile& file : embedded_templates())
    EXPECT_TRUE(find_template("", file.name).value().view() == file.text) << file.name;
  const auto missing = find_template("", "no_such.cuh");
  ASSERT_EQ(missing.code(), Code::BadTemplate);
  EXPECT_THAT(missing.error().message, HasSubstr("'no_such.cuh'"));
}

TEST(Templates, ADirectoryIsReadAtEveryCall) {
  const TempDirectory directory;
  const std::string bytes("one\r\n\0two", 9);
  std::ofstream(directory / "a.cuh", std::ios::binary) << bytes;
  EXPECT_EQ(find_template(directory.path(), "a.cuh").value().view(), bytes);
  std::ofstream(directory / "a.cuh", std::ios::binary) << "edited";
  EXPECT_EQ(find_template(directory.path(), "a.cuh").value().view(), "edited");
}

TEST(Templates, AMissingFileIsNamedWithItsDirectory) {
  const TempDirectory directory;
  // The embedded one does not stand in: a mixture would be hard to find.
  const auto missing = find_template(directory.path(), "hw.cuh");
  ASSERT_EQ(missing.code(), Code::BadTemplate);
  EXPECT_THAT(missing.error().message,
              AllOf(HasSubstr(directory / "hw.cuh"), HasSubstr("NORMJIT_TEMPLATE_DIR")));
  EXPECT_EQ(find_template(directory / "no such directory", "hw.cuh").code(), Code::BadTemplate);
}

TEST(Templates, TheGeneratorReadsAllOfThemFromTheDirectory) {
  const TempDirectory directory;
  const NormSpec spec{.columns = 64};
  const Plan plan{
      .strategy = Strategy::warp_rows, .threads = 256, .threads_per_row = 16, .vector = 4, .per_thread = 1};
  const Arch arch{.number = 90};
  std::filesystem::copy(
      kFolder, directory.path(),
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(generate(spec, plan, arch, directory.path()).value().text ==
              generate(spec, plan, arch, "").value().text);

  EXPECT_EQ(draft(spec, plan, arch, directory.path()).value().digest(),
            draft(spec, plan, arch, "").value().digest());
  std::ofstream(directory / "op/sink.cuh", std::ios::app) << "// edited\n";
  EXPECT_NE(draft(spec, plan, arch, directory.path()).value().digest(),
            draft(spec, plan, arch, "").value().digest());
  EXPECT_THAT(generate(spec, plan, arch, directory.path()).value().text, HasSubstr("// edited\n"));
  std::filesystem::remove(directory / "op/sink.cuh");
  const auto missing = generate(spec, plan, arch, directory.path());
  ASSERT_EQ(missing.code(), Code::BadTemplate);
  EXPECT_THAT(missing.error().message, HasSubstr("op/sink.cuh"));
  std::ofstream(directory / "spec.cuh.in", std::ios::app) << "{{colour}}\n";
  const auto unknown = generate(spec, plan, arch, directory.path());
  ASSERT_EQ(unknown.code(), Code::BadTemplate);
  EXPECT_THAT(unknown.error().message, AllOf(HasSubstr("spec.cuh.in("), HasSubstr("'colour'")));
}

// The planner has been compiled with one plan_math.cuh.
TEST(Templates, ADirectoryWithOtherArithmeticOfPlansIsRefused) {
  const TempDirectory directory;
  std::filesystem::copy(kFolder, directory.path(), std::filesystem::copy_options::recursive);
  const Plan plan{
      .strategy = Strategy::warp_rows, .threads = 256, .threads_per_row = 16, .vector = 4, .per_thread = 1};
  ASSERT_TRUE(draft({.columns = 64}, plan, Arch{90}, directory.path()).ok());
  std::ofstream(directory / "plan_math.cuh", std::ios::app) << "\n";
  const auto refused = draft({.columns = 64}, plan, Arch{90}, directory.path());
  ASSERT_EQ(refused.code(), Code::BadTemplate);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr(directory / "plan_math.cuh"), HasSubstr("build the library")));
}

// What lets the same text run under another executor: the hardware is in hw.cuh, the placeholders in
// spec.cuh.in, and neither is anywhere else.
TEST(Templates, KeepTheirRules) {
  for (const EmbeddedFile& file : embedded_templates()) {
    SCOPED_TRACE(file.name);
    EXPECT_EQ(file.text.find("#include"), file.text.npos);
    EXPECT_TRUE(file.text.ends_with('\n')) << "the next #line directive needs a line of its own";
    if (file.name != "spec.cuh.in") {
      EXPECT_EQ(file.text.find("{{"), file.text.npos);
    }
    if (file.name == "hw.cuh") continue;
    if (file.name != "spec.cuh.in") {  // which names the kernel
      EXPECT_EQ(file.text.find("#define"), file.text.npos);
    }
    for (const std::string_view hardware :
         {"asm(", "asm (", "asm volatile", "__shared__", "__device__", "__global__", "extern \"C\"",
          "__syncthreads", "__shfl", "atomicAdd", "__nanosleep", "__cluster_dims__", "__launch_bounds__"})
      EXPECT_EQ(file.text.find(hardware), file.text.npos) << hardware << " belongs into hw.cuh";
  }
}

}  // namespace
}  // namespace normjit
