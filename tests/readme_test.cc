// The first snippet of the README is part of a program that is built and run.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace normjit {
namespace {

std::string file(const std::string& name) {
  std::ifstream stream(NORMJIT_SOURCE_DIR "/" + name);
  EXPECT_TRUE(stream) << name;
  return (std::stringstream() << stream.rdbuf()).str();
}

std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

// The lines of the indented block that begins with `first`.
std::vector<std::string> snippet(const std::string& text, const std::string& first) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  bool inside = false;
  for (std::string line; std::getline(stream, line);) {
    inside = inside || line == "    " + first;
    if (inside && !line.empty() && !line.starts_with("    ")) break;
    if (inside && !line.empty()) lines.push_back(without_spaces(line));
  }
  return lines;
}

TEST(Readme, TheFirstSnippetIsTheExample) {
  const auto lines = snippet(file("README.md"), "#include <normjit/normjit.h>");
  ASSERT_GT(lines.size(), 5u);
  const std::string example = without_spaces(file("examples/quickstart.cc"));
  for (const std::string& line : lines) EXPECT_NE(example.find(line + "\n"), std::string::npos) << line;
}

}  // namespace
}  // namespace normjit
