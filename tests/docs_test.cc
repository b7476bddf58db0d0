// SPDX-License-Identifier: Apache-2.0
// The documents agree with the code: snippets are parts of files that are built, the tests that are named
// exist, and every environment variable is described.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "normjit/spec.h"
#include "normjit/spec/operands.h"
#include "tests/support/pages.h"

namespace normjit {
namespace {

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
  const auto lines = snippet(source_text("README.md"), "#include <normjit/normjit.h>");
  ASSERT_GT(lines.size(), 5u);
  const std::string example = without_spaces(source_text("examples/quickstart.cc"));
  for (const std::string& line : lines) EXPECT_NE(example.find(line + "\n"), std::string::npos) << line;
}

TEST(CApiPage, TheSnippetsAreCompiled) {
  const std::string compiled = without_spaces(source_text("tests/c_api/snippet.c"));
  const std::pair<const char*, std::size_t> snippets[] = {
      {"normjit_service *service = NULL;", 9},
      {"normjit_spec backward = NORMJIT_SPEC_INIT;", 9},
      {"if (normjit_add_layer(service, pack, size, NULL, error)) return 1;", 1}};
  for (const auto& [first, least] : snippets) {
    const auto lines = snippet(source_text("docs/c_api.md"), first);
    ASSERT_GE(lines.size(), least) << first;
    for (const std::string& line : lines) EXPECT_NE(compiled.find(line + "\n"), std::string::npos) << line;
  }
}

// "Suite" and "Suite.Name" of every test in tests/.
std::set<std::string> all_tests() {
  std::set<std::string> names;
  const std::regex test(R"(TEST(?:_F|_P)?\((\w+),\s*(\w+)\))");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(NORMJIT_SOURCE_DIR "/tests")) {
    if (entry.path().extension() != ".cc") continue;
    std::ifstream stream(entry.path());
    const std::string text = (std::stringstream() << stream.rdbuf()).str();
    for (std::sregex_iterator at(text.begin(), text.end(), test), end; at != end; ++at) {
      names.insert((*at)[1]);
      names.insert(at->str(1) + "." + at->str(2));
    }
  }
  return names;
}

TEST(CApiPage, EveryTestThatIsNamedExists) {
  const std::set<std::string> tests = all_tests();
  const std::string page = source_text("docs/c_api.md");
  const std::regex name("`(CApi\\w*\\.\\w+|tests/[\\w/.]+)`");
  int count = 0;
  for (std::sregex_iterator at(page.begin(), page.end(), name), end; at != end; ++at, ++count)
    EXPECT_TRUE(tests.contains(at->str(1)) ||
                std::filesystem::is_regular_file(NORMJIT_SOURCE_DIR "/" + at->str(1)))
        << at->str(1);
  EXPECT_GT(count, 12);
}

// Expects that the tests named in the last cell of every table row exist, and that there are some; the number
// of rows.
int rows_with_tests(std::istream& stream, const std::string& last_line) {
  static const std::set<std::string> tests = all_tests();
  const std::regex row(R"(^\|[^|]*\|[^|]*\|(.*)\|$)"), name("`([^`]+)`");
  int rows = 0;
  for (std::string line; std::getline(stream, line) && line != last_line;) {
    std::smatch cells;
    if (!std::regex_match(line, cells, row)) continue;
    const std::string named = cells[1];
    int count = 0;
    for (std::sregex_iterator at(named.begin(), named.end(), name), end; at != end; ++at, ++count)
      EXPECT_TRUE(tests.contains(at->str(1))) << at->str(1);
    const bool is_head = named == " tests " || named == "---";
    EXPECT_TRUE(is_head || count > 0) << line;
    rows += !is_head;
  }
  return rows;
}

TEST(Robustness, EveryTestThatIsNamedExists) {
  std::istringstream stream(source_text("docs/robustness.md"));
  EXPECT_GT(rows_with_tests(stream, "## Counted"), 30);
}

TEST(Guarantees, EveryOneHasItsTests) {
  std::istringstream stream(source_text("docs/guarantees.md"));
  EXPECT_GT(rows_with_tests(stream, "## Limits"), 15);
}

// Every whole text of a spec, in backticks.
TEST(AlgebraPage, ItsTextsAreSpecs) {
  const std::string page = source_text("docs/algebra.md");
  const std::string rules = page.substr(page.find("## Rules"), page.find("## Texts") - page.find("## Rules"));
  const std::regex text("`((?:layernorm|rmsnorm)(?:_bwd)?/[^`]+)`");
  int count = 0;
  for (std::sregex_iterator at(page.begin(), page.end(), text), end; at != end; ++at, ++count) {
    const Result<NormSpec> spec = parse_spec(at->str(1));
    const bool is_mistake = rules.find(at->str()) != std::string::npos;
    EXPECT_EQ(spec.ok(), !is_mistake) << at->str(1);
    if (spec.ok()) {  // in the order of canonical texts, but for epsilon
      EXPECT_EQ(std::regex_replace(to_text(*spec), std::regex("/eps=1e-05"), ""),
                std::regex_replace(at->str(1), std::regex("/eps=1e-05"), ""));
    }
  }
  EXPECT_GT(count, 25);
}

TEST(AlgebraPage, ItsMessagesAreThoseOfTheLibrary) {
  const std::string rules = part_of(source_text("docs/algebra.md"), "## Rules", "## Texts");
  const std::regex rule(R"(\| `([^`]+)` \| ([^|\n]+) \|)");
  int count = 0;
  for (std::sregex_iterator at(rules.begin(), rules.end(), rule), end; at != end; ++at, ++count) {
    const Result<NormSpec> spec = parse_spec(at->str(1));
    ASSERT_EQ(spec.code(), Code::BadCombination) << at->str(1);
    EXPECT_NE(spec.error().message.find(at->str(2)), std::string::npos) << spec.error().message;
  }
  EXPECT_EQ(count, 27);
}

// Each operand, in the order in which a launch has them, with the option of the tool.
TEST(AlgebraPage, HasEveryOperand) {
  const std::string table = part_of(source_text("docs/algebra.md"), "## Operands", "## Roundings");
  std::size_t at = 0;
  for (const OperandRow& row : kOperands) {
    const std::size_t found = table.find("\n| " + std::string(row.name) + " |", at);
    ASSERT_NE(found, std::string::npos) << row.name;
    at = found + 1;
    std::string option = "`--" + std::string(row.name == "y" ? "out" : row.name);
    if (row.output && row.name != "y") option += "-out";
    std::replace(option.begin(), option.end(), '_', '-');
    EXPECT_NE(table.substr(at, table.find('\n', at) - at).find(option + "` |"), std::string::npos) << option;
  }
}

// Each place that spells the grammar has every key, and every value of a quantization.
TEST(Grammar, HasEveryWordWhereverItStands) {
  const std::string places[] = {part_of(source_text("docs/algebra.md"), "## Fields", "## Operands"),
                                part_of(source_text("docs/tool.md"), "## Specs", "## Exit codes"),
                                part_of(source_text("src/cli/command_line.h"), "kSpecHelp", "kPlaneHelp")};
  const auto expect = [&](const std::string& word) {
    for (const std::string& place : places)
      EXPECT_NE(place.find(word), std::string::npos) << word << " in " << place;
  };
  each_field([&](const auto& field) {
    using Value = typename std::remove_cvref_t<decltype(field)>::Value;
    if constexpr (std::is_enum_v<Value> && !std::is_same_v<Value, DType>) {
      if (field.key != "q" && field.key != ":") return;
      for (std::size_t i = 1; i < field.choices(); ++i)
        expect((field.key == "q" ? "q=" : ":") + std::string(name(static_cast<Value>(i))));
    } else if (field.key != "cols") {
      expect(std::string(field.key));
    }
  });
}

TEST(EnvironmentPage, HasEveryVariableThatIsRead) {
  const std::string page = source_text("docs/environment.md");
  const std::regex read(R"rx((?:getenv|variable|understood|environ\.get|environ\[)\(?"([A-Z_]+)")rx");
  const std::regex ours("NORMJIT_.*|CUDA_.*|XDG_.*|HOME|CXX");
  std::set<std::string> names;
  for (const char* const folder : {"/src", "/python", "/tests"})
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(NORMJIT_SOURCE_DIR + std::string(folder))) {
      if (entry.path().extension() != ".cc" && entry.path().extension() != ".py") continue;
      std::ifstream stream(entry.path());
      const std::string text = (std::stringstream() << stream.rdbuf()).str();
      for (std::sregex_iterator at(text.begin(), text.end(), read), end; at != end; ++at)
        if (std::regex_match(at->str(1), ours)) names.insert(at->str(1));
    }
  EXPECT_GT(names.size(), 25u);
  for (const std::string& name : names) EXPECT_NE(page.find("`" + name + "`"), std::string::npos) << name;
}

// Each block of C++ stands in the file that is linked last before it.
TEST(EmbeddingGuide, ItsCodeIsThatOfFilesThatAreBuilt) {
  const auto squeezed = [](std::string text) {
    std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
    return text;
  };
  const std::string guide = source_text("docs/embedding.md");
  const std::regex link(R"(\]\(\.\./([^)#]+\.(?:cc|h))\))");
  int blocks = 0;
  for (std::size_t begin = 0; (begin = guide.find("```cpp\n", begin)) != std::string::npos; ++blocks) {
    std::string linked;
    const std::string before = guide.substr(0, begin);
    for (std::sregex_iterator at(before.begin(), before.end(), link), end; at != end; ++at)
      linked = at->str(1);
    begin += 7;
    const std::size_t end = guide.find("```", begin);
    const std::string code = guide.substr(begin, end - begin);
    EXPECT_NE(squeezed(source_text(linked)).find(squeezed(code)), std::string::npos)
        << "not in " << linked << ":\n"
        << code;
    begin = end + 3;
  }
  EXPECT_GT(blocks, 8);
}

}  // namespace
}  // namespace normjit
